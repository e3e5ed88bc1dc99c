"""`rltrace top` on the screen of a real terminal, while a job runs and after it was killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hooks.conftest import WRAP, clean_environment
from tests.system.terminal import Terminal

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "analysis" / "live" / "job.py"
TRAINER = ROOT / "examples" / "train.py"
TOP = [sys.executable, "-c", "from rltrace.cli import main; main()", "top"]

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a script under `rltrace wrap`, its run in `tmp_path/run`; ended with the test."""
    begun: list[subprocess.Popen[bytes]] = []

    def script(*words: str) -> subprocess.Popen[bytes]:
        job = subprocess.Popen(
            [*WRAP, "--out", str(tmp_path / "run"), "--", sys.executable, *words],
            cwd=tmp_path,
            env=clean_environment(RAY_memory_monitor_refresh_ms="0"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        begun.append(job)
        while not (tmp_path / "run" / "run.json").exists():
            assert job.poll() is None
        return job

    yield script
    for job in begun:
        try:
            os.killpg(job.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        job.wait()


def command_pid(run: Path) -> int:
    return int(json.loads((run / "run.json").read_text())["command_pid"])


def steps_done(screen: str) -> int:
    found = re.search(r"([\d,]+) steps? done", screen)
    return int(found[1].replace(",", "")) if found else 0


def test_a_live_run_of_the_trainer_and_its_end_by_kill_9(
    terminal: Terminal, start: Start, tmp_path: Path
) -> None:
    start(str(TRAINER), "--steps", "100000")
    terminal.run([*TOP, str(tmp_path / "run")], width=80, height=24)
    screen = terminal.until(lambda s: steps_done(s) >= 2 and "learner" in s, 900)
    lines = screen.splitlines()
    assert len(lines) <= 24
    assert re.match(r"rltrace top · run.* running, ", lines[0])
    for said in ("tokens/s", "lag 0", "GB/s", "cores busy", "stages, the last", "τ_R", "τ_T"):
        assert said in screen
    for role in ("rollout", "reward", "reference", "learner", "controller"):
        assert re.search(rf"^  {role} +\d+ ", screen, re.MULTILINE), role
    before = steps_done(screen)
    terminal.until(lambda s: steps_done(s) > before, 300)  # it goes on by itself

    terminal.resize(160, 45)
    wide = terminal.until(lambda s: "last steps" in s)
    assert re.search(r"stages, the last.*slowest in flight", wide)

    os.kill(command_pid(tmp_path / "run"), signal.SIGKILL)
    killed = terminal.until(lambda s: "running" not in s.splitlines()[0], 60)
    assert "killed by SIGKILL (kill -9) after" in killed.splitlines()[0]
    assert re.search(r"controller \(pid \d+ on .*\) ended in ", killed)

    terminal.type("q")
    left = terminal.until(lambda _: terminal.exit_code() is not None, 300)
    assert terminal.exit_code() == 0
    assert "run: killed by SIGKILL (kill -9)" in left


def test_a_job_that_ends_is_said_to_have_ended(
    terminal: Terminal, start: Start, tmp_path: Path
) -> None:
    start(str(JOB), "--steps", "6")
    terminal.run([*TOP, "--interval", "0.2", str(tmp_path / "run")], width=100, height=30)
    screen = terminal.until(lambda s: "ended after" in s)
    assert steps_done(screen) == 6
    terminal.type("C-c")
    terminal.until(lambda _: terminal.exit_code() is not None)
    assert terminal.exit_code() == 0
