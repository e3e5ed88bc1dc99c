"""The compiled kernel, for tests of it."""

from __future__ import annotations

import ctypes
import shutil

import pytest

from rltrace.testing.inside.sync import compiled


def the_kernel() -> ctypes.CDLL:
    """The compiled kernel. Where there is a compiler it has to compile; only a machine without one
    skips the test."""
    library = compiled()
    if library is None:
        assert shutil.which("cc") is None, "the kernel does not compile here"
        pytest.skip("this machine has no C compiler, and rltrace then uses numpy")
    return library
