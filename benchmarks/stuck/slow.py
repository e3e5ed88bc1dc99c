"""Are slow jobs called stuck?

    python -m benchmarks.stuck.slow [--minutes 15] [--json]

Four healthy jobs run side by side under `rltrace wrap`, with what it does by default: a judge that
takes minutes, a first step that compiles, checkpoints and evaluations that come now and then, and
two ranks of unlike speed. None of them may be called stuck.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

import rltrace


def _compute(seconds: float) -> None:
    """In C, without an event or a change of the stack."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2_000_000)


def judge(until: float) -> None:
    draw, step = random.Random(1), 0
    while time.time() < until:
        with rltrace.step(step):
            with rltrace.span("rollout"):
                time.sleep(5)
            with rltrace.reward(f"{step}", 0.0):
                time.sleep(draw.uniform(60, 120))
            with rltrace.span("train"):
                time.sleep(2)
        step += 1


def compiles(until: float) -> None:
    step = 0
    while time.time() < until:
        with rltrace.step(step):
            with rltrace.span("rollout"):
                time.sleep(10)
            with rltrace.span("train"):
                _compute(240 if step == 0 else 5)
        step += 1


def saves(until: float) -> None:
    step = 0
    while time.time() < until:
        with rltrace.step(step):
            with rltrace.span("rollout"):
                time.sleep(4)
            with rltrace.span("train"):
                time.sleep(3)
            if step % 10 == 4:
                with rltrace.span("checkpoint"):
                    time.sleep(100)  # to a store far away
            if step % 10 == 8:
                with rltrace.span("eval"):
                    time.sleep(150)
        step += 1


def unlike(until: float) -> None:
    other = subprocess.Popen([sys.executable, "-m", "benchmarks.stuck.slow", "judge", str(until)])
    compiles(until)
    other.wait()


JOBS: dict[str, Callable[[float], None]] = {
    work.__name__: work for work in (judge, compiles, saves, unlike)
}


@click.command()
@click.option("--minutes", default=15.0, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(minutes: float, as_json: bool) -> None:
    """Runs the four jobs, and says which were called stuck."""
    alarms: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="slow-") as folder:
        until, started = str(time.time() + 60 * minutes), {}
        for name in JOBS:
            command = [sys.executable, "-m", "rltrace", "wrap", "--out", f"{folder}/{name}", "--"]
            command += [sys.executable, "-m", "benchmarks.stuck.slow", name, until]
            started[name] = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        for name, job in started.items():
            job.wait()
            lines = "".join(p.read_text() for p in Path(folder, name, "problems").iterdir())
            said = [json.loads(line) for line in lines.splitlines()]
            alarms[name] = [one["detail"] for one in said if one["what"] == "stuck"]
    false = sum(map(len, alarms.values()))
    said_all = f"{false} false alarms in {4 * minutes:.0f} minutes of {len(JOBS)} jobs"
    click.echo(json.dumps(alarms) if as_json else "\n".join([said_all, *map(str, alarms.items())]))
    sys.exit(false > 0)


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] in JOBS:
        JOBS[sys.argv[1]](float(sys.argv[2]))
    else:
        main()
