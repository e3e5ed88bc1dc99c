"""Many of everything: 46,080 small tensors, and fifty workers on the cores of this machine.

    python -m benchmarks.sync_crowd [--rounds 7] [--versions 200] [--json]

A publication and a pull of the many tensors take turns with a plain loop of `copy_` over them, and
are told as multiples of that. Then workers, a process each, wait for the next version, pull it and
look at every element, and one in ten connects anew each time; the learner publishes, at its own
pace. Its stalls are told, and what the workers found.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time

import click
import numpy as np
import torch

from benchmarks.measuring import Check, Result, spread, take_turns
from rltrace.sync import Publisher, Subscriber, layout_of
from rltrace.testing.inside.trace import RltraceError

TENSORS, SHAPE = 46_080, (32, 32)  # the experts' of 60 layers
LOOPS_LIMIT = 1.5
READERS = 50
ELEMENTS = 1 << 20
PAUSE_S = 0.05
STALL_LIMIT_MS = 150.0
PATIENCE_S = 60.0
_FORK = multiprocessing.get_context("fork")


def many(where: str, rounds: int, result: Result) -> None:
    """Publishes and pulls many small tensors."""
    whole = torch.zeros(TENSORS, *SHAPE, dtype=torch.bfloat16)
    names = [f"layers.{n // 768}.experts.{n % 768 // 3}.{n % 3}" for n in range(TENSORS)]
    weights = {name: whole[n].clone() for n, name in enumerate(names)}
    held = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}

    def loop() -> None:
        for name, tensor in weights.items():
            held[name].copy_(tensor)

    def seconds(run: object) -> float:
        start = time.monotonic()
        run()  # type: ignore[operator]
        return time.monotonic() - start

    with Publisher.open(layout_of(weights), where) as publisher:
        subscriber = Subscriber.connect(where)

        def pull() -> None:
            publisher.publish(weights)
            nonlocal pulled
            pulled = seconds(lambda: subscriber.pull_into(held))

        pulled = 0.0
        ways = {
            "a loop of copy_": lambda: seconds(loop),
            "publish": lambda: seconds(lambda: publisher.publish(weights)),
            "pull": lambda: (pull(), pulled)[1],
        }
        for way in ways.values():
            way()
        taken = take_turns(ways, rounds)
        subscriber.close()
    for name, figures in taken.items():
        result.rows[f"{TENSORS:,} tensors, {name}"] = spread([s * 1e3 for s in figures])
    for name in ("publish", "pull"):
        times = [a / b for a, b in zip(taken[name], taken["a loop of copy_"], strict=True)]
        said = f"{TENSORS:,} tensors, {name}, median"
        result.checks.append(Check(said, float(np.median(times)), LOOPS_LIMIT, "loops of copy_"))


def crowd(where: str, versions: int, result: Result) -> None:
    """Publishes to many workers."""
    weights = {"w": np.zeros(ELEMENTS, np.int32)}
    pulls, torn = _FORK.RawArray("q", READERS), _FORK.RawArray("q", READERS)
    stalls_ms = []
    with Publisher.open(layout_of(weights), where) as publisher:
        publisher.publish(weights, 0)

        def work(number: int) -> None:
            mine, subscriber = {"w": np.zeros(ELEMENTS, np.int32)}, Subscriber.connect(where)
            while True:
                subscriber.pull_into(mine, newer=True, timeout_s=PATIENCE_S)
                pulls[number] += 1
                torn[number] += bool((mine["w"] != subscriber.applied.step).any())
                if number % 10 == 0:
                    subscriber.close()
                    subscriber = Subscriber.connect(where)

        workers = [_FORK.Process(target=work, args=(n,), daemon=True) for n in range(READERS)]
        for worker in workers:
            worker.start()
        number = 0
        while len(stalls_ms) < versions and all(worker.is_alive() for worker in workers):
            number += 1
            weights["w"][:] = number
            start = time.monotonic()
            publisher.publish(weights, number)
            if all(pulls):
                stalls_ms.append((time.monotonic() - start) * 1e3)
            time.sleep(PAUSE_S)
        gone = sum(not worker.is_alive() for worker in workers)
        for worker in workers:
            worker.kill()
            worker.join()
    result.rows[f"{READERS} workers: stall"] = spread(stalls_ms)
    result.notes[f"{READERS} workers"] = (
        f"{sum(pulls):,} pulls of {number:,} versions, {publisher.skipped} more left out;"
        f" the longest stall {max(stalls_ms):.0f} ms"
    )
    p99_ms = float(np.percentile(stalls_ms, 99))
    result.checks.append(Check(f"{READERS} workers, stall, p99", p99_ms, STALL_LIMIT_MS, "ms"))
    result.checks.append(Check(f"{READERS} workers, torn pulls", float(sum(torn)), 0.0, "pulls"))
    result.checks.append(Check(f"{READERS} workers that ended", float(gone), 0.0, "workers"))


@click.command()
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1))
@click.option("--versions", default=200, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True)
def main(rounds: int, versions: int, as_json: bool) -> None:
    """Many small tensors, and many workers."""
    result = Result("rltrace.sync: many tensors, many workers", "ms")
    with tempfile.TemporaryDirectory(prefix="rltrace-bench-", dir="/dev/shm") as folder:
        try:
            many(f"shm://{folder}/many", rounds, result)
            crowd(f"shm://{folder}/crowd", versions, result)
        except RltraceError as error:
            raise click.ClickException(str(error)) from error
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
