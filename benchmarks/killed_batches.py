"""The process that `batch_cost` kills: it stores batch after batch and acknowledges each.

    python -m benchmarks.killed_batches RUN COUNTER

COUNTER is a file of one int64, mapped: it outlives the process. It holds how many batches are
stored. Every column of a row follows from the row's number, so that a torn row shows.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any

from rltrace.testing.inside.adapters import uses
from rltrace.testing.inside.hooks import Call, recorder

ROWS = 5_000


def columns_of(batch: int) -> list[list[Any]]:
    """Fates, trajectories, tokens and the three ratios of a batch."""
    numbers = [*range(batch * ROWS, (batch + 1) * ROWS)]
    return [[0] * ROWS, numbers, numbers, *([n / part for n in numbers] for part in (2, 4, 8))]


def main(directory: str, acknowledged: str) -> None:
    """Records until it is killed."""
    with open(acknowledged, "r+b") as file:
        counter = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")
    active = recorder.start(directory)
    assert active is not None
    call = Call(main, (), {}, active)
    for batch in range(400):  # 2 million rows, which no trial lives to see
        fates, ids, tokens, *moved = columns_of(batch)
        uses(call, fates, ids, tokens, moved, version=batch)
        counter[0] = batch + 1


if __name__ == "__main__":
    main(*sys.argv[1:])
