"""Runs made by real processes that record through the public API."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rltrace.testing.inside.hooks import recorder as recording
from rltrace.testing.inside.hooks import start as start_capturing
from rltrace.testing.inside.trace import create_run
from tests.patience import PATIENCE_S

Record = Callable[..., subprocess.CompletedProcess[str]]
MadeOnce = Callable[[str, Callable[[Path], object]], Path]

# What a shell runs in the background ignores Ctrl-C, and so would all jobs that tests begin.
signal.signal(signal.SIGINT, signal.default_int_handler)

_PREAMBLE = """
import os, sys, rltrace
recorder = __import__(os.environ["RECORDER"], fromlist=["start"])
recorder.start(os.environ["RECORD_INTO"])
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs another environment is no test here: it is not collected, and not skipped."""
    there: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        lacks = any(mark.args[0] for mark in item.iter_markers("elsewhere"))
        (left_out if lacks else there).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = there


@pytest.fixture(autouse=True)
def _as_fast_as_before() -> Iterator[None]:
    """A test leaves the process that runs it, and with it all tests and jobs after it, its share of
    the machine."""
    before = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
    yield
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)) == before


@pytest.fixture(scope="session")
def made_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """`made_once(name, make)`: a folder that `make(folder)` fills, once in a test session,
    whichever of its processes (`pytest -n`) asks first; the others wait for it. Not to be written
    into."""
    base = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # a worker of pytest-xdist has a folder in the base
        base = base.parent

    def folder_of(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = base / f"once-{name}", base / f"once-{name}.done"
        with open(base / f"once-{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of one that failed
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return folder_of


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """An empty run directory."""
    path = tmp_path / "run"
    create_run(str(path), ["python", "train.py"], {}, "test")
    return path


@pytest.fixture
def recorder(run_path: Path) -> Iterator[recording.Recorder]:
    """This process records into `run_path`."""
    started = recording.start(str(run_path))
    assert started is not None
    yield started
    recording.stop()


@pytest.fixture
def capturing(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[recording.Recorder]:
    """This process records into `run_path`, as under `wrap --capture-tokens`."""
    monkeypatch.setattr(recording, "capture_tokens", None)
    start_capturing()
    started = recording.start(str(run_path))
    assert started is not None
    yield started
    recording.stop()


@pytest.fixture
def record(run_path: Path) -> Record:
    """Runs a program that records into `run_path`; returns the finished process. It starts its
    recorder itself: how `wrap` brings one into a process is tested in test_ways_in."""

    def go(program: str, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        return recorded(run_path, program, check, **env)

    return go


def recorded(
    run: Path, program: str, check: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program that records into a run directory."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RLTRACE_")}
    environment |= {"RECORD_INTO": str(run), "RECORDER": recording.__name__, **env}
    done = subprocess.run(
        [sys.executable, "-c", _PREAMBLE + program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done
