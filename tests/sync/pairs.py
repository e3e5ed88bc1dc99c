"""A publisher and a subscriber of one policy, programs that are processes, the compiled kernel."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rltrace.sync import Publisher, Subscriber, layout_of
from rltrace.testing.inside.sync import compiled
from tests.patience import PATIENCE_S

Pair = tuple[Publisher, Subscriber]


@contextmanager
def pair(where: str, weights: Any, **wishes: Any) -> Iterator[Pair]:
    """Those of a policy with the layout of these weights, of which no version is there yet."""
    with (
        Publisher.open(layout_of(weights), where, **wishes) as publisher,
        Subscriber.connect(where) as subscriber,
    ):
        yield publisher, subscriber


@contextmanager
def published(where: str, weights: Any, **wishes: Any) -> Iterator[Subscriber]:
    """A subscriber of these weights, which are published."""
    with pair(where, weights, **wishes) as (publisher, subscriber):
        assert publisher.publish(weights) is not None
        yield subscriber


@contextmanager
def running(code: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process of that program, which ends with the block."""
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """What it prints next."""
    return process.stdout.readline().strip()


def said(code: str, *words: str) -> list[str]:
    """The lines that a program prints, which does not fail."""
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def the_kernel() -> ctypes.CDLL:
    """The compiled kernel. Where there is a compiler it has to compile; only a machine without one
    skips the test."""
    library = compiled()
    if library is None:
        assert shutil.which("cc") is None, "the kernel does not compile here"
        pytest.skip("this machine has no C compiler, and rltrace then uses numpy")
    return library
