"""Weights on one host: what a publication costs the learner, and when the last receiver has it.

    python -m benchmarks.sync_local [--megabytes 494] [--receivers 1,2,4,8] [--rounds 7] [--json]

Receivers are processes with tensors of their own, as large as the learner's; after each round they
are compared with it by digest, outside the time. Everything is held against what this machine's
memory does in the same round: `memcpy` is one copy of the weights by one thread, and the floor of a
round with N receivers is (1 + N) copies at the rate of two threads, as each byte has to be written
once into shared memory and once into every receiver. Stalls are in memcpys.
"""

from __future__ import annotations

import mmap
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import click
import numpy as np
import torch
import xxhash

from benchmarks.measuring import Check, Result, spread
from rltrace.sync import Publisher, Subscriber, layout_of
from rltrace.sync.blocks import block_count
from rltrace.sync.copying import Workers, copy_bytes
from rltrace.sync.filling import Filler

STALL_LIMIT = {True: 1.2, False: 1.1}  # by whether the blocks are hashed
BEHIND_LIMIT = 0.2
DIGESTS_LIMIT = 1.2  # copying and hashing, over copying
SHARE_OF_FLOOR = {1: 0.60, 2: 0.70, 4: 0.75, 8: 0.80}
STEP_IN_MEMCPYS = 4  # how long the step is that a publication is hidden behind

_HIDDEN, _KEYS, _INNER, _VOCABULARY = 896, 128, 4864, 75968

Weights = dict[str, torch.Tensor]


def shapes(megabytes: float) -> dict[str, tuple[int, ...]]:
    """The tensors of half a Qwen2.5-0.5B, 494 MB in bfloat16; fewer layers and tokens for less."""
    share = megabytes / 494
    found: dict[str, tuple[int, ...]] = {"embed": (max(1, round(_VOCABULARY * share)), _HIDDEN)}
    for n in range(max(1, round(12 * share))):
        for name, rows in (("q", _HIDDEN), ("k", _KEYS), ("v", _KEYS)):
            found[f"{n}.{name}.weight"] = (rows, _HIDDEN)
            found[f"{n}.{name}.bias"] = (rows,)
        found[f"{n}.o.weight"] = (_HIDDEN, _HIDDEN)
        found[f"{n}.gate"] = found[f"{n}.up"] = (_INNER, _HIDDEN)
        found[f"{n}.down"] = (_HIDDEN, _INNER)
        found[f"{n}.norm.in"] = found[f"{n}.norm.out"] = (_HIDDEN,)
    return found


def made(megabytes: float, seed: int) -> Weights:
    """Random bits; every page of them touched."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(-(2**15), 2**15, shape, dtype=torch.int16, generator=generator).view(
            torch.bfloat16
        )
        for name, shape in shapes(megabytes).items()
    }


def digest(weights: Weights) -> str:
    """Of every byte."""
    whole = xxhash.xxh3_128()
    for tensor in weights.values():
        whole.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


def receive(pipe: Connection, where: str, megabytes: float) -> None:
    """A receiver: told (counter, verify), it pulls, answers with the time at which it had it, then
    with the digest of what it has."""
    torch.set_num_threads(1)
    weights = made(megabytes, 99)
    with Subscriber.connect(where) as subscriber:
        pipe.send("ready")
        while (asked := pipe.recv()) is not None:
            counter, verify = asked
            pipe.send("waiting")
            subscriber.pull_into(weights, at_least=counter, verify=verify)
            pipe.send(time.monotonic())
            pipe.send(digest(weights))


@contextmanager
def receivers(count: int, where: str, megabytes: float) -> Iterator[list[Connection]]:
    """Pipes to that many receivers, ready."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=receive, args=(theirs, where, megabytes), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    try:
        yield pipes
    finally:
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()


class Memory:
    """What copying the weights into others takes here, now, by the C library's memcpy."""

    def __init__(self, weights: Weights, into: Weights) -> None:
        self._kept = weights, into
        self._pairs = [
            (into[name].data_ptr(), tensor.data_ptr(), tensor.nbytes)
            for name, tensor in weights.items()
        ]
        self._second = ThreadPoolExecutor(1)

    def one_thread_s(self) -> float:
        """By one thread, tensor by tensor."""
        return seconds(lambda: self._copy(0, 1))

    def two_threads_s(self) -> float:
        """Half of each tensor by each of two threads."""

        def both() -> None:
            second = self._second.submit(self._copy, 1, 2)
            self._copy(0, 2)
            second.result()

        return seconds(both)

    def _copy(self, part: int, parts: int) -> None:
        for to, source, size in self._pairs:
            start, end = size * part // parts, size * (part + 1) // parts
            copy_bytes(to + start, source + start, end - start)


def seconds(do: Callable[[], object]) -> float:
    """Wall time of a call."""
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def round_s(
    publisher: Publisher, pipes: list[Connection], weights: Weights, wanted: str, verify: bool
) -> tuple[float, float]:
    """Publishes to receivers that wait; seconds of the stall, and until the last one had it."""
    for pipe in pipes:
        pipe.send((publisher.arena.control.counter + 1, verify))
    for pipe in pipes:
        pipe.recv()
    start = time.monotonic()
    publisher.publish(weights)
    stall_s = time.monotonic() - start
    ends = [pipe.recv() for pipe in pipes]
    if any(pipe.recv() != wanted for pipe in pipes):
        raise RuntimeError("a receiver does not hold what was published")
    return stall_s, max(ends) - start


