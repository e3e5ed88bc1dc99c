"""Processes that stopped recording (a full disk) while their run is followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.trace.own_files import follows_links, lines_of, read_own
from rltrace.trace.run_dir import PROBLEMS, RECORDING_STOPPED
from rltrace.trace.stated import problem_of
from rltrace.trace.texts import parsed


@dataclass(frozen=True)
class Stop:
    """When a process stopped recording, on the clock of its node and in real time (ns; None: it
    does not say), and why."""

    monotonic_ns: int | None
    real_ns: int | None
    detail: str


class FollowedStops:
    """Follows what processes say of it: `stops`, by who they are."""

    def __init__(self, path: Path) -> None:
        self.stops: dict[str, Stop] = {}
        self._lines = FollowedLines(path / PROBLEMS)

    def poll(self) -> None:
        """Looks what more was written down."""
        for who, line in self._lines.new():
            with suppress(ValueError, TypeError):  # `rltrace info` names it
                problem = problem_of(parsed(line))
                if problem["what"] == RECORDING_STOPPED:
                    self._note(who, problem)

    def note_facts(self, who: str, facts: dict[str, Any]) -> None:
        """The file of a process says it where the disk had no room for a line."""
        told = facts.get(RECORDING_STOPPED)
        if told is not None:
            with suppress(ValueError, TypeError):
                self._note(who, problem_of({**told, "what": RECORDING_STOPPED}))

    def _note(self, who: str, problem: dict[str, Any]) -> None:
        at = problem.get("monotonic_ns"), problem.get("real_ns")
        self.stops.setdefault(who, Stop(*at, str(problem.get("detail") or "")))


# --- the lines of a folder of a run (a file a process, or a node) while they are being added to

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
