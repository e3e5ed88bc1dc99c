"""Reads and writes files that anybody may have made or named.

A run's own files are read only where they are plain files: a link may lead elsewhere, a pipe or a
device never ends, a hole of a terabyte costs nothing to make. `RLTRACE_FOLLOW_LINKS=1` follows
links, for a store that keeps its files so. Files that a user names may be pipes or devices: what
has nothing to read, or no end, is refused, and only a regular file is replaced or cut short (a new
file renamed over /dev/null breaks every program of the machine). Standard library only.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.read import bounds

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


FOLLOW_VARIABLE = "RLTRACE_FOLLOW_LINKS"  # 1: links in a run's directory are followed
NO_PLAIN_FILE = "no plain file of the run: ignored"  # a link, a pipe, a device or a folder
_DEEPEST = 2  # folders in a run: parquet, and its tables
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # else opening a pipe waits for its writer


def follows_links() -> bool:
    return os.environ.get(FOLLOW_VARIABLE) == "1"


def is_elsewhere(path: str | Path) -> bool:
    """Whether it is a link that is not followed: to write or delete there is not for us."""
    return os.path.islink(path) and not follows_links()


def entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What lies in a run's folder, by name; nothing where there is none, or it is a link."""
    if not is_elsewhere(folder):
        with suppress(OSError), os.scandir(folder) as found:  # it is deleted, or was never made
            return sorted(found, key=lambda entry: entry.name)
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


def weigh(run: str | Path) -> int:
    """The bytes that a run's files take of the disk. Errors: `RltraceError` for a run of more files
    or bytes than are read, and for a folder that may not be read: it is not an empty one."""
    top, counts, size, disk = os.path.realpath(run), dict[str, int](), 0, 0
    folders = [(top, 0)]
    for folder, depth in folders:  # which grows
        if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
            raise RltraceError(f"{folder} cannot be read: its rights do not allow you to")
        for entry in entries(folder):
            with suppress(OSError):  # deleted a moment ago
                if entry.is_dir(follow_symlinks=False):
                    folders += [(entry.path, depth + 1)] * (depth < _DEEPEST)
                    continue
                status = entry.stat(follow_symlinks=False)
                if status.st_size <= bounds.MOST_SEGMENT_BYTES:  # no larger one is read whole
                    size += status.st_size
                disk += 512 * status.st_blocks
            counts[folder] = counts.get(folder, 0) + 1
        if sum(counts.values()) + len(folders) > bounds.MOST_FILES:
            raise _too_large(run, f"{bounds.MOST_FILES:,} files")
    if counts.get(f"{top}/process", 0) > bounds.MOST_PROCESSES:
        raise _too_large(run, f"{bounds.MOST_PROCESSES:,} processes")
    if size > (most := bounds.MOST_TOTAL_BYTES + bounds.OF_DISK * disk):
        raise _too_large(run, f"{most >> 20:,} MiB on so little of the disk")
    return disk


def _too_large(run: str | Path, what: str) -> RltraceError:
    return RltraceError(f"{run} has more than {what}: {bounds.RAISED_BY}=4 allows four times that")


def open_own(path: str | Path) -> tuple[int, os.stat_result]:
    """A descriptor to read a plain file by, and its status. Errors: OSError."""
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


def read_own(path: str | Path, begin: int = 0, most: int = bounds.MOST_TEXT_BYTES) -> bytes:
    """What a text holds from byte `begin` on. Errors: OSError, also beyond `most` bytes."""
    file, status = open_own(path)
    with open(file, "rb") as opened:
        _check_length(path, status.st_size - begin, most)
        opened.seek(begin)
        return opened.read(max(0, status.st_size - begin))  # as much room is made for it


def own_lines(path: str | Path) -> list[str]:
    """The lines of a text file; none of one that cannot be read."""
    with suppress(OSError):
        return lines_of(read_own(path))
    return []


def lines_of(text: bytes) -> list[str]:
    """The lines that are not empty. Only line feeds end them: names may hold U+2028."""
    return [line for line in text.decode("utf-8", "replace").split("\n") if line]


_SUFFIX = ".jsonl"