def behind_s(publisher: Publisher, weights: Weights, step: Callable[[], None]) -> float:
    """Seconds that a step takes longer with a publication behind it."""
    alone = seconds(step)

    def with_it() -> None:
        ticket = publisher.publish_async(weights)
        step()
        ticket.gate()

    return seconds(with_it) - alone


def digests_s(weights: Weights) -> Iterator[tuple[float, float]]:
    """CPU seconds that one thread takes to fill a slot without digests and with them, in turns."""
    layout, alone = layout_of(weights), Workers(1)
    data = np.frombuffer(mmap.mmap(-1, layout.bytes), dtype=np.uint8)
    table = np.zeros(block_count(layout.bytes), dtype=np.uint64)
    fillers = [Filler(layout, hashing) for hashing in (False, True)]
    while True:
        spent = []
        for filler in fillers:
            start = time.thread_time()
            filler.fill(weights, data, table, alone)
            spent.append(time.thread_time() - start)
        yield spent[0], spent[1]


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


def measure(megabytes: float, counts: list[int], rounds: int, root: str) -> Result:
    """All of it; a result whose rows are milliseconds."""
    states = [made(megabytes, seed) for seed in (0, 1)]
    digests = [digest(state) for state in states]
    layout = layout_of(states[0])
    memory = Memory(states[0], made(megabytes, 2))
    title = f"one host, {layout.bytes / 1e6:,.0f} MB in {len(layout.entries)} tensors"
    result = Result(title, unit="ms")
    taken: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}

    def keep(name: str, value_s: float, ratio: float | None = None) -> None:
        taken.setdefault(name, []).append(value_s * 1e3)
        if ratio is not None:
            ratios.setdefault(name, []).append(ratio)

    for hashing in (True, False):
        where = f"shm://{root}/policy"
        said = "hashed" if hashing else "not hashed"
        with Publisher.open(layout, where, hashing=hashing, spare=0, patience_s=1.0) as publisher:
            for count in counts:
                with receivers(count, where, megabytes) as pipes:
                    for nth in range(rounds + 1):
                        one_s, two_s = memory.one_thread_s(), memory.two_threads_s()
                        state = states[nth % 2], digests[nth % 2]
                        stall_s, end_s = round_s(publisher, pipes, *state, verify=hashing)
                        if nth:  # the first one warms up
                            keep("memcpy, 1 thread", one_s)
                            keep("memcpy, 2 threads", two_s)
                            keep(f"stall, {said}, {count} receivers", stall_s, stall_s / one_s)
                            end = end_s / ((1 + count) * two_s)
                            keep(f"end to end, {said}, {count} receivers", end_s, end)
            step = compute_step(STEP_IN_MEMCPYS * min(taken["memcpy, 1 thread"]) / 1e3)
            for _ in range(rounds):
                one_s = memory.one_thread_s()
                extra_s = behind_s(publisher, states[0], step)
                keep(f"stall, {said}, behind a step", extra_s, extra_s / one_s)
    for nth, (plain_s, hashed_s) in zip(range(rounds + 1), digests_s(states[0]), strict=False):
        if nth:
            keep("copy, not hashed, CPU", plain_s)
            keep("copy, hashed, CPU", hashed_s, hashed_s / plain_s)
    result.rows = {name: spread(values) for name, values in taken.items()}
    for name, values in ratios.items():
        unit = {"end": "of the floor", "cop": "of it not hashed"}.get(name[:3], "memcpys")
        middle, best = float(np.median(values)), min(values)
        figures = (1 / middle, 1 / best) if name.startswith("end") else (middle, best)
        result.notes[name] = f"{figures[0]:.2f} {unit}, best {figures[1]:.2f}"
    result.checks = list(checks(ratios))
    return result


def checks(ratios: dict[str, list[float]]) -> Iterator[Check]:
    """What is promised; an end-to-end time with digests is checked before it is applied."""
    for name, values in ratios.items():
        kind, said, rest = name.split(", ")
        if kind == "copy":
            yield Check(f"{name}, median", _median(values), DIGESTS_LIMIT, "of it not hashed")
        elif rest == "behind a step":
            yield Check(f"{name}, best", min(values), BEHIND_LIMIT, "memcpys")
        elif kind == "stall":
            yield Check(
                f"{name}, median", _median(values), STALL_LIMIT[said == "hashed"], "memcpys"
            )
        elif said == "hashed" and int(rest.split()[0]) in SHARE_OF_FLOOR:
            limit = 1 / SHARE_OF_FLOOR[int(rest.split()[0])]
            yield Check(f"{name}, median", _median(values), limit, "floors")


def _median(values: list[float]) -> float:
    return float(np.median(values))


def _counts(_: Any, __: Any, text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


@click.command(help=__doc__)
@click.option("--megabytes", default=494.0, show_default=True)
@click.option("--receivers", "counts", default="1,2,4,8", show_default=True, callback=_counts)
@click.option("--rounds", default=7, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(megabytes: float, counts: list[int], rounds: int, as_json: bool) -> None:
    torch.set_num_threads(1)
    root = tempfile.mkdtemp(prefix="rltrace-bench-", dir="/dev/shm")
    try:
        result = measure(megabytes, counts, rounds, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    raise SystemExit(result.finish(as_json))


if __name__ == "__main__":
    main()
