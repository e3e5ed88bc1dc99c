"""The doses of this process: how long to sleep after a stay in a stage, and what was slept.

Of a stay's time only its own counts: what ran within it in another stage is that stage's, and a
stay directly within one of the same stage is part of it. A dose ends the stay that it belongs to,
so it is time of that stage like the work itself. What is owed is added up until it is worth a
sleep, and what a sleep took too long is taken off the next: the sum comes out right.

Written to the counters: `probe/<stage>/planned` (the dilation, by whoever records a step, as the
step begins), `probe/<stage>/slept` and `probe/<stage>/worked` (seconds, at the end of each sleep).
"""

from __future__ import annotations

import os
import time
from _contextvars import ContextVar
from _thread import RLock
from time import monotonic_ns

from rltrace.hooks import recorder as recording
from rltrace.hooks.step_file import StepFile
from rltrace.trace.vocabulary import Stage, word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rltrace.hooks.doses import Design

LEAST_NS = 2_000_000
"""Shorter sleeps are not worth it: an event loop counts in milliseconds."""

PLANNED, SLEPT, WORKED = "planned", "slept", "worked"


def counter_name(stage: str, what: str) -> str:
    """Name of the counter of a probed stage."""
    return f"probe/{stage}/{what}"


class Stay:
    """A call or block that works in a stage; `outer` is the one that it is within."""

    __slots__ = ("away_ns", "is_open", "outer", "since_ns", "stage")

    def __init__(self, stage: int, outer: Stay | None) -> None:
        self.stage = stage
        self.outer = outer
        self.away_ns = 0
        self.is_open = True
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
        self._worked_ns: dict[int, int] = {}
        self._sleepers = 0
        self._asleep_since_ns = 0
        self._slept_ns = 0  # any of this process's threads or tasks
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def publish(self, step: int) -> None:
        """This process records that a step begins."""
        self.steps.publish(step)
        for stage, dose in self.design.doses(self.steps.place()).items():
            _count(stage, PLANNED, dose)

    def enter(self, stage: int) -> Stay:
        """A stay begins."""
        outer = self._inside.get()
        while outer is not None and not outer.is_open:  # it began what outlives it
            outer = outer.outer
        stay = Stay(stage, outer)
        self._inside.set(stay)
        return stay

    def sleep(self, stay: Stay) -> None:
        """Ends a stay, after its dose; nothing else happens in this thread meanwhile."""
        due_ns = self._due_ns(stay)
        if due_ns:
            since_ns = self._falls_asleep()
            try:
                time.sleep(due_ns / 1e9)
            finally:
                self._wakes(stay.stage, since_ns, due_ns)
        self.leave(stay)

    async def sleep_aside(self, stay: Stay) -> None:
        """Ends a stay, after its dose; the event loop goes on meanwhile."""
        due_ns = self._due_ns(stay)
        if due_ns:
            from asyncio import sleep  # loaded: its loop runs us

            since_ns = self._falls_asleep()
            try:
                await sleep(due_ns / 1e9)
            finally:
                self._wakes(stay.stage, since_ns, due_ns)
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
        """Whether the stay's stage is delayed in this step."""
        return self._dose_of(stay.stage) > 0

    def _due_ns(self, stay: Stay) -> int:
        """What to sleep now, in ns; it counts as paid. 0: nothing, or not worth it yet."""
        stage, outer = stay.stage, stay.outer
        dose = self._dose_of(stage)
        if not dose or (outer is not None and outer.stage == stage):
            return 0
        own_ns = max(0, monotonic_ns() - stay.since_ns - stay.away_ns)
        with self._lock:
            self._worked_ns[stage] = self._worked_ns.get(stage, 0) + own_ns
            owed_ns = self._owed_ns.get(stage, 0.0) + dose * own_ns
            self._owed_ns[stage] = owed_ns
            if owed_ns < LEAST_NS:
                return 0
            self._owed_ns[stage] = 0.0
            if not self._affordable(owed_ns):
                self._record(stage, 0)
                return 0
        return round(owed_ns)

    def _dose_of(self, stage: int) -> float:
        place = self.steps.place()
        if place != self._place:
            with self._lock:
                self._doses = {
                    int(Stage[name.upper()]): dose
                    for name, dose in self.design.doses(place).items()
                }
                self._owed_ns.clear()
                self._worked_ns.clear()
                self._place = place
        return self._doses.get(stage, 0.0)

    def _affordable(self, more_ns: float) -> bool:
        """Whether this process stays within the budget if it sleeps so much longer."""
        allowed = self.design.budget * (monotonic_ns() - self.steps.began_ns)
        return self._slept_ns + more_ns <= allowed

    def _falls_asleep(self) -> int:
        now_ns = monotonic_ns()
        with self._lock:
            if not self._sleepers:
                self._asleep_since_ns = now_ns
            self._sleepers += 1
        return now_ns

    def _wakes(self, stage: int, since_ns: int, due_ns: int) -> None:
        now_ns = monotonic_ns()
        with self._lock:
            self._sleepers -= 1
            if not self._sleepers:
                self._slept_ns += now_ns - self._asleep_since_ns
            if stage in self._owed_ns:  # else another step has begun: nothing is carried over
                self._owed_ns[stage] -= now_ns - since_ns - due_ns
            self._record(stage, now_ns - since_ns)

    def _record(self, stage: int, slept_ns: int) -> None:
        name = word(Stage(stage))
        _count(name, SLEPT, slept_ns / 1e9)
        _count(name, WORKED, self._worked_ns.pop(stage, 0) / 1e9)

    def _renew_lock(self) -> None:
        """Another thread may hold it where a child is forked."""
        self._lock = RLock()


def _count(stage: str, what: str, value: float) -> None:
    recorder = recording.active()
    if recorder is not None:
        counter = recorder.name(counter_name(stage, what))
        recorder.append("samples", time_ns=monotonic_ns(), counter=counter, value=value)
