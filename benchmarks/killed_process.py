"""The process that `kill_survival` kills: two threads record rows and acknowledge what is stored.

    python -m benchmarks.killed_process RUN COUNTERS

COUNTERS is a file of `THREADS` int64, mapped: it outlives the process. It holds how many rounds of
each thread are stored. A round is a span and a counter reading, and every tenth a trajectory and
its use. Light imports only, so that a kill soon after the start hits the recorder's own start.
"""

from __future__ import annotations

import mmap
import sys
import threading

import rltrace
from rltrace.testing.inside.hooks import recorder

THREADS = 2


def main(directory: str, acknowledged: str) -> None:
    """Records until it is killed."""
    with open(acknowledged, "r+b") as file:
        counters = memoryview(mmap.mmap(file.fileno(), 8 * THREADS)).cast("q")
    recorder.start(directory)

    def work(thread: int) -> None:
        row = 0
        while True:
            with rltrace.span("rollout", version=thread, step=row):
                rltrace.counter("row", row, device=thread)
            if row % 10 == 0:
                rltrace.trajectory(f"{thread}/{row}").finish("stop", response_tokens=row)
                rltrace.use(f"{thread}/{row}", step=row, version=thread)
            row += 1
            counters[thread] = row

    for thread in range(1, THREADS):
        threading.Thread(target=work, args=[thread], daemon=True).start()
    work(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
