"""The doses of this process: how long to sleep after a stay in a stage.

Of a stay's time only its own counts: what ran within it in another stage is that stage's, and a
stay directly within one of the same stage is part of it. A dose ends its stay, so it is time of
that stage. What is owed is added up until it is worth a sleep, and what a sleep took too long is
taken off the next.

A dose is a *dilation*: of every second that a stage works in a dosed step, so much more is slept.
In every block of `BLOCK` steps each stage is dosed in exactly one, drawn for each stage by itself;
the first block is left alone (warm-up). So the mean dose of each stage is `budget`, and as no
second of a step's critical path is stretched by more than its stage, the job gets no slower than by
that. Every process draws the same doses from seed, step and stage: they only share the step.

Written to the counters: `probe/<stage>/planned` (the dilation, by whoever records a step, as it
begins), `.../slept` (seconds, at the end of each sleep), and in all steps `.../worked` and
`.../longest`: the seconds that stays took of their own, without doses, and the longest of them.
"""

from __future__ import annotations

import mmap
import os
import time
from _blake2 import blake2b  # hashlib would cost every process 2 ms
from _contextvars import ContextVar
from _thread import RLock
from time import monotonic_ns

from rltrace.hooks import recorder as recording
from rltrace.hooks.spans import codes_of
from rltrace.trace.clock import node_id
from rltrace.trace.job_exceptions import contained
from rltrace.trace.safe_open import opened
from rltrace.trace.vocabulary import LONGEST, PLANNED, SLEPT, WORKED, Stage, word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

LEAST_NS = 2_000_000  # shorter sleeps are not worth it: event loops count in ms
NOTED_NS = 5_000_000  # stays are noted together until they are this long


class Stay:
    """A call or block that works in a stage; `outer` is the one that it is within."""

    __slots__ = ("away_ns", "is_due", "is_open", "outer", "since_ns", "stage")

    def __init__(self, stage: int, outer: Stay | None) -> None:
        self.stage = stage
        self.outer = outer
        self.away_ns = 0
        self.is_open = True
        self.is_due = True  # whoever ends it first gives it its dose
        self.since_ns = monotonic_ns()


