"""`rltrace top` on the screen of a real terminal, while a job runs and after it was killed."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hooks.conftest import WRAP, clean_environment

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "analysis" / "live" / "job.py"
TRAINER = ROOT / "examples" / "train.py"
TOP = [sys.executable, "-c", "from rltrace.cli import main; main()", "top"]

Start = Callable[..., None]


class Terminal:
    """A tmux server with one window."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended = folder / "exit-code"
        self.base = ["tmux", "-f", "/dev/null", "-S", str(folder / "tmux")]

    def tmux(self, *words: str) -> str:
        return subprocess.check_output([*self.base, *words], text=True)

    def run(self, command: Sequence[str], width: int, height: int) -> None:
        """Starts a command on a screen of `width` x `height` characters. The screen stays when the
        command ends."""
        size = ["-x", str(width), "-y", str(height)]
        keep = ["set-option", "-g", "remain-on-exit", "on", ";"]
        # tmux may see that the terminal was closed before it hears how the command ended, and then
        # never says so.
        told = f"echo $? > {shlex.quote(str(self._ended))}"
        shell = f"trap : INT; {shlex.join(command)}; {told}"
        self.tmux(*keep, "new-session", "-d", *size, "-c", str(self._folder), shell)

    def until(self, holds: Callable[[str], bool], seconds: float = 60) -> str:
        """The screen once something holds for it. Errors: `AssertionError` with the screen, if that
        did not happen in time."""
        deadline = time.monotonic() + seconds
        while not holds(screen := self.tmux("capture-pane", "-p", "-t", ":0")):
            assert time.monotonic() < deadline, screen
            time.sleep(0.1)
        return screen

    def exit_code(self) -> int | None:
        """The command's exit code; None while it runs."""
        said = self._ended.read_text() if self._ended.exists() else ""
        return int(said) if said.endswith("\n") else None


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    yield opened
    subprocess.run([*opened.base, "kill-server"], capture_output=True, check=False)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a script under `rltrace wrap`, its run in `tmp_path/run`; ended with the test."""
    begun: list[subprocess.Popen[bytes]] = []

    def script(*words: str) -> None:
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

    yield script
    for job in begun:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def steps_done(screen: str) -> int:
    found = re.search(r"([\d,]+) steps? done", screen)
    return int(found[1].replace(",", "")) if found else 0


def test_a_trainer_is_shown_until_kill_9(terminal: Terminal, start: Start, tmp_path: Path) -> None:
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

    terminal.tmux("resize-window", "-t", ":0", "-x", "160", "-y", "45")
    terminal.until(lambda s: len(s.splitlines()[0]) > 100)

    told = json.loads((tmp_path / "run" / "run.json").read_text())
    os.kill(told["command_pid"], signal.SIGKILL)
    killed = terminal.until(lambda s: "running" not in s.splitlines()[0], 60)
    assert "killed by SIGKILL (kill -9) after" in killed.splitlines()[0]
    assert re.search(r"controller \(pid \d+ on .*\) died in ", killed)

    terminal.tmux("send-keys", "-t", ":0", "q")
    left = terminal.until(lambda _: terminal.exit_code() is not None, 300)
    assert terminal.exit_code() == 0
    assert "run: killed by SIGKILL (kill -9)" in left


def test_a_job_that_ends_is_said(terminal: Terminal, start: Start, tmp_path: Path) -> None:
    start(str(JOB), "--steps", "6")
    terminal.run([*TOP, "--interval", "0.2", str(tmp_path / "run")], width=100, height=30)
    screen = terminal.until(lambda s: "ended after" in s)
    assert steps_done(screen) == 6
    terminal.tmux("send-keys", "-t", ":0", "C-c")
    terminal.until(lambda _: terminal.exit_code() is not None)
    assert terminal.exit_code() == 0
