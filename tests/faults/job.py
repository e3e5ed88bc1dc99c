"""The job of these tests: workers that record rows, and count what is stored.

    python job.py COUNTERS ROWS WORKERS [PAUSE_S]

COUNTERS is a file of an int64 for each worker, mapped: it outlives them. It rises once a row is
stored, and stays where it is when nothing is recorded any more. Each worker is a process; it gives
back the sum of its rows, and the job prints the sum of all, with how each worker ended.
With HOLD_AT in the environment workers wait before that row until the file GO is there.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time

import rltrace
from rltrace.testing.inside.hooks import recorder


def work(counters: str, worker: int, rows: int, pause_s: float) -> int:
    """Records `rows` rows: a span with its number as the step, and a reading."""
    with open(counters, "r+b") as file:
        stored = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
    total = 0
    hold_at, go = int(os.environ.get("HOLD_AT", "-1")), os.environ.get("GO", "")
    for row in range(rows):
        while row == hold_at and not os.path.exists(go):
            time.sleep(0.01)
        recording = recorder.active()
        with rltrace.span("rollout", f"worker {worker}", version=worker, step=row):
            rltrace.counter("row", row, device=worker)
            total += row
        if recording is not None and recorder.active() is recording:
            stored[worker] += 1
        if pause_s:
            time.sleep(pause_s)
    return total


def main(counters: str, rows: str, workers: str, pause_s: str = "0", worker: str = "") -> None:
    """Runs the workers as processes, or is the worker of that number."""
    if worker:
        print(work(counters, int(worker), int(rows), float(pause_s)), flush=True)
        return
    print("ready", os.getpid(), flush=True)
    command = [sys.executable, __file__, counters, rows, workers, pause_s]
    started = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(int(workers))
    ]
    said = [each.communicate()[0] for each in started]
    total = sum(int(text) for text in said if text)
    print(f"{total} {[each.returncode for each in started]}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
