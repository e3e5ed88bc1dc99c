"""Measures all ways in turn, for each number of receivers, beside memcpy."""

from __future__ import annotations

import itertools
import os
import random
import secrets
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.sync_bench.models import Memory, Model, Weights, digest
from benchmarks.sync_bench.ways import BenchSetting, Crowd, Receive, Sender, Way
from rltrace.sync import Publisher, Subscriber, layout_of
from rltrace.testing.inside.sync import (
    available_bytes,
    check_room,
    default_threads,
    shared_memory,
    torch_name,
)
from rltrace.testing.inside.trace import ANSWER_IS_NO, CANNOT_TELL, RltraceError, WrongUsage


@dataclass(frozen=True)
class SharedMemorySlots(Way):
    """With digests every block is checked as it is copied."""

    digests: bool = True

    @property
    def name(self) -> str:
        return "rltrace.sync" if self.digests else "rltrace.sync, no digests"

    def copies(self, receivers: int) -> int:
        return 2

    def sender(self, setting: BenchSetting) -> Sender:
        import torch

        shapes = {  # of tensors without memory
            name: torch.empty(shape, dtype=getattr(torch, torch_name(code)), device="meta")
            for name, (code, shape) in setting.model.tensors.items()
        }
        options: dict[str, Any] = {"spare": 0, "hashing": self.digests, "patience_s": 1.0}
        publisher = Publisher.open(layout_of(shapes), _place(setting), **options)
        return Sender(lambda number, w: publisher.publish(w, number), publisher.close)

    def receiver(self, setting: BenchSetting, number: int, weights: Weights) -> Receive:
        subscriber = Subscriber.connect(_place(setting), threads=setting.threads)
        return lambda number: subscriber.pull_into(weights, int(number), self.digests)


def _place(setting: BenchSetting) -> str:
    return f"shm://{setting.folder}/policy"


OWN: tuple[Way, ...] = (SharedMemorySlots(), SharedMemorySlots(digests=False))
WARM_UPS = 3  # updates of each way that are not counted: they touch its buffers for the first time
SEED = 0  # of the order in which ways take their turns, another one in each round
_COPIES = 3  # of the weights at the learner: two states, and the probe's
_PROCESS_BYTES = 250 << 20  # of a receiver, before it has weights
_ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_MARK = "RLTRACE_SYNC_BENCH"
Tell = Callable[[str, bool], None]  # what is measured, and whether the count is new


@dataclass(frozen=True)
class Round:
    """Seconds: memcpy by one and two threads, the learner's stall, until the last had it."""

    receivers: int
    one_thread_s: float
    two_threads_s: float
    stall_s: float
    end_s: float

    @property
    def stall_memcpys(self) -> float:
        return self.stall_s / self.one_thread_s

    @property
    def floor_share(self) -> float:
        """The floor as a share of the whole time: 1 is as fast as memory, for memcpy."""
        return (1 + self.receivers) * self.two_threads_s / self.end_s


@dataclass
class BenchRow:
    way: str
    receivers: int
    between_bytes: int
    missing: str = ""
    rounds: list[Round] = field(default_factory=list)

    def times(self, other: BenchRow) -> float:
        """The median, over the rounds, of this way's time over another's in the same round."""
        pairs = zip(self.rounds, other.rounds, strict=True)
        return statistics.median(mine.end_s / theirs.end_s for mine, theirs in pairs)


def counts_of(said: str) -> list[int]:
    """Numbers of receivers, of `1,2,4`. Errors: `RltraceError`."""
    counts = [int(part) if part.isdecimal() else 0 for part in said.split(",")]
    if not all(0 < count <= 1024 for count in counts):
        raise WrongUsage(f"--receivers {said} is no list of numbers: 1,2,4,8")
    return counts


def measure(
    model: Model,
    ways: Sequence[Way],
    counts: Sequence[int],
    rounds: int,
    tell: Tell = lambda now, is_new: None,
) -> list[BenchRow]:
    """Publishes `rounds` versions each way to each number of receivers. Errors: `RltraceError`."""
    table = [
        [(w, BenchRow(w.name, n, w.between_bytes(model.bytes, n), w.missing(n))) for w in ways]
        for n in counts
    ]
    for count, found in zip(counts, table, strict=True):
        _leave_out(found, model, count)
    with _ended_well() as (folder, short), ExitStack() as sessions:
        states = [model.made(seed) for seed in (0, 1)]
        wanted = [(state, digest(state)) for state in states]
        memory = sessions.enter_context(closing(Memory(states[0], model.made(2))))
        entered: set[str] = set()
        for count, found in zip(counts, table, strict=True):
            while todo := [(way, row) for way, row in found if not row.missing]:
                at = todo[0]
                try:
                    with ExitStack() as opened:
                        sides = _Sides(model, count, folder, memory, wanted, opened)
                        for at in todo:
                            name, is_first = at[0].name, at is todo[0]
                            tell(f"N = {count}: {name} makes ready", is_first)
                            if name not in entered:
                                sessions.enter_context(at[0].session(model, short))
                                entered.add(name)
                            sides.open(at[0])
                        for at in _turns(todo, rounds, count, tell):
                            at[1].rounds.append(sides.round(at[0]))
                    break
                except Exception as error:  # of any kind: a peer that fails here leaves the others
                    if isinstance(at[0], SharedMemorySlots):
                        raise
                    at[1].missing = f"it failed here: {error}"
                    for _, row in todo:
                        row.rounds.clear()
            for _, row in found:
                del row.rounds[: -rounds or None]
    return [row for found in table for _, row in found]