class Delays:
    """Gives the doses of a design in this process."""

    def __init__(self, design: Design, run_dir: str) -> None:
        """Errors: OSError where the node's step file cannot be had."""
        self.design = design
        self.steps = StepFile(run_dir)
        # Follows what a task or a thread does, and `asyncio.to_thread` and new tasks inherit it.
        self._inside: ContextVar[Stay | None] = ContextVar("rltrace_stay", default=None)
        self._place = -1
        self._doses: dict[int, float] = {}
        self._owed_ns: dict[int, float] = {}
        self._codes = codes_of("Stage")
        self._work = {self._codes[name]: _Work(name) for name in design.stages}
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def publish(self, step: int) -> None:
        self.steps.publish(step)
        for stage, dose in self.design.doses(self.steps.place()).items():
            _count(stage, PLANNED, dose)

    def enter(self, stage: int) -> Stay:
        outer = self._inside.get()
        while outer is not None and not outer.is_open:  # it began what outlives it
            outer = outer.outer
        stay = Stay(stage, outer)
        self._inside.set(stay)
        return stay

    def sleep(self, stay: Stay) -> None:
        """Ends a stay, after its dose, for which this thread stands still."""
        try:
            with contained(tell=recording.failed):
                if due_ns := self._due_ns(stay):
                    since_ns = monotonic_ns()
                    try:
                        time.sleep(due_ns / 1e9)
                    finally:
                        self._wakes(stay.stage, since_ns, due_ns)
        finally:
            self.leave(stay)

    async def sleep_aside(self, stay: Stay) -> None:
        """Ends a stay, after its dose, while the event loop goes on."""
        try:
            with contained(tell=recording.failed):
                if due_ns := self._due_ns(stay):
                    from asyncio import sleep  # loaded: its loop runs us

                    since_ns = monotonic_ns()
                    try:
                        await sleep(due_ns / 1e9)
                    finally:
                        self._wakes(stay.stage, since_ns, due_ns)
        finally:
            self.leave(stay)

    def leave(self, stay: Stay) -> None:
        """Ends a stay (once), without a dose if it has had none."""
        if not stay.is_open:
            return
        stay.is_open = False
        outer = stay.outer
        if self._inside.get() is stay:
            self._inside.set(outer)
        if outer is not None:
            same = outer.stage == stay.stage
            outer.away_ns += stay.away_ns if same else monotonic_ns() - stay.since_ns

    def has_dose(self, stay: Stay) -> bool:
        return self._dose_of(stay.stage) > 0

    def _due_ns(self, stay: Stay) -> int:
        """What to sleep now, in ns; it counts as paid. 0: nothing, or not worth it yet."""
        if not (stay.is_due and stay.is_open):
            return 0
        stay.is_due = False
        stage, outer = stay.stage, stay.outer
        dose = self._dose_of(stage)
        if stage not in self._work or (outer is not None and outer.stage == stage):
            return 0
        now_ns = monotonic_ns()
        own_ns = max(0, now_ns - stay.since_ns - stay.away_ns)
        with self._lock:
            work = self._work[stage]
            work.add(own_ns, now_ns)
            if work.sum_ns >= NOTED_NS:
                work.note()
            if not dose:
                return 0
            owed_ns = self._owed_ns.get(stage, 0.0) + dose * own_ns
            self._owed_ns[stage] = owed_ns
            if owed_ns < LEAST_NS:
                return 0
            self._owed_ns[stage] = 0.0
            began_ns = self.steps.began_ns
            if not work.afford(stay.since_ns, now_ns + owed_ns, dose, self.design.budget, began_ns):
                _count(word(Stage(stage)), SLEPT, 0.0)
                return 0
        return round(owed_ns)

    def _dose_of(self, stage: int) -> float:
        place = self.steps.place()
        if place != self._place:
            with self._lock:
                doses = self.design.doses(place)
                self._doses = {self._codes[name]: dose for name, dose in doses.items()}
                self._owed_ns.clear()
                for work in self._work.values():
                    if work.sum_ns:
                        work.note()
                self._place = place
        return self._doses.get(stage, 0.0)

    def _wakes(self, stage: int, since_ns: int, due_ns: int) -> None:
        now_ns = monotonic_ns()
        with self._lock:
            if stage in self._owed_ns:  # else another step has begun: nothing is carried over
                self._owed_ns[stage] -= now_ns - since_ns - due_ns
            _count(word(Stage(stage)), SLEPT, (now_ns - since_ns) / 1e9)

    def _renew_lock(self) -> None:
        """Another thread may hold it where a child is forked."""
        self._lock = RLock()


class _Work:
    """A stage's account: stays that are not noted yet, and what its doses may have cost."""

    __slots__ = ("last_ns", "longest_ns", "spent_ns", "stage", "sum_ns", "until_ns")

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.sum_ns = self.longest_ns = self.last_ns = 0
        self.spent_ns = 0.0
        self.until_ns = 0

    def afford(
        self, since_ns: int, end_ns: float, dose: float, budget: float, began_ns: int
    ) -> bool:
        """Whether the budget allows for a dose that ends a stay. Of the time in which any stay of a
        dosed stage was open, however many at once, the job has lost dose / (1 + dose) at most; that
        may be `budget` of the time since the run began."""
        longer_ns = max(0.0, end_ns - max(since_ns, self.until_ns))
        spent_ns = self.spent_ns + longer_ns * dose / (1 + dose)
        if spent_ns > budget * (end_ns - began_ns):
            return False
        self.spent_ns = spent_ns
        self.until_ns = max(self.until_ns, round(end_ns))
        return True

    def add(self, own_ns: int, now_ns: int) -> None:
        self.sum_ns += own_ns
        self.longest_ns = max(self.longest_ns, own_ns)
        self.last_ns = now_ns

    def note(self) -> None:
        """Writes them down at the end of the last one, which may be in the step before."""
        _count(self.stage, WORKED, self.sum_ns / 1e9, self.last_ns)
        _count(self.stage, LONGEST, self.longest_ns / 1e9, self.last_ns)
        self.sum_ns = self.longest_ns = 0


def _count(stage: str, what: str, value: float, time_ns: int | None = None) -> None:
    recorder = recording.active()
    if recorder is not None:
        counter, moment = recorder.name(f"probe/{stage}/{what}"), time_ns or monotonic_ns()
        recorder.append("samples", time_ns=moment, counter=counter, value=value)


