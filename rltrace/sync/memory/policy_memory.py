"""Where a policy's weights lie on this host, and whether they fit there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rltrace.trace.errors import RltraceError, WrongUsage

_SCHEME = "shm://"
_ON_DEVICE = "cuda://"
_MARK = "cuda+"  # begins the folder's name, as no name of a policy does
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_ENLARGE = ', enlarge it, or name another folder: where="shm:///folder/policy"'
_MOST_NAME_BYTES = 255
_MOST_PATH_BYTES = 3840  # of the kernel's 4,096; the rest is for the files in the folder
JOINED = "rltrace-joined"  # beside the policies: how the workers of this host share its relays
TOKEN_FILE = "sync-token"  # beside the policies: the secret that this user's processes share


def shared_memory() -> Path:
    """The folder that holds the policies of this user: shared memory, and nobody else's to read."""
    return Path("/dev/shm") / f"rltrace-{os.getuid()}"


def is_on_device(where: str) -> bool:
    return isinstance(where, str) and where.startswith(_ON_DEVICE)


def folder_of(where: str) -> Path:
    """`shm://policy` is a folder in shared memory; `shm:///mnt/ram/policy` that folder, on any file
    system that can be mapped (one in memory, or all is written out); `cuda://` one beside it, for
    small files: the weights are not there. Errors: `RltraceError`."""
    if is_on_device(where):
        beside = folder_of(_SCHEME + where.removeprefix(_ON_DEVICE))
        return beside.with_name(_MARK + beside.name)
    rest = where.removeprefix(_SCHEME) if isinstance(where, str) else where
    if rest != where and (
        _NAME.fullmatch(rest) or (rest[:1] == "/" and Path(rest).name and "\0" not in rest)
    ):
        folder = shared_memory() / rest  # a path from / on stays what it is
        _check_length(folder)
        if folder in (shared_memory() / JOINED, shared_memory() / TOKEN_FILE):
            said = f"{where} is where rltrace keeps files of its own: give the policy another name"
            raise WrongUsage(said)
        return folder
    said = f"{where!r:.200} says no place for weights: shm://NAME (letters, digits, - _ .) or"
    raise WrongUsage(f"{said} shm:///DIR; cuda://NAME in a device's memory")


def where_of(name: str) -> str:
    """The place whose folder has that name in `shared_memory()`."""
    on_device = name.startswith(_MARK)
    return _ON_DEVICE + name.removeprefix(_MARK) if on_device else _SCHEME + name


def check_in_memory(where: str) -> None:
    """Errors: `RltraceError` for a place whose weights are no bytes of the host's."""
    if is_on_device(where):
        said = f"{where} lies in a device's memory, from which no other host is served"
        raise WrongUsage(f"{said}: publish to shm:// as well")


def make_folder(folder: Path) -> None:
    """Makes the folder, for this user only. Errors: `RltraceError` where that cannot be done."""
    try:
        for made in (folder.parent, folder):
            made.mkdir(mode=0o700, exist_ok=True)
            if made in (folder, shared_memory()) and made.stat().st_uid != os.getuid():
                raise RltraceError(f"{made} belongs to another user")
    except OSError as error:
        raise RltraceError(f"cannot make {folder} for weights: {error.strerror}") from error


def available_bytes() -> int:
    known = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
    return int(known.get("MemAvailable:", known["MemFree:"])) << 10


def check_room(folder: Path, size_bytes: int) -> None:
    """Errors: `RltraceError` where fewer bytes than that are free; it says both."""
    free = _free_bytes(folder)
    if size_bytes > free:
        raise no_room(f"in {folder}", size_bytes, free, _ENLARGE)


def reserve(path: Path, size_bytes: int, head: bytes) -> None:
    """Makes a file of that size that begins with `head`, whole or not at all, with memory for all:
    a hole would end the process with SIGBUS. Errors: `RltraceError` with the bytes that lack."""
    check_room(path.parent, size_bytes)
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    try:
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            os.posix_fallocate(fd, 0, size_bytes)
            file.write(head)
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        where = f"in {path.parent} ({error.strerror})"
        raise no_room(where, size_bytes, _free_bytes(path.parent), _ENLARGE) from error


def no_room(where: str, size_bytes: int, free: int, other: str = "") -> RltraceError:
    """Says so, and what to do: take fewer slots, or `other`."""
    said = f"no room for weights {where}: {size_bytes / 1e6:,.1f} MB more are needed and"
    return RltraceError(f"{said} {free / 1e6:,.1f} MB are free; take fewer slots{other}")


def _check_length(folder: Path) -> None:
    longest = max(len(os.fsencode(part)) for part in folder.parts)
    if longest > _MOST_NAME_BYTES or len(os.fsencode(folder)) > _MOST_PATH_BYTES:
        said = f"the place for weights that begins with {str(folder)[:60]} has too long a name"
        most = f"at most {_MOST_NAME_BYTES} bytes, and {_MOST_PATH_BYTES} with all folders above"
        raise WrongUsage(f"{said}: {most}")


def _free_bytes(folder: Path) -> int:
    """What can be written there: also no more than the machine has, where that is memory."""
    room = os.statvfs(folder)
    free, device = room.f_bavail * room.f_frsize, folder.stat().st_dev
    is_memory = any(
        mount.split(" - ", 1)[1].startswith("tmpfs ")
        and mount.split()[2] == f"{os.major(device)}:{os.minor(device)}"
        for mount in Path("/proc/self/mountinfo").read_text().splitlines()
    )
    return min(free, available_bytes()) if is_memory else free
