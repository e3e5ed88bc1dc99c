"""What pulls find while versions are published without a pause, and what an update allocates.

    python -m benchmarks.sync_pulls [--pulls 10000] [--megabytes 4] [--json]

A learner publishes one version after the other, every element of each the same number; two workers
pull all the time and look at every element. A pull is torn where they differ, or are not those of
its version; it goes back where its version is before that of the pull before. Beside it the same
with what is often used instead: a torch tensor in shared memory that is written in place.

Then, in one process, updates after three that warm up: pages that were faulted in (beside those
that an update writes), and what the policy's files in shared memory have grown by.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measuring import Check, Result, in_memory, spread
from rltrace.sync import Publisher, Subscriber, layout_of
from rltrace.testing.inside.trace import RltraceError

WORKERS = 2
WARM, UPDATES = 3, 20
PAGE_BYTES = resource.getpagesize()
PATIENCE_S = 1800.0
FAULTS_LIMIT = 1.0  # % of the pages that an update writes
_FORK = multiprocessing.get_context("fork")

Values = NDArray[np.int32]


class Counts:
    """What workers found; each has a place of its own, so nothing is locked."""

    def __init__(self) -> None:
        self.pulls, self.torn, self.back = (_FORK.RawArray("q", WORKERS) for _ in range(3))

    def note(self, worker: int, values: Values, version: int, before: int) -> None:
        """One pull: what it brought, its version, and that of the pull before."""
        self.pulls[worker] += 1
        self.torn[worker] += bool((values != values[0]).any() or int(values[0]) != version)
        self.back[worker] += version < before


def while_published(
    learn: Callable[[], None], work: Callable[[int, Counts], None], pulls: int
) -> Counts:
    """Runs the learner and the workers, a process each, until the workers have made their pulls.
    Errors: `ClickException` where one ends before."""
    counts = Counts()
    processes = [_FORK.Process(target=learn, daemon=True)]
    processes += [
        _FORK.Process(target=work, args=(nth, counts), daemon=True) for nth in range(WORKERS)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + PATIENCE_S
    try:
        while sum(counts.pulls) < pulls:
            if time.monotonic() > deadline or not all(one.is_alive() for one in processes):
                raise click.ClickException("a process has ended, or the pulls took half an hour")
            time.sleep(0.01)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return counts


def by_rltrace(elements: int, pulls: int) -> Counts:
    """Pulls from a publisher."""
    with tempfile.TemporaryDirectory(prefix="rltrace-", dir="/dev/shm") as folder:
        where = f"shm://{folder}/policy"

        def learn() -> None:
            state = {"w": np.zeros(elements, np.int32)}
            with Publisher.open(layout_of(state), where) as publisher:
                while True:
                    state["w"][...] = publisher.arena.control.counter + 1
                    publisher.publish(state)

        def work(worker: int, counts: Counts) -> None:
            target, before = {"w": np.zeros(elements, np.int32)}, 0
            with Subscriber.connect(where) as subscriber:
                while True:
                    version = subscriber.pull_into(target).counter
                    counts.note(worker, target["w"], version, before)
                    before = version

        return while_published(learn, work, pulls)


def in_place(elements: int, pulls: int) -> Counts:
    """Copies of a torch tensor in shared memory while it is written in place. It has no versions:
    the number that a copy begins with stands for one."""
    torch.set_num_threads(1)
    shared = torch.zeros(elements, dtype=torch.int32).share_memory_()

    def learn() -> None:
        number = 0
        while True:
            number += 1
            shared.fill_(number)

    def work(worker: int, counts: Counts) -> None:
        target, before = torch.zeros(elements, dtype=torch.int32), 0
        while True:
            target.copy_(shared)
            version = int(target[0])
            counts.note(worker, target.numpy(), version, before)
            before = version

    return while_published(learn, work, pulls)


def allocated(elements: int) -> tuple[list[float], int]:
    """What updates after the first take: each one's page faults in % of the pages that it writes
    (the publisher's slot and the worker's tensors), and bytes of shared memory of all."""
    state = {"w": np.zeros(elements, np.int32)}
    target = {"w": np.zeros(elements, np.int32)}
    with tempfile.TemporaryDirectory(prefix="rltrace-", dir="/dev/shm") as folder:
        where = f"shm://{folder}/policy"
        with Publisher.open(layout_of(state), where) as publisher, Subscriber.connect(where) as one:
            faulted = []
            for number in range(WARM + UPDATES):
                if number == WARM:
                    bytes_before = in_memory(Path(folder))
                state["w"] += 1
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                publisher.publish(state)
                one.pull_into(target, verify=True)
                faulted.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
            grown = in_memory(Path(folder)) - bytes_before
    pages = 2 * state["w"].nbytes / PAGE_BYTES
    return [100 * faults / pages for faults in faulted[WARM:]], grown


def measure(pulls: int, megabytes: int) -> Result:
    """Everything."""
    elements = megabytes * 250_000
    result = Result(
        f"{pulls:,} pulls of {megabytes} MB under versions without a pause", "% of the pages"
    )
    ours, theirs = by_rltrace(elements, pulls), in_place(elements, pulls)
    result.notes["rltrace.sync"] = f"{sum(ours.torn):,} torn of {sum(ours.pulls):,} pulls"
    share = sum(theirs.torn) / sum(theirs.pulls)
    result.notes["a tensor in shared memory, in place"] = (
        f"{sum(theirs.torn):,} torn of {sum(theirs.pulls):,} pulls ({share:.0%})"
    )
    faults, grown = allocated(elements)
    result.rows["page faults of an update"] = faulted = spread(faults)
    result.checks = [
        Check("torn pulls", sum(ours.torn), 0, ""),
        Check("pulls that went back", sum(ours.back), 0, ""),
        Check("page faults of an update, median", faulted.median, FAULTS_LIMIT, "% of the pages"),
        Check(f"shared memory that {UPDATES} updates add", grown, 0, "bytes"),
    ]
    return result


@click.command()
@click.option("--pulls", default=10_000, show_default=True, help="Of both workers together.")
@click.option("--megabytes", default=4, show_default=True, help="Of weights.")
@click.option("--json", "as_json", is_flag=True)
def main(pulls: int, megabytes: int, as_json: bool) -> None:
    """Torn pulls and allocations; exits 1 when a limit is missed."""
    try:
        sys.exit(measure(pulls, megabytes).finish(as_json))
    except RltraceError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
