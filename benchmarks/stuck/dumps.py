"""Do stacks that are asked for end or change a process?

    python -m benchmarks.stuck.dumps [--dumps 10000] [--json]

Processes of one traced job wait in threads, fork, become other programs by `exec`, end, compute in
four threads, and call C functions that take an interrupted wait for an error. All are asked again
and again. Each says by its exit code whether anything but its own doing ended it.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click

from rltrace.testing.inside.run import look_at, stack_of

FAILED = 77
_ASKERS = 8
_HEAD = b"Stack (most recent call first)"


def forks(until: float) -> None:
    """Children that wait a moment in threads of their own, and end."""
    while time.time() < until:
        child = os.fork()
        if child == 0:
            import rltrace

            with rltrace.span("rollout"):
                thread = threading.Thread(target=threading.Event().wait, args=[random.random() / 9])
                thread.start()
                thread.join()
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            sys.exit(FAILED)


def execs(until: float) -> None:
    """Becomes itself again after a moment, and once a program that is not Python."""
    threading.Event().wait(random.random() / 9)
    if time.time() > until:
        os.execvp("sleep", ["sleep", "2"])
    os.execv(sys.executable, [sys.executable, "-m", "benchmarks.stuck.dumps", "execs", str(until)])


def dies(until: float) -> None:
    """Children of short lives."""
    while time.time() < until:
        code = "import threading, random; threading.Event().wait(random.random() / 9)"
        if subprocess.run([sys.executable, "-c", code], check=False).returncode != 0:
            sys.exit(FAILED)


def waits(until: float) -> None:
    """Forty threads that wait for one lock."""
    lock = threading.Lock()
    with lock:
        for _ in range(40):
            threading.Thread(target=lambda: lock.acquire() and lock.release()).start()
        threading.Event().wait(until - time.time())


def computes(until: float) -> None:
    """Four threads that are never where they were."""

    def deep(n: int) -> int:
        return deep(n - 1) if n else sum(i for i in range(9))

    def work() -> None:
        while time.time() < until:
            names: dict[str, Any] = {}
            exec("def f(a):\n  return [b for b in range(a)]", names)
            names["f"](deep(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_c(until: float) -> None:
    """A poll and a sleep in C, for which an interruption is an error."""
    libc = ctypes.CDLL(None, use_errno=True)
    broken = []

    def again(call: Callable[[], int]) -> None:
        while time.time() < until and not broken:
            if call() < 0:
                broken.append(ctypes.get_errno())

    calls = (lambda: libc.poll(None, 0, 3000), lambda: libc.usleep(900_000))
    threads = [threading.Thread(target=again, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broken:
        sys.exit(FAILED)


KINDS = {work.__name__: work for work in (forks, execs, dies, waits, computes, in_c)}


def _job(until: float) -> None:
    """All of them, twice, beside each other."""
    started = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.stuck.dumps", kind, str(until)])
        for kind in KINDS
        for _ in range(2)
    ]
    codes = [process.wait() for process in started]
    sys.exit(FAILED if any(codes) else 0)


@click.command()
@click.option("--dumps", default=10_000, show_default=True)
@click.option("--seconds", default=300.0, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(dumps: int, seconds: float, as_json: bool) -> None:
    """Asks until so many stacks have come, and says how the processes ended."""
    with tempfile.TemporaryDirectory(prefix="dumps-") as folder:
        run, until = Path(folder) / "run", time.time() + seconds
        command = [sys.executable, "-m", "rltrace", "wrap", "--out", str(run), "--"]
        command += [sys.executable, "-m", "benchmarks.stuck.dumps", "_job", str(until)]
        job = subprocess.Popen(command)
        rounds = asked = 0
        while time.time() < until - 5:
            asked += _ask_at_once(run, until - 5)
            rounds += 1
        code = job.wait()
        came = sum(path.read_bytes().count(_HEAD) for path in (run / "stacks").iterdir())
        who = len(list((run / "process").iterdir()))
    found = {"asked": asked, "stacks": came, "processes": who, "rounds": rounds, "exit_code": code}
    said = f"{came:,} stacks of {who} processes, asked {asked:,} times; exit code {code}"
    click.echo(json.dumps(found) if as_json else said)
    sys.exit(code != 0 or came < dumps)


def _ask_at_once(run: Path, until: float) -> int:
    """Each process as the agent does it, then each thread that waits for a lock at this moment, by
    several of us and without care for how often it wakes, which is harder on them."""
    look_at(run, _alive(run), 1.0)
    with ThreadPoolExecutor(_ASKERS) as askers:
        return sum(askers.map(partial(_ask_some, run), [min(until, time.time() + 10)] * _ASKERS))


def _ask_some(run: Path, until: float) -> int:
    asked = 0
    while time.time() < until:
        alive = list(_alive(run).items())
        random.shuffle(alive)
        for _, facts in alive:
            with suppress(OSError):
                for tid in os.listdir(f"/proc/{facts['pid']}/task"):
                    task = Path(f"/proc/{facts['pid']}/task/{tid}")
                    if "futex" in (task / "wchan").read_text():
                        stack_of(run, facts["pid"], int(tid), facts)
                        asked += 1
    return asked


def _alive(run: Path) -> dict[str, Mapping[str, Any]]:
    processes = {path.stem: _facts(path) for path in (run / "process").glob("*.json")}
    return {w: f for w, f in processes.items() if os.path.exists(f"/proc/{f.get('pid')}")}


def _facts(path: Path) -> Mapping[str, Any]:
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] in {*KINDS, "_job"}:
        {**KINDS, "_job": _job}[sys.argv[1]](float(sys.argv[2]))
    else:
        main()
