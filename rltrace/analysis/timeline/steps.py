"""The steps of a run: windows, warm-up, generations.

A step is a span of stage `STEP`; `rltrace.trace.read.row_filters` says whose count. Without any
step the whole run is one window.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from rltrace.analysis.timeline.interval_lookup import TIMED
from rltrace.analysis.timeline.intervals import Bools, Floats, Ints
from rltrace.trace.read.row_filters import Parts, one_clock, parts_of
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.run_dir import STEP_FAILED
from rltrace.trace.vocabulary import Stage

_LEADING_SHARE = 1 / 3  # more leading steps than this are no warm-up but a trend
_FEWEST_STEPS = 5  # below this only a wide margin tells a slow step from a usual one
_DEVIATIONS = 3.5  # Iglewicz and Hoaglin's cut for the modified z-score
_SLOWER = 1.2  # and a warm-up step is at least this many times the usual one
_HALF_AGAIN = 1.5
_FAR_BEYOND = 3.0
_NEVER_NS = (1 << 63) - 1
FEWEST_ALIKE = 3  # fewer steps of a kind do not tell how long one usually takes
# The part of a generation, or of a step, that has to be in the other: the ranks of a learner do not
# begin a step at the same moment.
_PART = 0.1


@dataclass(frozen=True)
class Window:
    """One step, Unix ns. `step` is its number, -1 for a whole run; `process` recorded it."""

    step: int
    start_ns: int
    end_ns: int
    process: int
    warmup: bool
    generates: bool = False

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True)
class Steps:
    """All complete steps in the order of time. `whole_run`: there were none, the run is the window.
    `in_progress` are those that never ended, `(number, start_ns)`; `failed` those that an exception
    left, and the job went on, `(number, start_ns, when their process began another)`. `repeated` is
    how many numbers came more than once (a restart from a checkpoint). `stalled` are places in
    `windows` of steps that the run is judged without. Where one step generates for itself and the
    next ones, in turns, they are `per_generation` steps (else 0)."""

    windows: tuple[Window, ...]
    whole_run: bool
    in_progress: tuple[tuple[int, int], ...]
    repeated: int
    failed: tuple[tuple[int, int, int], ...] = ()
    stalled: tuple[int, ...] = ()
    per_generation: int = 0

    @cached_property
    def starts_ns(self) -> Ints:
        return np.array([window.start_ns for window in self.windows], np.int64)

    @cached_property
    def ends_ns(self) -> Ints:
        return np.array([window.end_ns for window in self.windows], np.int64)

    def places_at(self, times_ns: Ints) -> Ints:
        """Places in `windows` of the steps at these moments (both ends included); -1: in none."""
        place = np.searchsorted(self.starts_ns, times_ns, side="right") - 1
        inside = (place >= 0) & (times_ns <= np.append(self.ends_ns, 0)[place])
        return np.where(inside, place, -1)

    @property
    def settled(self) -> tuple[int, ...]:
        return tuple(i for i, window in enumerate(self.windows) if not window.warmup)

    @property
    def unbroken(self) -> tuple[int, ...]:
        """The longest stretch of settled steps without a stall (of equal ones the last)."""
        settled = self.settled
        cuts = [settled.index(place) for place in self.stalled]
        edges = pairwise((-1, *cuts, len(settled)))
        stretches = [settled[before + 1 : cut] for before, cut in edges]
        return max(reversed(stretches), key=len)

    @property
    def whole_generations(self) -> tuple[int, ...]:
        """Of the `unbroken` steps those of whole turns, from the first that generates."""
        begins = [i for i in self.unbroken if self.windows[i].generates]
        if not (self.per_generation and begins):
            return ()
        end = begins[-1] + self.per_generation
        return tuple(range(begins[0], end if end <= self.unbroken[-1] + 1 else begins[-1]))

    @property
    def steady(self) -> tuple[int, ...]:
        """Places in `windows` of the steps that figures are over: the `unbroken` ones, as what is
        made in one step is used in another, and of them whole generations where there is one."""
        return self.whole_generations or self.unbroken

    @property
    def steady_ns(self) -> tuple[int, int]:
        """Since when, and before when, things are of the steady steps, Unix ns."""
        steady = self.steady
        if self.whole_run or not steady:
            return 0, _NEVER_NS
        after = steady[-1] + 1
        until = self.windows[after].start_ns if after < len(self.windows) else _NEVER_NS
        return self.windows[steady[0]].start_ns, until

    @property
    def none_complete(self) -> bool:
        return self.whole_run and bool(self.in_progress or self.failed)

    @property
    def between_s(self) -> float:
        """Seconds between the end of a steady step and the next one, all together."""
        pairs = pairwise(self.windows[i] for i in self.steady)
        return sum(max(0, b.start_ns - a.end_ns) for a, b in pairs) / 1e9


def find_steps(run: OpenedRun, recorded: tuple[int, int]) -> Steps:
    """The steps of `run`. `recorded` is when the first and the last span of the run lie (ns)."""
    query = f"select step, start_ns, end_ns, process from raw_spans where stage = {int(Stage.STEP)}"
    rows = run.ask(f"{query} order by start_ns")
    errors = {} if run.meta.get("exit_code") else step_errors(run)
    steps = steps_of(rows, recorded, parts_of(run.processes), errors)
    if steps.whole_run:
        return steps
    keeper = steps.windows[-1].process
    generates, crosses = find_generating(run, steps.starts_ns, steps.ends_ns, keeper)
    imported = run.meta.get("imported")
    told = imported.get("generating") if isinstance(imported, dict) else None
    if isinstance(told, list):  # a log that tells which steps generated, and not how long
        numbers = {number for number in told if isinstance(number, int)}
        both = zip(generates, steps.windows, strict=True)
        generates = [known or window.step in numbers for known, window in both]
    warm = warmup_by_margin([w.length_s for w in steps.windows], generates)
    in_order = enumerate(steps.windows)
    windows = tuple(replace(w, warmup=i < warm, generates=generates[i]) for i, w in in_order)
    per_generation = 0 if crosses else steps_per_generation(generates)
    return replace(steps, windows=windows, per_generation=per_generation)


def step_errors(run: OpenedRun) -> dict[int, str]:
    found = [problem for problem in run.problems if problem.get("what") == STEP_FAILED]
    return {
        int(str(problem["target"])): str(problem.get("detail") or "")
        for problem in reversed(found)
        if re.fullmatch(r"-?\d{1,18}", str(problem.get("target")))
    }


def steps_of(
    rows: list[tuple[int, int, int, int]], recorded: tuple[int, int], parts: Parts,
    errors: Collection[int] = (),
) -> Steps:  # fmt: skip
    """The steps of rows `(step, start_ns, end_ns or -1, process)` in order of their start; an
    exception left those in `errors`, in a job that went on. `parts` as in `one_clock`."""
    whole = [row for row in rows if row[2] >= row[1]]
    ended = {step: start for step, start, _, _ in whole}
    left = _failed(rows)
    starts = {start for _, start, _ in left}
    begun: dict[int, int] = {}
    for step, start, end, _ in rows:
        done_again = ended.get(step, -1) > start
        if end < 0 and not done_again and start not in starts:
            begun.setdefault(step, start)
    in_progress = tuple(one for one in begun.items() if one[0] not in errors)
    left += [(n, start, max(start, recorded[1])) for n, start in begun.items() if n in errors]
    failed = tuple(sorted(left, key=lambda one: one[1]))
    if not whole:
        start, end = recorded
        window = Window(-1, start, end, -1, False)
        return Steps((window,) if end > start else (), True, in_progress, 0, failed)
    kept = one_clock(whole, parts)
    warm = warmup_by_margin([end - start for _, start, end, _ in kept])
    windows = tuple(Window(*row, warmup=i < warm) for i, row in enumerate(kept))
    numbers = [window.step for window in windows if window.step >= 0]
    return Steps(windows, False, in_progress, len(numbers) - len(set(numbers)), failed)


def _failed(rows: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int]]:
    """Steps without an end after which their process, which does one at a time, began another."""
    found = []
    for process in {row[3] for row in rows if row[2] < 0}:
        mine = [row for row in rows if row[3] == process]
        whole = [row for row in mine if row[2] >= 0]
        if any(b[1] < a[2] and a[0] != b[0] for a, b in pairwise(whole)):
            continue
        found += [(a[0], a[1], b[1]) for a, b in pairwise(mine) if a[2] < 0]
    return found


def warmup_by_margin(lengths: Sequence[float], generates: Sequence[bool] = ()) -> int:
    """How many leading steps are out of line with the second half of the run: far from its median
    (by its MAD), or longer than all of it and half as long again as its median; of few steps only a
    first one that is far beyond all others. Where only some generate each is judged by its kind."""
    values = np.asarray(lengths, np.float64)
    kinds = generates or [False] * len(values)
    slow = np.zeros(len(values), np.bool_)
    for kind, peers in held_against(range(len(values)), kinds).items():
        mine = [i for i, one in enumerate(kinds) if one == kind]
        judged = sorted({*mine, *peers}) if peers else []
        slow[mine] = _slow(values[judged])[np.isin(judged, mine)] if judged else False
    leading = int(np.argmin(np.append(slow, False)))
    return leading if leading <= len(slow) * _LEADING_SHARE else 0


def _slow(values: Floats) -> Bools:
    if len(values) < _FEWEST_STEPS:
        beyond = len(values) >= 3 and values[0] > _FAR_BEYOND * values[1:].max()
        return np.array([i == 0 and beyond for i in range(len(values))], np.bool_)
    usual = values[len(values) // 2 :]
    median = float(np.median(usual))
    deviation = 1.4826 * float(np.median(np.abs(usual - median)))
    cut = max(median + _DEVIATIONS * deviation, _SLOWER * median)
    cut = min(cut, max(float(usual.max()), _HALF_AGAIN * median))
    return np.asarray(values > cut)


# --- which steps generate: where one generation serves several updates, most steps only train.
# Steps that generate are long by design. So a step is only held against those of its kind, and
# means are of whole generations: a generation with all the steps that train on it.


def find_generating(
    run: OpenedRun, starts: Ints, ends: Ints, keeper: int
) -> tuple[list[bool], bool]:
    """Which of the steps between these moments (Unix ns, in order) generate, and whether a
    generation went on in the next one. Where the process of these steps, `keeper`, generates itself
    nobody else is asked, as other ranks begin a little earlier or later; nor where all do that one
    process can tell."""
    spans = f"from raw_spans where stage = {int(Stage.ROLLOUT)} and {TIMED}"
    if not run.ask(f"select 1 {spans} limit 1"):  # then samples are the work
        spans = f"from raw_trajectories where {TIMED}"
    mine = run.ask(f"select process {spans} and process = {keeper} limit 1")
    ((one,),) = mine or run.ask(f"select process {spans} limit 1") or ((-1,),)
    found = _found(run, f"{spans} and process = {one}", starts, ends)
    return found if one == keeper or all(found[0]) else _found(run, spans, starts, ends)


def _found(run: OpenedRun, spans: str, starts: Ints, ends: Ints) -> tuple[list[bool], bool]:
    edge = np.zeros(len(starts) + 1, np.int64)
    crosses = False
    for batch in run.ask_batches(f"select start_ns, end_ns {spans}"):
        since, until = batch
        first = np.searchsorted(ends, since, side="right")
        last = np.searchsorted(starts, until, side="left") - 1
        met = first <= last
        since, until, first, last = since[met], until[met], first[met], last[met]
        first += _is_aside(since, until, starts[first], ends[first])
        last -= _is_aside(since, until, starts[last], ends[last])
        met = first <= last
        crosses |= bool((first < last).any())
        edge += np.bincount(first[met], minlength=len(edge))
        edge -= np.bincount(last[met] + 1, minlength=len(edge))
    return (np.cumsum(edge)[:-1] > 0).tolist(), crosses


def _is_aside(since: Ints, until: Ints, start: Ints, end: Ints) -> Bools:
    """Whether what a step has of a generation is a small part of both."""
    both = np.minimum(until, end) - np.maximum(since, start)
    return np.asarray(both < _PART * np.minimum(until - since, end - start))


def steps_per_generation(generates: Sequence[bool]) -> int:
    """How many steps usually train on what one generates; 0 where too few turns are alike."""
    begins = np.flatnonzero(generates)
    if len(begins) < 2:
        return 0
    lengths, counts = np.unique(np.diff(begins), return_counts=True)
    usual = int(lengths[np.argmax(counts)])
    at_the_ends = max(int(begins[0]), len(generates) - int(begins[-1]))
    regular = 2 * counts.max() > counts.sum() and at_the_ends <= usual
    return usual if usual > 1 and regular else 0


def held_against(places: Iterable[int], generates: Sequence[bool]) -> dict[bool, list[int]]:
    """The places of steps that tell how long one usually takes that generates (True), or does not.
    That has less to do: where few are of its kind, those that generate tell."""
    kinds: dict[bool, list[int]] = {True: [], False: []}
    for place in places:
        kinds[generates[place]].append(place)
    long, short = (one if len(one) >= FEWEST_ALIKE else [] for one in (kinds[True], kinds[False]))
    return {True: long, False: short or long}
