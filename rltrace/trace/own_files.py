"""The files of a run that anybody may have made: read only where they are plain files of its own.

A link may lead to a file that is none of the run's, a pipe or a device never ends, and a hole of a
terabyte costs nothing to make. rltrace writes none of them. `RLTRACE_FOLLOW_LINKS=1` follows links,
for a store that keeps its files so. Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FOLLOW_VARIABLE = "RLTRACE_FOLLOW_LINKS"
"""Environment variable that has links in a run's directory followed, where it is 1."""

MOST_TEXT_BYTES = 256 << 20
"""Of a text: 20,000 names of a kilobyte have a tenth of it."""

NO_PLAIN_FILE = "no plain file of the run: ignored"
"""Why a link, a pipe, a device or a folder is not read."""

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # else opening a pipe waits for its writer


def follows_links() -> bool:
    """Whether links in a run's directory are followed."""
    return os.environ.get(FOLLOW_VARIABLE) == "1"


def is_elsewhere(path: str | Path) -> bool:
    """Whether a file or folder of a run is a link that is not followed: what is written or deleted
    there would not be the run's."""
    return os.path.islink(path) and not follows_links()


def entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What lies in a run's folder, by name; nothing where there is none, or it is a link that is
    not followed."""
    if is_elsewhere(folder):
        return []
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:  # deleted, or never made
        return []


def own_files(folder: str | Path, suffix: str = "") -> tuple[list[Path], list[Path]]:
    """What lies in a run's folder and ends in `suffix`, by name: plain files, and what is none.
    Both are empty where there is no folder; one that is a link is none itself."""
    if is_elsewhere(folder):
        return [], [Path(folder)]
    follow = follows_links()
    plain: list[Path] = []
    others: list[Path] = []
    with suppress(OSError):  # links that lead round
        for entry in entries(folder):
            if entry.name.endswith(suffix):
                kept = plain if entry.is_file(follow_symlinks=follow) else others
                kept.append(Path(entry.path))
    return plain, others


def open_own(path: str | Path) -> tuple[int, os.stat_result]:
    """A descriptor to read a plain file by, and the file's status. Errors: OSError."""
    try:
        file = os.open(path, _READ | (0 if follows_links() else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, NO_PLAIN_FILE, str(path)) from None
        raise
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, NO_PLAIN_FILE, str(path))
    return file, status


def read_own(path: str | Path, begin: int = 0) -> bytes:
    """What a text file holds from byte `begin` on. Errors: OSError, also where that is more than
    any text of a run has."""
    file, status = open_own(path)
    with open(file, "rb") as opened:
        if status.st_size - begin > MOST_TEXT_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MOST_TEXT_BYTES >> 20} MiB", str(path))
        opened.seek(begin)
        return opened.read(max(0, status.st_size - begin))  # as much room is made for it


def own_lines(path: str | Path) -> list[str]:
    """The lines of a text file; none of one that cannot be read."""
    try:
        return lines_of(read_own(path))
    except OSError:
        return []


def lines_of(text: bytes) -> list[str]:
    """The lines that are not empty. They end with a line feed and nothing else: names may hold what
    `splitlines` takes for an end, such as U+2028."""
    return [line for line in text.decode("utf-8", "replace").split("\n") if line]


# --- the lines of a folder of a run (a file a process, or a node) while they are being added to

_SUFFIX = ".jsonl"


class FollowedLines:
    """Each whole line of the plain files in `folder`, once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_bytes: dict[str, int] = {}

    def new(self) -> Iterator[tuple[str, str]]:
        """`(name of the file without its suffix, line)` of what was appended since the last look,
        file by file. What cannot be read is left out."""
        follow = follows_links()
        for entry in entries(self._folder):
            name = entry.name.removesuffix(_SUFFIX)
            with suppress(OSError):
                status = entry.stat(follow_symlinks=follow)
                if name != entry.name and status.st_size > self._read_bytes.get(name, 0):
                    yield from ((name, line) for line in self.new_of(name))

    def new_of(self, name: str) -> list[str]:
        """The same of one file. Errors: OSError."""
        begin = self._read_bytes.get(name, 0)
        data = read_own(self._folder / f"{name}{_SUFFIX}", begin)
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes[name] = begin + len(whole)
        return lines_of(whole)
