"""SIGKILL of any one process of a weight sync at random moments: what the others see, how long.

    python -m benchmarks.sync_kills [--kills 200] [--megabytes 8] [--json]

A learner publishes without a pause, every element of a version the same number. A relay serves it,
another one follows that, a third one follows the second; a worker on each of the three hosts pulls
all the time and looks at every element of what it has got. Each round one of the seven processes is
killed at a random moment, and started again at once, as a supervisor would; nobody else is. A round
ends when all three workers (the killed one's successor too) hold a version that was published after
the kill: its time runs from the kill. At last all are killed, and shared memory is looked at once
another policy has been opened beside, which frees what nobody holds.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from benchmarks.measuring import Check, Result, in_memory, spread
from rltrace.sync import Publisher, Relay, Subscriber, layout_of
from rltrace.testing.inside.sync import LinkError
from rltrace.testing.inside.trace import RltraceError

LIMIT_S = 2.0
PATIENCE_S = 60.0
PAUSE_S = 0.02
HOSTS = 3
_FORK = multiprocessing.get_context("fork")


class Job:
    """The processes, by name, and what they tell: the newest version published, and for each worker
    the newest that it holds, how many pulls it made, how many were mixed, how many went back."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self._folder = folder
        self._elements = megabytes * 250_000
        self._ports = [free_port() for _ in range(HOSTS)]
        # Without locks: whoever holds one may be killed. Each value has one writer.
        self.published = _FORK.RawValue("q", 0)
        self.held = _FORK.RawArray("q", [-1] * HOSTS)
        self.pulls = _FORK.RawArray("q", HOSTS)
        self.mixed = _FORK.RawArray("q", HOSTS)
        self.back = _FORK.RawArray("q", HOSTS)
        self._runs: dict[str, Callable[[], None]] = {"learner": self._learn}
        for host in range(HOSTS):
            self._runs[f"relay {host}"] = lambda host=host: self._relay(host)
            self._runs[f"worker {host}"] = lambda host=host: self._work(host)
        self.processes = {name: self._started(run) for name, run in self._runs.items()}

    def kill(self, name: str) -> None:
        """Kills a process and starts it again."""
        process = self.processes[name]
        if process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        if name.startswith("worker"):
            self.held[int(name[-1])] = -1
        self.processes[name] = self._started(self._runs[name])

    def died(self) -> list[str]:
        """Processes that ended though nobody killed them."""
        return [name for name, process in self.processes.items() if not process.is_alive()]

    def wait(self, beyond: int) -> bool:
        """Waits until every worker holds a version after that one; False where one does not."""
        deadline = time.monotonic() + PATIENCE_S
        while any(held <= beyond for held in self.held):
            if time.monotonic() > deadline or self.died():
                return False
            time.sleep(0.001)
        return True

    def close(self) -> None:
        """Ends everything."""
        for process in self.processes.values():
            process.kill()
            process.join()

    def _started(self, run: Callable[[], None]) -> multiprocessing.process.BaseProcess:
        process = _FORK.Process(target=run, daemon=True)
        process.start()
        return process

    def _place(self, host: int) -> str:
        return f"shm://{self._folder}/host-{host}" if host else f"shm://{self._folder}/policy"

    def _learn(self) -> None:
        state = {"w": np.zeros(self._elements, np.float32)}
        with Publisher.open(layout_of(state), self._place(0)) as publisher:
            while True:
                number = publisher.arena.control.counter + 1
                state["w"][...] = number
                if publisher.publish(state) is not None:
                    self.published.value = number
                time.sleep(PAUSE_S)

    def _relay(self, host: int) -> None:
        port = self._ports[host]
        if host == 0:
            relay = Relay.serve(self._place(0), port=port)
        else:
            parent = f"tcp://127.0.0.1:{self._ports[host - 1]}/policy"
            relay = Relay.follow(parent, self._place(host), port=port)
        while relay.ended_by is None:
            time.sleep(0.1)
        raise relay.ended_by

    def _work(self, host: int) -> None:
        target = {"w": np.zeros(self._elements, np.float32)}
        with Subscriber.connect(self._place(host)) as subscriber:
            newest = 0
            while True:
                counter = subscriber.pull_into(target).counter
                values = target["w"]
                self.pulls[host] += 1
                self.mixed[host] += not (values == values[0]).all() or values[0] != counter
                self.back[host] += counter < newest
                newest = counter
                self.held[host] = counter
                time.sleep(0.001)


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def measure(kills: int, megabytes: int, seed: int) -> Result:
    """All rounds. Errors: `ClickException` where a process that nobody killed has ended."""
    chance = random.Random(seed)
    result = Result(f"{kills} kills, {megabytes} MB", "ms to a newer version everywhere")
    with tempfile.TemporaryDirectory(prefix="rltrace-", dir="/dev/shm") as folder:
        job = Job(Path(folder), megabytes)
        try:
            if not job.wait(0):
                raise click.ClickException("the weights did not reach every worker")
            taken: dict[str, list[float]] = {name: [] for name in job.processes}
            for nth in range(kills):
                name = list(taken)[nth % len(taken)]
                time.sleep(chance.random() * 0.2)
                before, began = job.published.value, time.monotonic()
                job.kill(name)
                if not job.wait(before):
                    ended = ", ".join(job.died()) or "nobody"
                    raise click.ClickException(f"{name} killed: {ended} ended, no newer version")
                taken[name].append((time.monotonic() - began) * 1000)
        finally:
            job.close()
        most = in_memory(Path(folder))
        with Publisher.open(layout_of({"w": np.zeros(1)}), f"shm://{folder}/another"):
            pass
        left = in_memory(Path(folder))
    for name, times in taken.items():
        if times:
            result.rows[name] = spread(times)
    slowest = max(max(times) for times in taken.values() if times) / 1000
    result.notes["pulls"] = f"{sum(job.pulls):,}"
    result.notes["shared memory"] = (
        f"{most / 1e6:,.1f} MB as all were killed, {left / 1e6:,.1f} left"
    )
    result.checks = [
        Check("mixed versions", sum(job.mixed), 0, ""),
        Check("versions that went back", sum(job.back), 0, ""),
        Check("slowest recovery", slowest, LIMIT_S, "s"),
        Check("shared memory that the killed have left", left, 0, "bytes"),
    ]
    return result


@click.command()
@click.option("--kills", default=200, show_default=True)
@click.option("--megabytes", default=8, show_default=True, help="Of weights.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(kills: int, megabytes: int, seed: int, as_json: bool) -> None:
    """Kills at random moments; exits 1 when a limit is missed."""
    try:
        sys.exit(measure(kills, megabytes, seed).finish(as_json))
    except (RltraceError, LinkError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
