"""Restarts of all kinds: whether each worker comes to the new weights, and says so while it cannot.

    python -m benchmarks.sync_restarts [--restarts 200] [--seed 0] [--json]

A learner publishes every 20 ms, every element of a version the same number, which begins anew,
higher, with each learner. One relay serves it, one on another host follows that, a third one the
second; a worker on each host pulls all the time, and a fourth one through the relay that a host's
workers share. (A host is a folder in shared memory of its own.) Each round restarts something, in
one of the ways below, and ends when all workers hold a version of the newest learner. A worker is
silent where it holds older weights for five seconds and `error` is None.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import click
import numpy as np

from benchmarks.measuring import Check, Result, spread
from benchmarks.sync_kills import free_port
from rltrace.sync import Publisher, Relay, Subscriber, layout_of
from rltrace.testing.inside.trace import RltraceError

ELEMENTS = 300_000
WORKERS = 4  # on the learner's host, on two others, and by the relay that a host shares
EACH = 1_000_000  # versions of one learner
PAUSE_S = 0.02
AWAY_S = 3.0
SILENT_S = 5.0
PATIENCE_S = 60.0
_FORK = multiprocessing.get_context("fork")


class Job:
    """The processes by name, and what the workers tell: the number that each holds, whether its
    `error` is set, how far it is behind, its pulls, and those that were torn or went back."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.learners = 0
        self.held, self.behind_ms, self.pulls = (_FORK.RawArray("q", WORKERS) for _ in range(3))
        self.told, self.torn, self.back = (_FORK.RawArray("q", WORKERS) for _ in range(3))
        self._ports = [free_port() for _ in range(3)]
        self.processes: dict[str, BaseProcess] = {}
        self.learn()
        for name in ("relay 0", "relay 1", "relay 2", *(f"worker {n}" for n in range(WORKERS))):
            self.start(name)

    def learn(self, run: str | None = None, more: bool = False) -> None:
        """A learner begins; `more`: with another tensor."""
        self.learners += 1
        first = self.learners * EACH
        self._begin("learner", lambda: self._learn(first, run, more))

    def start(self, name: str) -> None:
        """Starts a relay or a worker."""
        kind, number = name.split()
        run = self._relay if kind == "relay" else self._work
        self._begin(name, lambda: run(int(number)))

    def end(self, *names: str, signal_number: int = signal.SIGKILL) -> None:
        """Ends processes."""
        for name in names:
            process = self.processes[name]
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal_number)
        for name in names:
            self.processes[name].join()

    def place(self, host: int) -> str:
        """Where a host has its slots."""
        return f"shm://{self.folder}/host-{host}/policy"

    def _begin(self, name: str, run: Callable[[], None]) -> None:
        self.processes[name] = _FORK.Process(target=run, daemon=True)
        self.processes[name].start()

    def _learn(self, number: int, run: str | None, more: bool) -> None:
        def leave(*_: int | FrameType | None) -> None:
            raise SystemExit

        signal.signal(signal.SIGTERM, leave)
        state = {"w": np.zeros(ELEMENTS, np.int32)} | ({"x": np.zeros(9)} if more else {})
        (self.folder / "host-0").mkdir(exist_ok=True)
        with (
            suppress(RltraceError),  # its folder was removed
            Publisher.open(layout_of(state), self.place(0), run=run) as publisher,
        ):
            while True:
                number += 1
                state["w"][...] = number
                publisher.publish(state)
                time.sleep(PAUSE_S)

    def _relay(self, host: int) -> None:
        port = self._ports[host]
        (self.folder / f"host-{host}").mkdir(exist_ok=True)
        if host == 0:
            relay = Relay.serve(self.place(0), port=port)
        else:
            parent = f"tcp://127.0.0.1:{self._ports[host - 1]}/policy"
            relay = Relay.follow(parent, self.place(host), port=port)
        while relay.ended_by is None:
            time.sleep(0.1)
        raise relay.ended_by

    def _work(self, worker: int) -> None:
        shared = f"tcp://127.0.0.1:{self._ports[0]}/policy"
        where = shared if worker == WORKERS - 1 else self.place(worker)
        weights, newest = {"w": np.zeros(ELEMENTS, np.int32)}, 0
        values = weights["w"]
        subscriber = None
        while True:
            time.sleep(PAUSE_S)
            try:
                subscriber = subscriber or Subscriber.connect(where, timeout_s=PATIENCE_S)
                subscriber.pull_into(weights, timeout_s=1.0, partial=True)
                error = subscriber.error
                self.behind_ms[worker] = int(subscriber.behind_s * 1e3)
            except RltraceError as raised:
                error = raised
            else:
                self.pulls[worker] += 1
                self.torn[worker] += bool((values != values[0]).any())
                self.back[worker] += int(values[0]) < newest
                newest = int(values[0])
                self.held[worker] = newest
            self.told[worker] = error is not None


def closed(job: Job) -> None:
    """The learner is closed, and another one begins."""
    job.end("learner", signal_number=signal.SIGTERM)
    job.learn()


def killed(job: Job) -> None:
    """The learner is killed."""
    job.end("learner")
    job.learn()


def closed_same_run(job: Job) -> None:
    """The learner is closed; both are of one run."""
    job.end("learner", signal_number=signal.SIGTERM)
    job.learn(run="0123456789abcdef")


