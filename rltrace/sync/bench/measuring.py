"""Rounds of every way with every number of receivers, each against the memory of its own moment."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

from rltrace.sync.bench.memory import Memory
from rltrace.sync.bench.models import Model, Weights, digest
from rltrace.sync.bench.own import Slots
from rltrace.sync.bench.peers import GlooPerTensor, Saved
from rltrace.sync.bench.ray_peers import ObjectStore
from rltrace.sync.bench.verl_peer import VerlBuckets
from rltrace.sync.bench.ways import Receivers, Sender, Setting, Way
from rltrace.sync.place import check_room, shared_memory
from rltrace.trace.errors import ANSWER_IS_NO, CANNOT_TELL, RltraceError

OWN: tuple[Way, ...] = (Slots(), Slots(digests=False))
PEERS: tuple[Way, ...] = (
    ObjectStore(flat=True),
    ObjectStore(flat=False),
    Saved("safetensors"),
    Saved("torch"),
    GlooPerTensor(),
    VerlBuckets(),
)

_MOST_THREADS = 4
_COPIES = 8  # of the weights, beside the receivers': two states, the probe's, slots, Ray's store


@dataclass(frozen=True)
class Round:
    """Seconds of one version. `one_thread_s` and `two_threads_s`: memcpy of the weights, just
    before; `stall_s`: of the learner; `end_s`: until the last receiver had it."""

    receivers: int
    one_thread_s: float
    two_threads_s: float
    stall_s: float
    end_s: float

    @property
    def stall_memcpys(self) -> float:
        """The stall in copies of the weights by one thread."""
        return self.stall_s / self.one_thread_s

    @property
    def floor_share(self) -> float:
        """How much of the whole time the floor is: 1 is as fast as memory, for memcpy."""
        return (1 + self.receivers) * self.two_threads_s / self.end_s


@dataclass
class Row:
    """One way with so many receivers: its rounds, or why there are none. `between_bytes`: see
    `Way.between_bytes`."""

    way: str
    receivers: int
    between_bytes: int
    missing: str = ""
    rounds: list[Round] = field(default_factory=list)


def measure(
    model: Model,
    ways: Sequence[Way],
    counts: Sequence[int],
    rounds: int,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Publishes `rounds` versions each way to each number of receivers, after one that warms up.
    `tell` is given what is being measured.

    Errors: `RltraceError` where there is too little memory, or a receiver of rltrace.sync fails or
    does not hold what was published. What another way fails at is told in its rows.
    """
    _check_memory(model, max(counts))
    states = [model.made(seed) for seed in (0, 1)]
    wanted = [(state, digest(state)) for state in states]
    rows = []
    with _ended_well(), closing(Memory(states[0], model.made(2))) as memory:
        for way in ways:
            found = [
                Row(way.name, count, way.between_bytes(model.bytes, count), way.missing(count))
                for count in counts
            ]
            rows += found
            todo = [row for row in found if not row.missing]
            try:
                with ExitStack() as session:
                    if todo:
                        session.enter_context(way.session(model))
                    for row in todo:
                        tell(f"{way.name}, {row.receivers} receivers")
                        row.rounds = _rounds(way, model, row.receivers, rounds, memory, wanted)
            except Exception as error:  # of any kind: a peer that fails here leaves the others
                if isinstance(way, Slots):
                    raise
                for row in todo:
                    row.missing = "" if row.rounds else f"it failed here: {error}"
    return rows


def learner_threads() -> int:
    """As many as there are cores, at most four: what a side may use."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


@contextmanager
def _ended_well() -> Iterator[None]:
    """SIGTERM, too, ends what was started and frees the shared memory."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _rounds(
    way: Way,
    model: Model,
    count: int,
    rounds: int,
    memory: Memory,
    wanted: list[tuple[Weights, str]],
) -> list[Round]:
    import torch

    threads = learner_threads()
    torch.set_num_threads(threads)
    folder = tempfile.mkdtemp(prefix="rltrace-bench-", dir=shared_memory().parent)
    try:
        setting = Setting(model, count, folder, threads, max(1, threads // count))
        with closing(way.receivers(setting)) as receivers, closing(way.sender(setting)) as sender:
            receivers.wait_until_ready()
            done = [
                _round(way, sender, receivers, count, number + 1, memory, *wanted[number % 2])
                for number in range(rounds + 1)
            ]
        return done[1:]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _round(
    way: Way,
    sender: Sender,
    receivers: Receivers,
    count: int,
    number: int,
    memory: Memory,
    weights: Weights,
    wanted: str,
) -> Round:
    one_s, two_s = memory.one_thread_s(), memory.two_threads_s()
    if way.told_first:
        receivers.tell(number)
    start = time.monotonic()
    told = sender.send(number, weights)
    stall_s = time.monotonic() - start
    if not way.told_first:
        receivers.tell(told)
    end_s = max(receivers.ends()) - start
    if any(found != wanted for found in receivers.digests()):
        raise RltraceError(f"{way.name}: a receiver does not hold what was sent", ANSWER_IS_NO)
    return Round(count, one_s, two_s, stall_s, end_s)


def _check_memory(model: Model, receivers: int) -> None:
    needed = (_COPIES + receivers) * model.bytes
    with open("/proc/meminfo", encoding="ascii") as file:
        free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    if needed > free:
        said = f"this takes {needed / 1e9:,.1f} GB of memory and {free / 1e9:,.1f} GB are free"
        raise RltraceError(f"{said}: take a smaller model or fewer receivers", CANNOT_TELL)
    check_room(shared_memory().parent, _COPIES // 2 * model.bytes)
