"""Where runs are shipped to: a folder at a URL, and packs.

    <url>/run.json             the run, as its first node knows it
    <url>/nodes/<node>.json    the agent of a node, and whether all of the node is there
    <url>/packs/<...>          what changed on a node (`pack`, `pack_name`)

fsspec is imported when a URL is opened; it takes credentials from where it always does (the
environment, the cloud's own tools), and none are stored.

Rows of a segment are filled in place, and an object store can neither append nor change. So a node
writes a journal: each pack holds the pieces of files that changed since the pack before, and all of
a node's packs in order make its files. A pack is whole or none: its digest is in front.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rltrace.trace.errors import RltraceError, WrongUsage, first_line
from rltrace.trace.read import bounds
from rltrace.trace.run_dir import CLOCKS, ENDS, NAMES, NODES, PROBLEMS, PROCESS
from rltrace.trace.safe_open import opened, opener
from rltrace.trace.schema import TABLES
from rltrace.trace.segment import write_all
from rltrace.trace.untrusted_files import open_own, parsed, read_own

PACKS = "packs"
INSTALL = "pip install 'rltrace-toolkit[ship]'"

_PACK_NAME = re.compile(r"([A-Za-z0-9_.~-]{1,150})\.(\d{1,19})\.(\d{8,12})-(\d{8,12})")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "adl", "oss", "ocilake", "oci", "hf"}
_MOST_TOLD_BYTES = 1 << 20  # of a file that describes a run or a node
_AT_ONCE = 16
MOST_PACKED_BYTES = 64 << 20  # of a stored pack, and of its pieces together
_NEEDED = re.compile(r'"([A-Za-z][\w-]*)')
"""How fsspec names packages that a filesystem needs: `requires "paramiko" to be`."""
_LACKS_CREDENTIALS = re.compile(r"credential|forbidden|access ?denied|unauthori[sz]ed", re.I)
_CREDENTIALS = (
    "credentials are taken from where the filesystem's own tools take them (the environment, "
    "~/.aws, ...)"
)


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def is_local(url: str) -> bool:
    """Whether it is on a disk that is mounted here."""
    return urlsplit(url).scheme in ("file", "local")


def check_url(url: str) -> str:
    """The URL without a last slash. Errors: `RltraceError` for credentials, or what is unknown."""
    if not is_url(url):
        raise WrongUsage(f"{url} is no URL: give one such as s3://bucket/runs or file:///mnt/runs")
    refuse_credentials(url)
    parts = urlsplit(url)
    if not (parts.netloc or parts.path.strip("/")):
        message = f"{url} names no folder: give one such as s3://bucket/runs or file:///mnt/runs"
        raise WrongUsage(message)
    _check_installed(url, parts.scheme)
    return f"{parts.scheme}{url[len(parts.scheme) :]}".rstrip("/")  # fsspec knows none in capitals


def refuse_credentials(url: str) -> None:
    """Errors: `RltraceError`, which does not repeat it, for a URL with a password, or a key in the
    place of a user (elsewhere that is a container or an account), and for what is no URL."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise WrongUsage(f"this is no URL: {error}") from None
    if parts.password or (parts.username and parts.scheme.startswith(("s3", "http"))):
        said = "the URL holds credentials, and it is kept with the run: leave them out"
        raise WrongUsage(f"{said}; {_CREDENTIALS}")


def _check_installed(url: str, protocol: str) -> None:
    if find_spec("fsspec") is None:
        raise _not_installed(url, f"{protocol}:// needs fsspec", INSTALL)
    from fsspec.registry import get_filesystem_class, known_implementations

    try:
        known = known_implementations.get(protocol)
        package = "fsspec" if known is None else known["class"].split(".")[0]
        if find_spec(package) is None:
            raise _not_installed(url, f"{protocol}:// needs {package}", f"{INSTALL} {package}")
        if package == "fsspec":  # its own, or one that a package of the user's has registered
            get_filesystem_class(protocol)
    except ValueError:
        message = f"{url}: no filesystem is known for {protocol}:// (fsspec has none of that name)"
        raise WrongUsage(message) from None
    except ImportError as error:
        named = dict.fromkeys(_NEEDED.findall(str(error)))
        needed = [name for name in named if find_spec(name) is None]
        needs = f"{protocol}:// needs {' and '.join(needed)}" if needed else first_line(error)
        raise _not_installed(url, needs, " ".join((INSTALL, *needed))) from None


def _not_installed(url: str, needs: str, install: str) -> RltraceError:
    return WrongUsage(f"{url} cannot be opened here: {needs}, which is not installed: {install}")


