"""A job that records until it is told to end, and a run that is nothing but Parquet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.trace import compaction_compact as compact
from rltrace.testing.inside.trace import delete_segments
from tests.trace.test_run import old_copy

WRITER = """
import sys, threading, time, random
from rltrace.testing.inside.hooks import Recorder
recorder = Recorder(sys.argv[1], role="writer")
stopping = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopping.set())).start()
counts = []
def work(seed):
    draw = random.Random(seed)
    n = 0
    while not stopping.is_set():
        n += 1
        outer = recorder.begin(recorder.name(f"outer {seed} {n % 50}"), 0, tokens=n, items=seed)
        now = time.monotonic_ns()
        row = recorder.append("trajectories", start_ns=now, trajectory=n, group=seed)
        for _ in range(draw.randrange(4)):
            recorder.begin(recorder.name("inner"), 1, bytes=n).end()
        if draw.random() < 0.9:
            row.set(end_ns=now + 10, response_tokens=n % 100)
        if draw.random() < 0.1:
            outer.discard()
        elif draw.random() < 0.99:
            outer.set(items=n % 7)
            outer.end()
        recorder.append("samples", time_ns=now, counter=recorder.name("x_bytes"), value=n / 2)
        if n % 8 == 0:
            time.sleep(0.02 if n < 1_500 else 1.0)  # so few that each can be looked at
    counts.append(n)
workers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
for one in workers:
    one.start()
for one in workers:
    one.join()
print(sum(counts))
"""


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A compacted run without its segments."""
    path = old_copy(tmp_path / "run")
    compact(rltrace.open_run(path))
    delete_segments(path)
    return path


@pytest.fixture
def job(run_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process whose threads record into `run_path` until its input ends: then it says how many
    samples they recorded."""
    command = [sys.executable, "-c", WRITER, str(run_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()
