"""The lines of a folder of a run (a file a process, or a node) while they are being added to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rltrace.trace.own_files import follows_links, lines_of, read_own

_SUFFIX = ".jsonl"


class FollowedLines:
    """Each whole line of the plain files in `folder`, once. What cannot be read is left out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_bytes: dict[str, int] = {}

    def new(self) -> Iterator[tuple[str, str]]:
        """`(name of the file without its suffix, line)` of what was appended since the last look,
        file by file."""
        follow = follows_links()
        if not follow and os.path.islink(self._folder):
            return
        try:
            with os.scandir(self._folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:  # there is none, or it was deleted
            return
        for entry in entries:
            if not entry.name.endswith(_SUFFIX):
                continue
            begin = self._read_bytes.get(entry.name, 0)
            try:
                if entry.stat(follow_symlinks=follow).st_size <= begin:
                    continue
                data = read_own(entry.path, begin)
            except OSError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._read_bytes[entry.name] = begin + len(whole)
            for line in lines_of(whole):
                yield entry.name[: -len(_SUFFIX)], line
