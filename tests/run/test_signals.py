"""Signals under `rltrace wrap`: the command gets each as often as it would without us."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from rltrace.run.child_process import GRACE_S, run_child
from tests.hooks.conftest import WRAP, clean_environment
from tests.patience import PATIENCE_S, until
from tests.run.test_wrap import started

PY = sys.executable

COUNTING = """
import os, signal, sys, time
got = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: got.append(signal.Signals(number).name))
if "leave" in sys.argv:
    os.setpgid(0, 0)
print("ready", os.getpid(), flush=True)
due = int(sys.argv[1])
end = time.monotonic() + 120
while len(got) < due and time.monotonic() < end: time.sleep(0.01)
time.sleep(0.7)  # one more would come
open("got", "w").write(" ".join(got))
print(*got, flush=True)
"""


def start(cwd: Path, *words: str, due: int = 1) -> tuple[subprocess.Popen[str], int, int]:
    """Starts the counting program, which waits for so many signals, in a process group of its own:
    wrap, whose number is also the group's, and the program's own number."""
    process = started(
        cwd,
        *("--", PY, "-c", COUNTING, str(due), *words),
        stderr=subprocess.DEVNULL,
        preexec_fn=os.setpgrp,
    )
    assert process.stdout is not None
    ready, pid = process.stdout.readline().split()
    assert ready == "ready"
    members = {process.pid} if "leave" in words else {process.pid, int(pid)}
    until(lambda: _group(process.pid) > members)  # the canary is there
    return process, process.pid, int(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
@pytest.mark.parametrize("to", ["wrap", "group", "both"])
def test_a_signal_arrives_once(tmp_path: Path, number: signal.Signals, to: str) -> None:
    """`both` is what `timeout` does, one right after the other."""
    took_s = float("inf")
    while took_s > GRACE_S / 2:  # else somebody had the machine in between: not what it does
        process, group, _ = start(tmp_path)
        begin = time.monotonic()
        if to != "group":
            os.kill(group, number)
        if to != "wrap":
            os.killpg(group, number)
        took_s = time.monotonic() - begin
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert out == f"{number.name}\n"
    told = max(tmp_path.glob("rltrace-runs/*/run.json"))  # the last of them
    assert json.loads(told.read_text("utf-8"))["signals"] == [number]


@pytest.mark.parametrize("number", [signal.SIGXCPU, signal.SIGALRM, signal.SIGRTMAX])
def test_wrap_ends_as_the_job_that_a_signal_ends(tmp_path: Path, number: signal.Signals) -> None:
    process, wrap, job = start(tmp_path)
    os.kill(wrap, number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert not os.path.exists(f"/proc/{job}")


@pytest.mark.slow
def test_signals_one_after_the_other_all_arrive(tmp_path: Path) -> None:
    """What was sent to the group before says nothing about what is sent to wrap alone now."""
    process, group, _ = start(tmp_path, due=3)
    os.killpg(group, signal.SIGUSR1)
    time.sleep(1)  # what comes sooner counts as the same
    os.kill(group, signal.SIGUSR1)
    time.sleep(1)
    os.kill(group, signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert out == "SIGUSR1 SIGUSR1 SIGTERM\n"


def test_the_groups_signals_reach_a_command_that_left_the_group(tmp_path: Path) -> None:
    process, group, _ = start(tmp_path, "leave")
    os.killpg(group, signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert out == "SIGTERM\n"


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU])
def test_a_stopped_job_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-Z, a signal for the group meanwhile, `fg`."""
    process, group, _ = start(tmp_path)
    os.killpg(group, number)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.killpg(group, signal.SIGUSR1)
    time.sleep(0.3)
    os.killpg(group, signal.SIGCONT)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (out, process.returncode) == ("SIGUSR1\n", 0)


@pytest.mark.parametrize("got", ["SIGHUP", "SIGINT"])
def test_what_a_terminal_says_reaches_the_command_once(tmp_path: Path, got: str) -> None:
    """That it goes away the kernel tells the session's leader alone, which is wrap here; Ctrl-C it
    tells all in the foreground."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(PY, [*WRAP, "--", PY, "-c", COUNTING, "1"], clean_environment())
    text = b""
    while b"ready" not in text:
        text += os.read(terminal, 1024)
    until(lambda: len(_group(pid)) == 3)  # the canary is there
    if got == "SIGINT":
        os.write(terminal, b"\x03")
        with suppress(OSError):  # nobody has its other side open any more
            while os.read(terminal, 1024):
                pass
    os.close(terminal)
    os.waitpid(pid, 0)
    assert (tmp_path / "got").read_text() == got


def test_nothing_of_ours_outlives_wrap_or_holds_what_is_the_jobs(tmp_path: Path) -> None:
    process, group, command = start(tmp_path)
    (canary,) = _group(group) - {group, command}
    until(lambda: len(os.listdir(f"/proc/{canary}/fd")) == 1)
    (only,) = os.listdir(f"/proc/{canary}/fd")
    assert os.readlink(f"/proc/{canary}/fd/{only}").startswith("pipe:")
    assert int(only) > 2
    process.kill()
    process.wait()
    until(lambda: not os.path.exists(f"/proc/{canary}"))
    os.kill(command, signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.read() == "SIGTERM\n"


def test_a_child_that_is_over_before_it_is_waited_for() -> None:
    """The kernel then tells any thread that takes the signal, and nobody else."""

    def over(pid: int) -> None:
        stat = Path(f"/proc/{pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")

    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        command = [PY, "-c", "raise SystemExit(7)"]
        assert run_child(PY, command, dict(os.environ), over, lambda number: None) == 7
    finally:
        done.set()
        other.join()


def _group(group: int) -> set[int]:
    found = set()
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.getpgid(int(name)) == group:
                found.add(int(name))
        except ProcessLookupError:
            continue
    return found