def _turns(
    todo: list[tuple[Way, BenchRow]], rounds: int, count: int, tell: Tell
) -> Iterator[tuple[Way, BenchRow]]:
    chance, began = random.Random(SEED), time.monotonic()
    for number in range(WARM_UPS + rounds):
        for way, row in chance.sample(todo, len(todo)):
            done = number / (WARM_UPS + rounds)
            left = f", {(time.monotonic() - began) * (1 / done - 1):,.0f} s left" if number else ""
            what = f"round {number - WARM_UPS + 1} of {rounds}" if number >= WARM_UPS else "warm-up"
            tell(f"N = {count}: {what}, {way.name}{left}", False)
            yield way, row


class _Sides:
    def __init__(
        self,
        model: Model,
        count: int,
        folder: Path,
        memory: Memory,
        wanted: list[tuple[Weights, str]],
        opened: ExitStack,
    ) -> None:
        import torch

        self._model, self._count, self._folder = model, count, folder
        self._memory, self._wanted, self._opened = memory, wanted, opened
        self._threads = default_threads()
        torch.set_num_threads(self._threads)
        self._each = max(1, self._threads // count)
        self._crowd = opened.enter_context(closing(Crowd(model, count, self._each)))
        self._sides: dict[str, tuple[BenchSetting, Sender, Crowd, Iterator[int]]] = {}

    def open(self, way: Way) -> None:
        place = tempfile.mkdtemp(prefix="way-", dir=self._folder)
        self._opened.callback(shutil.rmtree, place, ignore_errors=True)
        setting = BenchSetting(self._model, self._count, place, self._each)
        receivers = way.receivers(setting, self._crowd)
        if receivers is not self._crowd:
            self._opened.callback(receivers.close)
        receivers.begin(way, setting)
        sender = self._opened.enter_context(closing(way.sender(setting)))
        receivers.wait_until_ready()
        self._sides[way.name] = setting, sender, receivers, itertools.count(1)

    def round(self, way: Way) -> Round:
        setting, sender, receivers, numbers = self._sides[way.name]
        number = next(numbers)
        weights, wanted = self._wanted[receivers.turn()]
        one_s, two_s = self._memory.one_thread_s(), self._memory.two_threads_s()
        if way.told_first:
            receivers.tell(setting, number)
        start = time.monotonic()
        told = sender.send(number, weights)
        stall_s = time.monotonic() - start
        if not way.told_first:
            receivers.tell(setting, told)
        end_s = max(receivers.ends()) - start
        if any(found != wanted for found in receivers.digests()):
            raise RltraceError(f"{way.name}: a receiver does not hold what was sent", ANSWER_IS_NO)
        return Round(self._count, one_s, two_s, stall_s, end_s)


def _leave_out(found: list[tuple[Way, BenchRow]], model: Model, count: int) -> None:
    """Notes the ways for which there is no memory. Errors: `RltraceError` for rltrace.sync."""
    free, needed = available_bytes(), (_COPIES + count) * model.bytes + count * _PROCESS_BYTES
    for way, row in found:
        takes = way.copies(count) * model.bytes
        takes += 0 if way.in_crowd else count * _PROCESS_BYTES
        if row.missing or needed + takes <= free:
            needed += 0 if row.missing else takes
        elif isinstance(way, SharedMemorySlots):
            said = f"this takes {(needed + takes) / 1e9:,.1f} GB of memory and"
            said += f" {free / 1e9:,.1f} GB are free: take a smaller model or fewer receivers"
            raise RltraceError(said, CANNOT_TELL)
        else:
            row.missing = "there is no memory for it beside the others: take a smaller model"
    check_room(shared_memory().parent, 4 * model.bytes)


@contextmanager
def _ended_well() -> Iterator[tuple[Path, Path]]:
    """A folder in shared memory, and one with a short path. Signals leave no process, no file."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _ENDINGS} if is_main else {}
    os.environ[_MARK] = mark = secrets.token_hex(8)
    others = _started(mark)
    folder = Path(tempfile.mkdtemp(prefix="rltrace-bench-", dir=shared_memory().parent))
    short = Path(tempfile.mkdtemp(prefix="rltb-", dir="/tmp"))

    def clean() -> None:
        for _ in range(10):  # one of them may be starting another
            for process in _started(mark, others):
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.02)
        for place in (folder, short):
            shutil.rmtree(place, ignore_errors=True)

    def end(number: int, frame: FrameType | None) -> None:
        clean()
        os._exit(128 + number)

    for number in before:
        signal.signal(number, end)
    try:
        yield folder, short
    finally:
        del os.environ[_MARK]
        clean()
        for number, handler in before.items():
            signal.signal(number, handler)


def _started(mark: str, before: Collection[int] = ()) -> list[int]:
    """The processes below this one or with the mark, which some lose, but for those `before`."""
    parents, found = dict[int, int](), [os.getpid()]
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            said = (path / "stat").read_text(errors="replace").rpartition(") ")[2]
            parents[int(path.name)] = int(said.split()[1])
            if mark.encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
    for process in found:
        found += [p for p, parent in parents.items() if parent == process and p not in found]
    return [process for process in found if process != os.getpid() and process not in before]