def unreached(url: str, error: OSError) -> RltraceError:
    """What is said of a URL that cannot be read or written, in one sentence."""
    if error.filename:  # a file here
        return RltraceError(f"{url} cannot be reached: {error.filename}: {error.strerror}")
    why = error.strerror or first_line(error)
    refused = isinstance(error, PermissionError) or _LACKS_CREDENTIALS.search(why)
    return RltraceError(f"{url} cannot be reached: {why}{f'; {_CREDENTIALS}' if refused else ''}")


class Store:
    """A folder at a URL; `is_local`: on a disk mounted here. All failures are OSErrors."""

    def __init__(self, url: str) -> None:
        """Errors: `RltraceError` as `check_url`; OSError when the filesystem cannot be opened."""
        self.url = check_url(url)
        import fsspec

        with _as_os_error():
            try:
                self._files, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
            except ImportError as error:
                message = f"{self.url} cannot be opened here: {first_line(error)}"
                raise WrongUsage(message) from None
        self._root = str(root).rstrip("/")
        self._has_folders = urlsplit(self.url).scheme not in _OBJECT_STORES
        self.is_local = is_local(self.url)

    def create(self) -> None:
        """Makes a run's folders as it begins; later, with a disk away, they would be beneath it."""
        if self._has_folders:
            with _as_os_error():
                for folder in (PACKS, NODES):
                    self._files.makedirs(self._path(folder), exist_ok=True)

    def try_out(self) -> None:
        """Makes the folder, and for a moment one in it. Errors: OSError where that cannot be."""
        name = self._path(f".rltrace-{os.urandom(3).hex()}")
        with _as_os_error():
            self._files.makedirs(name, exist_ok=True)
            self._files.rmdir(name)

    def put(self, name: str, data: bytes) -> None:
        """Writes a file at once."""
        with _as_os_error():
            self._files.pipe_file(self._path(name), data)

    def get(self, name: str) -> bytes | None:
        """What a small file holds; None where there is none."""
        with _as_os_error(), suppress(FileNotFoundError):
            return self._whole(self._path(name), _MOST_TOLD_BYTES)
        return None

    def get_json(self, name: str) -> dict[str, Any] | None:
        """As `get`, of a file with an object; None also where it holds something else."""
        with suppress(ValueError):
            loaded = parsed(self.get(name) or b"null")
            return loaded if isinstance(loaded, dict) else None
        return None

    def sizes(self, folder: str = "", deep: bool = False) -> dict[str, int]:
        """The files of a folder (`deep`: and below it) by name, with their bytes."""
        path = self._path(folder)
        inside = [entry for entry in self._listed(path, deep) if entry["type"] == "file"]
        return {_below(entry["name"], path): int(entry["size"] or 0) for entry in inside}

    def folders(self) -> list[str]:
        inside = [entry for entry in self._listed(self._root) if entry["type"] == "directory"]
        return sorted(_below(entry["name"], self._root) for entry in inside)

    def is_folder(self) -> bool:
        """Whether there is such a folder; in an object store, one with something in it."""
        with _as_os_error():
            self._files.invalidate_cache()
            return bool(self._files.isdir(self._root))

    def read(self, sizes: dict[str, int]) -> Iterator[tuple[str, bytes]]:
        """Files by name, some at once, in this order. One longer than a pack comes as nothing."""
        batch: list[str] = []
        held = 0
        for name, size in sizes.items():
            if len(batch) == _AT_ONCE or held + size > MOST_PACKED_BYTES:
                yield from self._together(batch)
                batch, held = [], 0
            if size > MOST_PACKED_BYTES:
                yield name, b""
            else:
                batch.append(name)
                held += size
        yield from self._together(batch)

    def delete(self, names: list[str]) -> None:
        with _as_os_error():
            for name in names:
                self._files.rm_file(self._path(name))

    def copy(self, name: str, path: str) -> None:
        with _as_os_error():
            if self.is_local:  # a pipe would be waited for
                os.close(open_own(self._path(name))[0])
            self._files.get_file(self._path(name), path)

    def _listed(self, path: str, deep: bool = False) -> list[dict[str, Any]]:
        with _as_os_error(), suppress(FileNotFoundError):
            self._files.invalidate_cache()
            if deep:
                return list(self._files.find(path, detail=True).values())
            return list(self._files.ls(path, detail=True))
        return []

    def _together(self, names: list[str]) -> Iterator[tuple[str, bytes]]:
        with ThreadPoolExecutor(_AT_ONCE) as pool, _as_os_error():
            found = [*pool.map(self._whole, map(self._path, names))]
        yield from zip(names, found, strict=True)

    def _whole(self, path: str, most: int = MOST_PACKED_BYTES) -> bytes:
        """What a file holds, or its first `most` bytes; of this machine a plain one only."""
        if self.is_local:
            return read_own(path, most=most)
        return bytes(self._files.cat_file(path, start=0, end=most))

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name) if name else self._root


