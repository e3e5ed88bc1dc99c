"""Weights on one host: what a publication costs the learner, and when the last receiver has it.

    python -m benchmarks.sync_local [--megabytes 494] [--receivers 1,2,4,8] [--rounds 7] [--json]

The rounds are those of `benchmarks.sync_bench`, beside other ways (`benchmarks.sync_peers`). They
are held to what is promised, and two things beside them: what a publication behind a step costs the
step, and what digests cost a copy, in CPU time. Stalls are in memcpys of the weights by one thread.
verl's sender is measured by the Python of `make test-verl`, where that was made
(benchmarks/sync_verl).
"""

from __future__ import annotations

import mmap
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import click
import numpy as np
import torch

from benchmarks.measuring import Check, Result, spread
from benchmarks.sync_bench.measuring import OWN, BenchRow, SharedMemorySlots, counts_of, measure
from benchmarks.sync_bench.models import Memory, Model, Weights, model_of, seconds
from benchmarks.sync_peers import PEERS, VerlBuckets
from benchmarks.sync_verl import measured_elsewhere
from rltrace.sync import Publisher, layout_of
from rltrace.testing.inside.sync import Filler, Workers, block_count, default_threads
from rltrace.testing.inside.trace import RltraceError

STALL_LIMIT = {True: 1.2, False: 1.1}  # by whether the blocks are hashed
BEHIND_LIMIT = 0.2
DIGESTS_LIMIT = 1.2  # copying and hashing, over copying
SHARE_OF_FLOOR = {1: 0.60, 2: 0.70, 4: 0.75, 8: 0.80}  # by receivers, with digests
STEP_IN_MEMCPYS = 4  # how long the step is that a publication is hidden behind

HASHED, PLAIN = (SharedMemorySlots(digests).name for digests in (True, False))


def measured(rows: list[BenchRow], result: Result) -> None:
    """The rounds of every way, and what is promised of ours."""
    shares = {(row.way, row.receivers): [r.floor_share for r in row.rounds] for row in rows}
    for row in rows:
        name = f"{row.way}, {row.receivers} receivers"
        if row.missing:
            result.notes[name] = row.missing
            continue
        stalls = [r.stall_memcpys for r in row.rounds]
        ends = shares[row.way, row.receivers]
        result.rows[f"{name}: stall"] = spread([r.stall_s * 1e3 for r in row.rounds])
        result.rows[f"{name}: end to end"] = spread([r.end_s * 1e3 for r in row.rounds])
        result.notes[name] = (
            f"stall {np.median(stalls):.2f} memcpys, best {min(stalls):.2f};"
            f" {np.median(ends):.0%} of the floor, best {max(ends):.0%}"
        )
        if row.way in (HASHED, PLAIN):
            limit = STALL_LIMIT[row.way == HASHED]
            said = f"{name}, stall, median"
            result.checks.append(Check(said, float(np.median(stalls)), limit, "memcpys"))
    for count, share in SHARE_OF_FLOOR.items():
        ours = shares.get((HASHED, count))
        if not ours:
            continue
        said, figure = f"{HASHED}, {count} receivers, end to end", 1 / float(np.median(ours))
        result.checks.append(Check(f"{said}, median", figure, 1 / share, "floors"))
        own = next(row for row in rows if (row.way, row.receivers) == (HASHED, count))
        for row in rows:
            if row.receivers != count or not row.rounds or row.way in (HASHED, PLAIN):
                continue
            figure = own.times(row)
            if row.way == VerlBuckets.name:  # by another Python, so each against its own floor
                figure = float(np.median(shares[row.way, count])) / float(np.median(ours))
            said = f"{HASHED}, {count} receivers, over {row.way}"
            result.checks.append(Check(said, figure, 1.0, "of its time"))


