"""How long a version takes to the last of N nodes over capped links, and how busy the root is.

    python -m benchmarks.sync_relay [--megabytes 100] [--gbps 0.8] [--nodes 8] [--rounds 3] [--json]

A learner publishes noise; each node is a process (`rltrace sync serve`) with slots of its own, and
sends no more than a cap, as over a network card: 0.8 Gbit/s, so that nine of them fit on a small
machine. One hop is the bytes over the cap. A chain (every node takes one child) passes blocks on as
they are verified; a tree takes two; in a star, beside it, everybody follows the root. Times run
from the beginning of the publication to the last node's word that it holds the version, verified.
Then the same of a version of which 1 % of the elements changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring import Check, Result, spread
from rltrace.sync import Publisher, layout_of
from rltrace.testing.inside.sync import Relay

FANOUT = {"star": 0, "tree of two": 2, "chain": 1}
SERVE = [sys.executable, "-c", "from rltrace.cli import main; main()", "sync", "serve"]
PATIENCE_S = 300.0
POLL_S = 0.0005
CHANGED = 0.01


@dataclass(frozen=True)
class Hop:
    """One version's way to all nodes, in seconds from the publication's beginning."""

    last_s: float
    root_s: float  # when the root had sent all that it sent
    root_bytes: int


class Nodes:
    """Processes that follow the root, and when each said what it holds."""

    def __init__(self, root: str, folder: Path, count: int, fanout: int, gbps: float) -> None:
        self._held: list[dict[int, float]] = [{} for _ in range(count)]
        self._processes = []
        options = ["--fanout", str(fanout), "--gbps", str(gbps), "--json", "--follow", root]
        for nth in range(count):
            words = [*SERVE, f"shm://{folder}/node-{nth}", *options]
            process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            self._processes.append(process)
            threading.Thread(target=self._listen, args=(nth, process), daemon=True).start()

    def _listen(self, nth: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            now = time.monotonic()
            said = json.loads(line)
            if "version" in said:
                self._held[nth][int(said["version"].rpartition(":")[2])] = now

    def when(self, counter: int) -> float | None:
        """When the last node held a version; None while one does not."""
        times = [held.get(counter) for held in self._held]
        known = [at for at in times if at is not None]
        return max(known) if len(known) == len(times) else None

    def check(self) -> None:
        """Errors: `ClickException` where a node has ended."""
        if any(process.poll() is not None for process in self._processes):
            raise click.ClickException("a node has ended")

    def close(self) -> None:
        """Ends them all."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(60)


@contextmanager
def nodes(
    state: dict[str, NDArray[np.uint16]], count: int, fanout: int, gbps: float
) -> Iterator[Callable[[], Hop]]:
    """A learner, its root and `count` nodes; what is given publishes `state` and follows it."""
    with tempfile.TemporaryDirectory(prefix="rltrace-", dir="/dev/shm") as memory:
        folder = Path(memory)
        place = f"shm://{folder}/policy"
        with (
            Publisher.open(layout_of(state), place) as publisher,
            Relay.serve(place, fanout=fanout, gbps=gbps) as root,
        ):
            followers = Nodes(root.address, folder, count, fanout, gbps)

            def publish() -> Hop:
                before, began = root.status.sent_bytes, time.monotonic()
                version = publisher.publish(state)
                if version is None:
                    raise click.ClickException("there was no free slot")
                sent, sent_at, looked_at = before, began, began
                while (last := followers.when(version.counter)) is None:
                    time.sleep(POLL_S)
                    now = time.monotonic()
                    if (by_now := root.status.sent_bytes) != sent:
                        sent, sent_at = by_now, now
                    if now > looked_at + 1:
                        followers.check()
                        looked_at = now
                    if now > began + PATIENCE_S:
                        raise click.ClickException("the version did not reach every node")
                return Hop(last - began, sent_at - began, sent - before)

            try:
                publish()  # every node has its place, and its memory
                yield publish
            finally:
                followers.close()


def measure(megabytes: int, gbps: float, most: int, rounds: int) -> Result:
    """Every shape with 1, 2, 4 ... nodes."""
    draws = np.random.default_rng(0)
    state = {"w": draws.integers(0, 65536, megabytes * 500_000, dtype=np.uint16)}
    size = state["w"].nbytes
    hop_s = size * 8 / (gbps * 1e9)
    result = Result(f"{megabytes} MB to N nodes, each sending {gbps:g} Gbit/s at most", "hops")
    counts = [n for n in (1, 2, 4, 8, 16) if n <= most]
    for shape, fanout in FANOUT.items():
        for count in counts:
            with nodes(state, count, fanout, gbps) as publish:
                whole = []
                for _ in range(rounds):
                    state["w"][...] = draws.integers(0, 65536, len(state["w"]), np.uint16)
                    whole.append(publish())
                places = draws.integers(0, len(state["w"]), int(CHANGED * len(state["w"])))
                state["w"][places] += np.uint16(1)
                few = publish()
            name = f"{shape}, {count} nodes"
            result.rows[f"{name}: to the last"] = spread([hop.last_s / hop_s for hop in whole])
            result.rows[f"{name}: root busy"] = spread([hop.root_s / hop_s for hop in whole])
            sent = spread([hop.root_bytes / size for hop in whole]).median
            result.notes[name] = (
                f"the root sent {sent:.2f} times the weights; with {100 * CHANGED:g} % changed"
                f" {few.last_s:.3f} s to the last node, {few.root_bytes / size:.2%} sent"
            )
            if shape == "chain" and count == counts[-1]:
                best = min(hop.last_s for hop in whole) / hop_s
                busy = min(hop.root_s for hop in whole) / hop_s
                result.checks += [
                    Check(f"chain of {count}: to the last node, best", best, 1.25, "hops"),
                    Check(f"chain of {count}: root busy, best", busy, 1.1, "sends"),
                    Check(f"chain of {count}: bytes that the root sent", sent, 1.1, "sends"),
                ]
    return result


@click.command()
@click.option("--megabytes", default=100, show_default=True)
@click.option("--gbps", default=0.8, show_default=True, help="What each node can send.")
@click.option("--nodes", "most", default=8, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(megabytes: int, gbps: float, most: int, rounds: int, as_json: bool) -> None:
    """Relays over capped links; exits 1 when a limit is missed."""
    sys.exit(measure(megabytes, gbps, most, rounds).finish(as_json))


if __name__ == "__main__":
    main()
