"""Jobs of real frameworks, run as a user starts them, and what they leave: what the suites of all
frameworks share."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import rltrace
from rltrace.testing.inside.trace import Run
from tests.hooks.conftest import clean_environment

ROOT = Path(__file__).parents[1]
LIMIT_S = 1500  # of one job, which takes half a minute to two on idle cores
LAST_WORDS_S = 60  # of one that was asked to end

RAY = {
    "RAY_memory_monitor_refresh_ms": "0",  # it kills for the memory of other programs
    "RAY_raylet_start_wait_time_s": "180",
}
"""The environment of a job that starts a Ray cluster of its own."""

Meanwhile = Callable[["subprocess.Popen[bytes]"], None]
"""What is done while a job runs; it may end the job."""

JobT = TypeVar("JobT")


@dataclass(frozen=True)
class Ended(Generic[JobT]):
    """A job that has ended with `code`: what it printed, what its own code stamped and, if traced,
    the run."""

    job: JobT
    folder: Path
    code: int = 0

    @cached_property
    def run(self) -> Run:
        """The trace."""
        return rltrace.open_run(self.folder / "run")

    @cached_property
    def log(self) -> str:
        """All that the job printed."""
        return (self.folder / "log").read_text(errors="replace")

    def stamps(self, what: str) -> list[dict[str, Any]]:
        """What the job's own code wrote down, in order of its start."""
        return written(self.folder / "stamps", what, "start_ns")

    def rows(self, query: str) -> list[Any]:
        """The rows of a query on the trace; bare values where it has one column."""
        found = self.run.sql(query).fetchall()
        return [row[0] if len(row) == 1 else row for row in found]

    def checked(self, code: int | None) -> None:
        """Errors: `AssertionError`, with the end of what it printed, where it has ended with
        another code; `None` is any."""
        assert code is None or self.code == code, self.log[-8000:]


def written(folder: Path, what: str, by: str) -> list[dict[str, Any]]:
    """What the processes of a job wrote down there, one line of JSON each, in order `by` a time."""
    files = folder.glob(f"{what}-*.jsonl")
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted(found, key=lambda line: line[by])


def run_job(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    meanwhile: Meanwhile = lambda process: None,
) -> int:
    """Runs a command to its end in a folder, with what it prints in `log` there; its exit code.
    Nothing of it is left where it takes too long, or `meanwhile` raises."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            meanwhile(process)
            return process.wait(LIMIT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(LAST_WORDS_S)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            raise


def ended_when(hangs: Callable[[], bool]) -> Meanwhile:
    """Sends SIGTERM to a job once it hangs, and then waits no longer than for its last words."""

    def watch(process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < until and not hangs():
            time.sleep(0.2)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(LAST_WORDS_S)

    return watch


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def made_by(maker: Path, folder: Path) -> Path:
    """Models, tokenizers and prompts that a script makes in a folder; no network."""
    subprocess.run([sys.executable, str(maker), str(folder)], check=True, env=clean_environment())
    return folder