def behind(model: Model, rounds: int, result: Result) -> None:
    """How much longer a compute-bound step takes with a publication behind it."""
    weights = model.made(0)
    torch.set_num_threads(1)
    with closing(Memory(weights, model.made(1))) as memory:
        step = compute_step(STEP_IN_MEMCPYS * min(memory.one_thread_s() for _ in range(5)))
        for slots in (SharedMemorySlots(), SharedMemorySlots(digests=False)):
            folder = tempfile.mkdtemp(prefix="rltrace-bench-", dir="/dev/shm")
            try:
                where, layout = f"shm://{folder}/policy", layout_of(weights)
                with Publisher.open(layout, where, hashing=slots.digests, spare=0) as publisher:
                    publisher.publish(weights)
                    taken = []
                    for _ in range(rounds):
                        one_s = memory.one_thread_s()
                        taken.append(behind_s(publisher, weights, step) / one_s)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            name = f"{slots.name}, behind a step"
            result.notes[name] = (
                f"stall {np.median(taken):.2f} memcpys, best {min(taken):.2f} of {rounds}"
            )
            result.checks.append(Check(f"{name}, best", min(taken), BEHIND_LIMIT, "memcpys"))


def behind_s(publisher: Publisher, weights: Weights, step: Callable[[], None]) -> float:
    """Seconds that a step takes longer with a publication behind it."""
    alone = seconds(step)

    def with_it() -> None:
        publisher.publish_async(weights)
        step()
        publisher.gate()

    return seconds(with_it) - alone


def compute_step(length_s: float) -> Callable[[], None]:
    """Matrix products by one thread that take about that long and stay in the cache."""
    one, other = torch.randn(512, 512), torch.randn(512, 512)
    out = torch.empty(512, 512)
    once = min(seconds(lambda: torch.mm(one, other, out=out)) for _ in range(20))
    times = max(1, round(length_s / once))

    def step() -> None:
        for _ in range(times):
            torch.mm(one, other, out=out)

    return step


def digests(model: Model, rounds: int, result: Result) -> None:
    """What digests add to a copy, in CPU time of one thread."""
    taken = [hashed / plain for plain, hashed in digests_s(model.made(0), rounds + 1)][1:]
    low, high = min(taken), max(taken)
    result.notes["digests"] = (
        f"{np.median(taken) - 1:.0%} of the copy, {low - 1:.0%} to {high - 1:.0%}"
    )
    figure = float(np.median(taken))
    result.checks.append(Check("a copy with digests, median", figure, DIGESTS_LIMIT, "copies"))


def digests_s(weights: Weights, rounds: int) -> Iterator[tuple[float, float]]:
    """CPU seconds that one thread takes to fill a slot without digests and with them, in turns."""
    layout, alone = layout_of(weights), Workers(1)
    data = np.frombuffer(mmap.mmap(-1, layout.bytes), dtype=np.uint8)
    table = np.zeros(block_count(layout.bytes), dtype=np.uint64)
    fillers = [Filler(layout, hashing) for hashing in (False, True)]
    for _ in range(rounds):
        spent = []
        for filler in fillers:
            start = time.thread_time()
            filler.fill(weights, data, table, alone)
            spent.append(time.thread_time() - start)
        yield spent[0], spent[1]


def told(now: str, is_new: bool) -> None:
    """A line for each number of receivers."""
    if is_new:
        print(now, file=sys.stderr)


@click.command(help=__doc__)
@click.option("--megabytes", default=494.0, show_default=True)
@click.option("--receivers", "counts", default="1,2,4,8", show_default=True)
@click.option("--rounds", default=7, show_default=True)
@click.option("--peers/--no-peers", default=True, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(megabytes: float, counts: str, rounds: int, peers: bool, as_json: bool) -> None:
    model = model_of("qwen2.5-0.5b", megabytes)
    ways = (*OWN, *(PEERS if peers else ()))
    result = Result(
        f"one host, {model.bytes / 1e6:,.0f} MB in {len(model.tensors)} tensors,"
        f" {default_threads()} threads",
        unit="ms",
    )
    try:
        rows = measure(model, ways, counts_of(counts), rounds, told)
    except RltraceError as error:
        raise click.ClickException(str(error)) from None
    name = VerlBuckets.name
    rows = [measured_elsewhere(r, megabytes, rounds) if r.way == name else r for r in rows]
    measured(rows, result)
    behind(model, max(5, rounds), result)
    digests(model, rounds, result)
    raise SystemExit(result.finish(as_json))


if __name__ == "__main__":
    main()