class FollowedLines:
    """Each whole line of the plain `.jsonl` files in `folder`, once, while they are added to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_bytes: dict[str, int] = {}

    def new(self) -> Iterator[tuple[str, str]]:
        """`(file's name without suffix, line)` of what is new, file by file, if readable."""
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


_Kinds = tuple[tuple[Callable[[int], bool], str], ...]
_REFUSED: _Kinds = ((stat.S_ISSOCK, "a socket"), (stat.S_ISBLK, "a disk"))
_KINDS: _Kinds = (
    *((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket")),
    *((stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device")),
)


def open_given(path: str | Path) -> BinaryIO:
    """A file, open to be read, more than once. Errors: OSError, which says what else it is."""
    status = os.stat(path)
    _check(path, status.st_mode)
    most = bounds.MOST_GIVEN_BYTES + bounds.OF_DISK * 512 * status.st_blocks
    _check_length(path, status.st_size, most)
    return open(path, "rb")


def read_given(path: str | Path, most: int = bounds.MOST_TOTAL_BYTES) -> bytes:
    """What a file holds, or a pipe of the shell's (`<(...)`, /dev/stdin), of `most` bytes. Errors:
    OSError, also if too long."""
    mode = os.stat(path).st_mode
    # A pipe in no folder: whoever made it has opened both its ends.
    if not (stat.S_ISFIFO(mode) and not os.path.exists(os.path.realpath(path))):
        _check(path, mode)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        _check_length(path, size, most)
        parts, left = [], most + 1  # room is made for all that is asked for
        while left and (part := file.read(min(left, size + (1 << 20)))):
            parts.append(part)
            left -= len(part)
    _check_length(path, most + 1 - left, most)
    return b"".join(parts)


def text_given(path: str | Path) -> str:
    """The same as a text. Errors: OSError, also if too long; UnicodeDecodeError (ValueError)."""
    return read_given(path, bounds.MOST_TEXT_BYTES).decode("utf-8")


def _check_length(path: str | Path, length: int, most: int = bounds.MOST_TEXT_BYTES) -> None:
    if length > most:
        said = f"larger than {most >> 20:,} MiB ({bounds.RAISED_BY}=4 allows four times that)"
        raise OSError(errno.EFBIG, said, str(path))


def _check(path: str | Path, mode: int, kinds: _Kinds = _KINDS) -> None:
    """Errors: OSError for what is of one of these kinds."""
    for is_kind, kind in kinds:
        if is_kind(mode):
            raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))


def open_to_append(path: str | Path) -> BinaryIO:
    """A file that a user named, to be written after its end. Errors: as `open_as_it_is`."""
    return open_as_it_is(path) or open(path, "ab")


@contextmanager
def written(path: str | Path) -> Iterator[BinaryIO]:
    """What a user named, to be written from its beginning. A file takes its place once it is whole:
    what was there is replaced then, or stays, and a link to it goes on leading there. What is no
    file (a pipe, a device) is written to at once. Errors: OSError, whose `strerror` says what
    stands there instead of a file, or why it cannot be written."""
    if (as_it_is := open_as_it_is(path)) is not None:
        with as_it_is as file:
            yield file
        return
    path = Path(os.path.realpath(path))
    part = path.with_name(path.name + ".part")
    try:
        part.unlink(missing_ok=True)  # of one that was killed; a link would be written through
        with part.open("xb") as file:
            with suppress(OSError):  # a new file; or another user's, who lets this one write it
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            yield file
        os.replace(part, path)
    finally:
        with suppress(OSError):  # where nothing can be written, there is nothing to remove
            part.unlink(missing_ok=True)


def write_given(path: str | Path, data: bytes) -> None:
    """Writes a file that a user named, as `written`. Errors: `RltraceError`."""
    try:
        with written(path) as file:
            file.write(data)
    except OSError as error:
        raise RltraceError(f"cannot write {path}: {error.strerror}") from None


def open_as_it_is(path: str | Path) -> BinaryIO | None:
    """What can be written to but not replaced: a pipe, a device, what this process prints to. None
    for any other file, and where there is nothing. Errors: OSError for what takes nothing."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for number in (1, 2):
        with suppress(OSError):  # the job that called us may have closed it
            if os.path.samestat(os.fstat(number), status):
                # Opened anew, a file would be written from its beginning by both.
                return os.fdopen(os.dup(number), "wb")
    if stat.S_ISREG(status.st_mode):
        return None
    _check(path, status.st_mode, _REFUSED)
    try:
        # Without a reader, opening a pipe would wait for one, perhaps for ever.
        file = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if not stat.S_ISFIFO(status.st_mode) or error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "nobody reads the pipe", str(path)) from None
    os.set_blocking(file, True)
    return os.fdopen(file, "wb")


