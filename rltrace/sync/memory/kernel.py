"""Compiles kernel.c where there is a compiler, into the user's cache.

Nothing depends on it: without it, or with `RLTRACE_SYNC_KERNEL=off`, numpy does the same, slower.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from rltrace.trace.job_exceptions import contained
from rltrace.trace.untrusted_files import packaged_toml

SWITCH = "RLTRACE_SYNC_KERNEL"
_SOURCE = Path(__file__).with_name("kernel.c")
_FLAGS = ("-O3", "-shared", "-fPIC")
_PATIENCE_S = 60.0


class Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


_TYPES: dict[str, Any] = {
    "p": ctypes.c_void_p, "n": ctypes.c_int64, "i": ctypes.c_int, "s": ctypes.c_char_p,
    "d": ctypes.c_uint64, "h": Handle,
}  # fmt: skip


def typed(library: ctypes.CDLL, name: str) -> ctypes.CDLL:
    """The library, its functions typed: those that libraries.toml has of it."""
    for function, (answer, given) in packaged_toml("sync/libraries.toml")[name].items():
        found = getattr(library, function)
        found.restype, found.argtypes = _TYPES.get(answer), [_TYPES[kind] for kind in given]
    return library


@cache
def compiled() -> ctypes.CDLL | None:
    """The compiled kernel, its functions typed; None where it is switched off or cannot be had."""
    if os.environ.get(SWITCH) == "off" or sys.byteorder != "little":
        return None
    with contained(OSError, subprocess.SubprocessError):
        return typed(ctypes.CDLL(str(_built())), "kernel")
    return None


def _built() -> Path:
    """The library's file, made if need be. Errors: `OSError`, `SubprocessError` where it cannot."""
    source = _SOURCE.read_bytes()
    made_of = repr((source, _FLAGS, platform.machine(), platform.libc_ver())).encode()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rltrace"
    library = folder / f"kernel-{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    if not library.exists():
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise FileNotFoundError("no C compiler")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            fresh = Path(work) / "kernel.so"
            subprocess.run(
                [compiler, *_FLAGS, "-o", str(fresh), str(_SOURCE)],
                check=True,
                capture_output=True,
                timeout=_PATIENCE_S,
            )
            fresh.replace(library)  # at once: other processes do the same now
    about = library.stat()
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise PermissionError(f"{library} can be written by others")
    return library