def killed_same_run(job: Job) -> None:
    """The learner is killed; both are of one run."""
    job.end("learner")
    job.learn(run="0123456789abcdef")


def other_run(job: Job) -> None:
    """The next learner is of a run of its own."""
    job.end("learner")
    job.learn(run=f"{job.chance.getrandbits(64):016x}")


def other_layout(job: Job) -> None:
    """The next learner has another tensor."""
    job.end("learner")
    job.learn(more=True)


def with_its_relay(job: Job) -> None:
    """Learner and relay are killed, and begin anew in any order."""
    job.end("learner", "relay 0")
    job.start("relay 0")
    job.learn(run="0123456789abcdef")


def host_lost(job: Job) -> None:
    """All of the learner's host is gone, its memory too, and comes back at the same address."""
    job.end("learner", "relay 0", "worker 0")
    shutil.rmtree(job.folder / "host-0")
    job.held[0] = 0
    job.learn(run="0123456789abcdef")
    job.start("relay 0")
    job.start("worker 0")


def folder_removed(job: Job) -> None:
    """Somebody removes the folder under a learner that lives; then it is opened again."""
    shutil.rmtree(job.folder / "host-0")
    job.processes["learner"].join()  # it says what happened, and ends
    job.learn()


def relay_killed(job: Job) -> None:
    """A relay that follows is killed, and the learner after it."""
    job.end("relay 1", "learner")
    job.learn()
    job.start("relay 1")


def workers_killed(job: Job) -> None:
    """Workers are killed, and the learner with them."""
    job.end("worker 1", "worker 3", "learner")
    job.learn()
    for worker in (1, 3):
        job.held[worker] = 0
        job.start(f"worker {worker}")


def relay_stopped(job: Job) -> None:
    """A relay stands still while another learner begins."""
    process = job.processes["relay 1"]
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    closed(job)
    time.sleep(AWAY_S)
    os.kill(process.pid, signal.SIGCONT)


def stays_away(job: Job) -> None:
    """No learner for a while: all workers say so."""
    job.end("learner", signal_number=job.chance.choice([signal.SIGKILL, signal.SIGTERM]))
    time.sleep(AWAY_S)
    for worker in range(WORKERS):
        if not job.told[worker] or job.behind_ms[worker] < 1000:
            raise Silent(f"worker {worker} does not say that there is no learner")
    job.learn()


class Silent(Exception):
    """A worker that should have said something."""


KINDS = (
    *(closed, killed, closed_same_run, killed_same_run, other_run, other_layout, with_its_relay),
    *(host_lost, folder_removed, relay_killed, workers_killed, relay_stopped, stays_away),
)


def settle(job: Job, said: list[str]) -> bool:
    """Waits until all workers hold what the newest learner has published; False where one never
    does. Notes those that are silent meanwhile."""
    wanted, began = job.learners * EACH, time.monotonic()
    quiet_since = [began] * WORKERS
    while True:
        now = time.monotonic()
        lacking = [worker for worker in range(WORKERS) if job.held[worker] < wanted]
        for worker in range(WORKERS):
            if worker not in lacking or job.told[worker]:
                quiet_since[worker] = now
            elif now > quiet_since[worker] + SILENT_S:
                said.append(f"worker {worker} holds old weights and says nothing")
                quiet_since[worker] = now + PATIENCE_S
        if not lacking:
            return True
        if now > began + PATIENCE_S:
            said.append(f"workers {lacking} never came to the new weights")
            return False
        time.sleep(0.002)


def measure(restarts: int, seed: int) -> Result:
    """All rounds, the kinds in turn, in an order that is drawn anew each time."""
    chance = random.Random(seed)
    result = Result(f"{restarts} restarts", "ms to the new learner's weights everywhere")
    taken: dict[str, list[float]] = {kind.__name__: [] for kind in KINDS}
    silent: list[str] = []
    order: list[Callable[[Job], None]] = []
    with tempfile.TemporaryDirectory(prefix="rltrace-", dir="/dev/shm") as folder:
        job = Job(Path(folder), chance)
        try:
            if not settle(job, silent):
                raise click.ClickException("the weights did not reach every worker")
            for _ in range(restarts):
                order = order or chance.sample(KINDS, len(KINDS))
                kind = order.pop()
                time.sleep(chance.random() * 0.3)
                said: list[str] = []
                try:
                    kind(job)
                except Silent as error:
                    said.append(str(error))
                    job.learn()
                began = time.monotonic()
                settle(job, said)
                taken[kind.__name__].append((time.monotonic() - began) * 1000)
                silent += [f"{kind.__name__}: {each}" for each in said]
        finally:
            job.end(*job.processes)
    for name, times in taken.items():
        if times:
            result.rows[name.replace("_", " ")] = spread(times)
    result.notes["pulls"] = f"{sum(job.pulls):,}"
    for said_so, count in Counter(silent).items():
        result.notes[said_so] = f"{count} times"
    result.checks = [
        Check("workers that stayed behind in silence", len(silent), 0, ""),
        Check("torn versions", sum(job.torn), 0, ""),
        Check("versions that went back", sum(job.back), 0, ""),
    ]
    return result


@click.command(help=__doc__)
@click.option("--restarts", default=200, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(restarts: int, seed: int, as_json: bool) -> None:
    sys.exit(measure(restarts, seed).finish(as_json))


if __name__ == "__main__":
    main()