@dataclass(frozen=True)
class PackName:
    """A pack by its name: its stream (whose, and since when), its number there, and that of the
    pack taken before it (0: it is the first). A merged one has the last number of its parts."""

    name: str
    node: str
    stream: str
    began_ns: int
    number: int
    after: int


def pack_name(stream: str, number: int, after: int) -> str:
    """`stream` is `<node>.<Unix ns at which it began>`."""
    return f"{stream}.{number:08d}-{after:08d}"


def parse_pack_name(name: str) -> PackName | None:
    """What a pack's name says; None for another file."""
    found = _PACK_NAME.fullmatch(name)
    if found is None:
        return None
    node, began, number, after = found.groups()
    return PackName(name, node, f"{node}.{began}", int(began), int(number), int(after))


def child(url: str, name: str) -> str:
    return f"{url.rstrip('/')}/{name}"


def _below(path: str, folder: str) -> str:
    return str(path).rstrip("/").removeprefix(folder).strip("/")


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Filesystems raise whatever their libraries do."""
    try:
        yield
    except (OSError, RltraceError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {first_line(error)}") from error


_MAGIC = b"RLTPACK1"
_DIGEST_BYTES = 16
_LEVEL = 1  # most of what is shipped is space not used yet, which any level makes nothing of
_NAME = re.compile(r"(?!\.)[A-Za-z0-9_.~-]{1,200}")
_GROWING = (NAMES, PROBLEMS, ENDS, CLOCKS, *TABLES)


class NotAPack(ValueError):
    """The bytes are no pack, or one that was cut or changed."""


@dataclass(frozen=True)
class Piece:
    """Bytes at `offset` of a file in the run's directory; a `replaced` file is only these."""

    path: str
    offset: int
    data: bytes
    replaced: bool = False


def is_replaced(path: str) -> bool:
    """Whether a file is written anew as a whole; others grow or are filled."""
    return path.partition("/")[0] == PROCESS


def pack(pieces: Iterable[Piece]) -> bytes:
    pieces = list(pieces)
    index = [[piece.path, piece.offset, len(piece.data), piece.replaced] for piece in pieces]
    head = json.dumps(index, separators=(",", ":")).encode()
    body = b"".join([len(head).to_bytes(8, "little"), head, *(piece.data for piece in pieces)])
    packed = zlib.compress(body, _LEVEL)
    return _MAGIC + _digest(packed) + packed


def unpack(data: bytes) -> list[Piece]:
    """The pieces of a pack, in their order. Errors: `NotAPack`."""
    packed = data[len(_MAGIC) + _DIGEST_BYTES :]
    if data[: len(_MAGIC)] != _MAGIC:
        raise NotAPack("it is no pack of rltrace")
    if data[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES] != _digest(packed):
        raise NotAPack("it was cut or changed")
    try:
        opened = zlib.decompressobj()
        body = memoryview(opened.decompress(packed, MOST_PACKED_BYTES))
        if not opened.eof:
            raise NotAPack("it is longer than any that rltrace writes")
        at = 8 + int.from_bytes(body[:8], "little")
        pieces = []
        for path, offset, size, replaced in parsed(bytes(body[8:at])):
            piece = Piece(path, offset, bytes(body[at : at + size]), replaced)
            pieces.append(_checked(piece, size))
            at += size
    except (zlib.error, TypeError, ValueError) as error:
        raise NotAPack(str(error)) from None
    return pieces


def apply(pieces: Iterable[Piece], folder: Path) -> None:
    """Puts the pieces into their files below `folder`. Errors: OSError."""
    for piece in pieces:
        path = folder / piece.path
        path.parent.mkdir(exist_ok=True)
        if piece.replaced:
            written = path.with_name(f"{path.name}.{os.getpid()}.tmp")
            with open(written, "wb", opener=opener) as whole:
                whole.write(piece.data)
            written.replace(path)
            continue
        with opened(path, os.O_WRONLY | os.O_CREAT) as file:
            write_all(file, piece.data, piece.offset)


def can_hold(name: str) -> bool:
    """Whether a file of this name can be in a pack, as those that rltrace makes."""
    return _NAME.fullmatch(name) is not None


def _checked(piece: Piece, size: object) -> Piece:
    """Errors: `NotAPack` for a piece that no node ships: it could lie outside the run."""
    if not isinstance(piece.path, str) or type(piece.offset) is not int or type(size) is not int:
        raise NotAPack("a piece is not described as one")
    folder, slash, name = piece.path.partition("/")
    if folder not in (PROCESS, *_GROWING) or not slash or not can_hold(name):
        raise NotAPack(f"no run has a file {piece.path!r}")
    if (
        len(piece.data) != size
        or piece.offset < 0
        or piece.offset + size > bounds.MOST_SEGMENT_BYTES
    ):
        raise NotAPack(f"a piece of {piece.path} is not as long as it says")
    return piece


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
