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
from pathlib import Path

import pytest

from tests.hooks.conftest import WRAP, clean_environment

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "analysis" / "live" / "job.py"
TRAINER = ROOT / "examples" / "train.py"
TOP = [sys.executable, "-c", "from rltrace.cli import main; main()", "top"]

Start = Callable[..., subprocess.Popen[bytes]]


class Terminal:
    """One tmux server with one window; it dies with `close`, and what runs in it, too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended = folder / "exit-code"
        self._base = ["tmux", "-f", "/dev/null", "-S", str(folder / "tmux")]

    def _tmux(self, *words: str) -> str:
        done = subprocess.run([*self._base, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def run(self, command: Sequence[str], width: int = 120, height: int = 40) -> None:
        """Starts a command on a screen of `width` x `height` characters. The screen stays when the
        command ends."""
        size = ["-x", str(width), "-y", str(height)]
        keep = ["set-option", "-g", "remain-on-exit", "on", ";"]
        # tmux may see that the terminal was closed before it hears how the command ended, and then
        # never says so.
        self._ended.unlink(missing_ok=True)
        told = f"echo $? > {shlex.quote(str(self._ended))}"
        shell = f"trap : INT; {shlex.join(command)}; {told}"
        self._tmux(*keep, "new-session", "-d", *size, "-c", str(self._folder), shell)

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-t", ":0")

    def until(self, holds: Callable[[str], bool], seconds: float = 60) -> str:
        """The screen once something holds for it. Errors: `AssertionError` with the screen, if that
        did not happen in time."""
        deadline = time.monotonic() + seconds
        while not holds(screen := self.screen()):
            assert time.monotonic() < deadline, screen
            time.sleep(0.1)
        return screen

    def type(self, *keys: str) -> None:
        """Presses keys, by tmux's names: `type("q")`, `type("C-c")`."""
        self._tmux("send-keys", "-t", ":0", *keys)

    def resize(self, width: int, height: int) -> None:
        """Gives the screen another size, in characters."""
        self._tmux("resize-window", "-t", ":0", "-x", str(width), "-y", str(height))

    def exit_code(self) -> int | None:
        """The command's exit code; None while it runs."""
        said = self._ended.read_text() if self._ended.exists() else ""
        return int(said) if said.endswith("\n") else None

    def close(self) -> None:
        subprocess.run([*self._base, "kill-server"], capture_output=True, check=False)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    yield opened
    opened.close()


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


def test_a_job_that_ends_is_said(terminal: Terminal, start: Start, tmp_path: Path) -> None:
    start(str(JOB), "--steps", "6")
    terminal.run([*TOP, "--interval", "0.2", str(tmp_path / "run")], width=100, height=30)
    screen = terminal.until(lambda s: "ended after" in s)
    assert steps_done(screen) == 6
    terminal.type("C-c")
    terminal.until(lambda _: terminal.exit_code() is not None)
    assert terminal.exit_code() == 0