FOLDER = "probe"

_BEGAN, _FIRST, _STEP = range(3)
_NUMBERS = 3


class StepFile:
    """This node's step file of a run: three numbers that its processes share, mapped.

    The process that records steps writes, all others read: eight bytes of memory, no call. Mapped
    files are no messages between nodes, so each node has its own; without such a process it has
    none.
    """

    __slots__ = ("_map", "_numbers")

    def __init__(self, run_dir: str) -> None:
        """Errors: OSError where the file cannot be made or mapped."""
        folder = f"{run_dir}/{FOLDER}"
        os.makedirs(folder, exist_ok=True)
        with opened(f"{folder}/{node_id()}.steps", os.O_RDWR | os.O_CREAT) as file:
            os.posix_fallocate(file, 0, 8 * _NUMBERS)
            self._map = mmap.mmap(file, 8 * _NUMBERS)
        self._numbers = memoryview(self._map).cast("q")
        if not self._numbers[_BEGAN]:
            self._numbers[_BEGAN] = monotonic_ns()

    @property
    def began_ns(self) -> int:
        """When the first process of the node opened it (monotonic ns)."""
        return self._numbers[_BEGAN]

    def publish(self, step: int) -> None:
        """A step begins. Numbers are kept one up, as fresh space is 0."""
        if not self._numbers[_FIRST]:
            self._numbers[_FIRST] = step + 1
        self._numbers[_STEP] = step + 1

    def place(self) -> int:
        """How many steps after the first one the node is; -1 before any."""
        first = self._numbers[_FIRST]
        return self._numbers[_STEP] - first if first else -1


BLOCK = 4
"""Steps of a block. Rarer, larger doses tell more for a budget (a dose of mean b in one of n steps
has variance (n - 1) b²), but a large one may bring a stage to bind that did not."""

LARGEST_BUDGET = 0.125  # of the job's time: a dose is then half as long again as the work
DEFAULT_BUDGET = 0.05

STAGES = (
    *("rollout", "env", "reward", "reference", "logprob", "value", "train", "sync", "switch"),
    *("data", "checkpoint", "eval"),
)
"""The stages that can be delayed: those that are work."""

DEFAULT_STAGES = STAGES[:9]


class Design:
    """Which stages are delayed, the budget (share of the job's time) and the seed."""

    __slots__ = ("budget", "seed", "stages")

    def __init__(self, stages: Iterable[str], budget: float, seed: int) -> None:
        """Errors: `ValueError` for a stage that cannot be delayed, a budget out of range."""
        self.stages = tuple(dict.fromkeys(stages)) or DEFAULT_STAGES
        listed = ", ".join(STAGES)
        for stage in self.stages:
            if stage not in STAGES:
                raise ValueError(f"{stage!r} is none of the stages that can be delayed: {listed}")
        if not 0 < budget <= LARGEST_BUDGET:
            most = f"{100 * LARGEST_BUDGET:g} %"
            raise ValueError(f"a budget is more than 0 % and at most {most}, not {100 * budget:g}")
        self.budget = budget
        self.seed = seed

    @property
    def dose(self) -> float:
        """The dilation in a dosed step: seconds slept for a second of work."""
        return self.budget * BLOCK

    def doses(self, place: int) -> dict[str, float]:
        """The dilation of each stage dosed in a step; `place` counts steps from the job's first."""
        block, within = divmod(place, BLOCK)
        if block < 1:
            return {}
        return {s: self.dose for s in self.stages if self._drawn(s, block) == within}

    def _drawn(self, stage: str, block: int) -> int:
        key = f"{self.seed}/{stage}/{block}".encode()
        return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") % BLOCK

    def text(self) -> str:
        """The design for an environment variable; `Design.of` reads it."""
        return f"{self.budget!r};{self.seed};{','.join(self.stages)}"

    def settings(self) -> dict[str, Any]:
        design = {"stages": list(self.stages), "budget": self.budget, "seed": self.seed}
        return {**design, "dose": self.dose, "block": BLOCK}

    @classmethod
    def of(cls, text: str) -> Design:
        """Errors: `ValueError`."""
        budget, seed, stages = text.split(";")
        return cls(stages.split(","), float(budget), int(seed))