NONSENSE = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""What it may raise to take what comes from elsewhere for what it should be."""

_MOST_BITS = 1024
_GZIP = b"\x1f\x8b"


def parsed(text: str | bytes, **hooks: Any) -> Any:
    """The value of a JSON text, with `hooks` of `json.loads`. Errors: ValueError, also where it is
    nested too deep."""
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key comes twice in a table")
    return table


def _finite(text: str) -> float:
    if not abs(value := float(text)) < float("inf"):
        raise ValueError(f"{text[:40]} is no finite number")
    return value


STRICTLY = {"object_pairs_hook": _once, "parse_float": _finite, "parse_constant": _finite}
"""Hooks that refuse a key that comes twice, and what is no finite number (NaN is no JSON)."""


def told_in(path: Path) -> dict[str, Any]:
    """What a file tells of a node, a process or itself; {} where it tells nothing readable."""
    with suppress(OSError, ValueError):
        told = parsed(read_own(path))
        return told if isinstance(told, dict) else {}
    return {}


def parsed_toml(text: str) -> dict[str, Any]:
    """The tables of a text. Errors: ValueError, also where it is nested too deep."""
    try:
        tables = tomllib.loads(text)
        _check_whole(tables)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return tables


def toml_given(path: str | Path) -> dict[str, Any]:
    """The tables of a file that a user names. Errors: `RltraceError`, one sentence."""
    try:
        return parsed_toml(text_given(path))
    except OSError as error:
        raise RltraceError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # numbers of thousands of digits, too
        raise WrongUsage(f"{path} is no TOML file: {error}") from None


@cache
def packaged_toml(path: str) -> dict[str, Any]:
    """The tables of a file of this package, by its path in it."""
    return tomllib.loads(resources.files("rltrace").joinpath(path).read_text("utf-8"))


def packaged_tables(pattern: str) -> Iterator[dict[str, Any]]:
    """The tables of each file that the pattern (`adapters/*/log.toml`) names, in their order."""
    folder, _, file = pattern.rpartition("/")
    above, star, _ = folder.partition("/*")
    top = resources.files("rltrace").joinpath(above)
    inner = sorted(one.name for one in top.iterdir() if one.is_dir()) if star else [""]
    for name in inner:
        place = top.joinpath(name) if name else top
        found = sorted(one.name for one in place.iterdir() if fnmatchcase(one.name, file))
        yield from (packaged_toml("/".join(filter(None, (above, name, one)))) for one in found)


def _check_whole(value: object) -> None:
    """Errors: ValueError for a number beyond any float: Python may not even print it."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError("a number has too many digits")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_whole(inner)


def unpacked(data: bytes) -> bytes:
    """What gzip packed, or the data. Errors: ValueError if damaged, cut off or too large."""
    if not data.startswith(_GZIP):
        return data
    parts: list[bytes] = []
    left = bounds.MOST_UNPACKED_BYTES
    try:
        while data:  # members, one after the other
            member = zlib.decompressobj(wbits=31)
            parts.append(member.decompress(data, left))
            left -= len(parts[-1])
            if not member.eof:
                why = "ends too early" if left else "is too large: unpack it first"
                raise ValueError(f"its compressed data {why}")
            data = member.unused_data.lstrip(b"\0")
    except zlib.error:
        raise ValueError("its compressed data is damaged") from None
    whole = b"".join(parts)
    if sum(map(whole.count, (b"{", b"[", b","))) > bounds.MOST_UNPACKED_VALUES:
        raise ValueError("its compressed data has too many values: unpack it first")
    return whole
