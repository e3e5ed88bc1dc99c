"""Two runs: which factor of goodput and which stage made the difference.

The stages' exposed seconds add up to the step, so their differences add up to the step's. How much
of that is other work (longer answers, larger batches) and how much is another pace is told apart by
tokens: step = tokens a step × seconds a token. Goodput is the product of its factors, so their
logarithms add up to its own.

Intervals are over the steps of the two runs (`bootstrap`). What differs from one start of a job to
the next (another host, another seed) is not in them: pairs of runs tell that (`trial`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.activity import read_activity
from rltrace.analysis.alarm import CRASH
from rltrace.analysis.bootstrap import Interval, differences, rate_ratio, ratio
from rltrace.analysis.busy import busy
from rltrace.analysis.cascade import Cascade, cascade
from rltrace.analysis.chains import Seconds
from rltrace.analysis.cut_short import whole_steps
from rltrace.analysis.devices import Devices, count_devices
from rltrace.analysis.differing import Difference, facts_that_differ, settings_that_differ
from rltrace.analysis.freshness import freshness
from rltrace.analysis.goodput import goodput
from rltrace.analysis.health import health
from rltrace.analysis.reward_curve import reward_curve
from rltrace.analysis.stages import break_down
from rltrace.analysis.staleness import staleness
from rltrace.analysis.step_figures import StepFigures, step_figures
from rltrace.analysis.steps import find_steps
from rltrace.analysis.untold_stages import why_untold
from rltrace.trace.errors import CANNOT_TELL, RltraceError
from rltrace.trace.recorded import recorded_until
from rltrace.trace.sampled import only_some

if TYPE_CHECKING:
    from rltrace.trace.run import Run

ALIKE = 0.02
"""A factor that changes by less than this is as it was."""


@dataclass(frozen=True)
class StageChange:
    """Exposed seconds a step of a stage (or "wait", "unattributed", "between steps") in the first
    run and in the second; `difference_s` is with its interval. All of them add up to the step's."""

    name: str
    before_s: float
    after_s: float
    difference_s: Interval


@dataclass(frozen=True)
class FactorChange:
    """A factor of goodput in both runs; `ratio` is second over first, with bounds that are NaN
    where the steps do not tell them. `once`: it is measured once a run, so that nothing tells how
    much of its change is chance. `share` is its part of the change of goodput (logarithms; NaN
    where goodput is unknown or alike)."""

    name: str
    before: float
    after: float
    ratio: Interval
    share: float
    once: bool = False

    @property
    def changed(self) -> bool:
        """Whether it is another one: surely, or by the only value that there is."""
        return (self.once or self.ratio.excludes(1.0)) and abs(math.log(self.ratio.value)) > ALIKE


@dataclass(frozen=True)
class Drift:
    """A property of the work a step did: `ratio` is second over first."""

    name: str
    before: float
    after: float
    ratio: Interval

    @property
    def changed(self) -> bool:
        """Whether the work surely differs in it."""
        return self.ratio.excludes(1.0) and abs(math.log(self.ratio.value)) > ALIKE


@dataclass(frozen=True)
class Comparison:
    """Two runs, `steps` steady ones of each. `step_s` is the second's step minus the first's,
    `step_ratio` over it; that is the product of `work_ratio` (tokens a step) and `pace_ratio`
    (seconds a token), NaN where no tokens were recorded. `rate_ratio` is that of useful tokens a
    second. Stages are in the order of their difference. `unwell` says of each run what forbids
    advice on it, and how it ended where it did not end by itself; `only_some` that not all of its
    samples were recorded ("": they were), so that nothing is told of them. `exposed_unknown` is why
    nobody knows what held the steps of one up ("": it is known); there are no stages then."""

    steps: tuple[int, int]
    before_s: float
    after_s: float
    step_s: Interval
    step_ratio: Interval
    work_ratio: Interval
    pace_ratio: Interval
    rate_ratio: Interval
    stages: tuple[StageChange, ...]
    factors: tuple[FactorChange, ...]
    drift: tuple[Drift, ...]
    settings: tuple[Difference, ...]
    devices: tuple[Difference, ...]
    unwell: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    only_some: tuple[str, str] = ("", "")
    exposed_unknown: str = ""

    @property
    def stage(self) -> StageChange | None:
        """The stage that made most of the step's difference; None where none surely did."""
        sign = math.copysign(1.0, self.step_s.value)
        sure = [s for s in self.stages if s.difference_s.excludes(0.0)]
        same = [s for s in sure if s.difference_s.value * sign > 0]
        return max(same, key=lambda s: abs(s.difference_s.value), default=None)

    @property
    def factor(self) -> FactorChange | None:
        """The factor that changed most; None where none did."""
        sure = [one for one in self.factors if one.ratio.value > 0 and one.changed]
        return max(sure, key=lambda f: abs(math.log(f.ratio.value)), default=None)


@dataclass(frozen=True, eq=False)
class _Side:
    figures: StepFigures
    cascade: Cascade | None
    devices: Devices
    unwell: tuple[str, ...]
    only_some: str
    exposed_unknown: str


def compare(first: Run, second: Run) -> Comparison:
    """What differs from `first` to `second`. Errors: `RltraceError` where one has no step."""
    a, b = _side(first), _side(second)
    x, y = a.figures, b.figures
    lengths = (x.length_s, y.length_s)
    ones = (np.ones(x.steps), np.ones(y.steps))
    step_ratio = ratio(*lengths)
    return Comparison(
        steps=(x.steps, y.steps),
        before_s=float(x.length_s.mean()),
        after_s=float(y.length_s.mean()),
        step_s=differences(*lengths, *lengths)[0],
        step_ratio=step_ratio,
        work_ratio=_rates((_work(x), ones[0]), (_work(y), ones[1])),
        pace_ratio=step_ratio
        if _same(_work(x), _work(y))
        else rate_ratio((x.length_s, _work(x)), (y.length_s, _work(y))),
        rate_ratio=rate_ratio((x.useful_tokens, x.length_s), (y.useful_tokens, y.length_s)),
        stages=_stages(x, y),
        factors=_factors(a, b),
        drift=_drift(x, y),
        settings=settings_that_differ(first, second),
        devices=facts_that_differ((first, a.devices), (second, b.devices)),
        unwell=(a.unwell, b.unwell),
        only_some=(a.only_some, b.only_some),
        exposed_unknown=a.exposed_unknown or b.exposed_unknown,
    )


def _side(run: Run) -> _Side:
    run = whole_steps(run)
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    breakdown = break_down(activity, steps)
    work = None if steps.whole_run else busy(run, activity, steps)
    figures = step_figures(run, steps, breakdown, work)
    if figures is None:
        raise RltraceError(f"{run.path} has no complete step to compare", CANNOT_TELL)
    begins, until_ns = run.begins_ns, recorded_until(run)
    recorded = activity.first_ns if begins is None else begins, until_ns
    tokens, fresh = goodput(run, steps, None), freshness(run, staleness(run))
    made = cascade(run, activity, steps, breakdown, tokens, fresh, recorded)
    devices = count_devices(run)
    found = health(
        *(run, activity, steps, breakdown, reward_curve(run, steps, devices), fresh),
        until_ns,
    )
    unwell = tuple(alarm.says for alarm in found.alarms if alarm.forbids or alarm.kind == CRASH)
    some = only_some(run.meta)
    return _Side(figures, made, devices, unwell, some, why_untold(breakdown.untold, some))


def _work(figures: StepFigures) -> Seconds:
    """Tokens of each step: generated ones, or those trained on where nobody saw generation."""
    generated = figures.generated_tokens
    return figures.trained_tokens if np.isnan(generated).any() else generated


def _stages(x: StepFigures, y: StepFigures) -> tuple[StageChange, ...]:
    if not (x.parts_s and y.parts_s):  # exposed times of one are not known
        return ()
    names = list(dict.fromkeys([*x.parts_s, *y.parts_s]))

    def columns(figures: StepFigures) -> Seconds:
        none = np.zeros(figures.steps)
        return np.stack([figures.parts_s.get(name, none) for name in names], axis=1)

    first, second = columns(x), columns(y)
    found = differences(first, second, x.length_s, y.length_s)
    changes = [
        StageChange(name, float(one), float(other), difference)
        for name, one, other, difference in zip(
            names, first.mean(axis=0), second.mean(axis=0), found, strict=True
        )
        if one or other
    ]
    return tuple(sorted(changes, key=lambda change: -abs(change.difference_s.value)))


def _factors(a: _Side, b: _Side) -> tuple[FactorChange, ...]:
    if a.cascade is None or b.cascade is None:
        return ()
    x, y = a.figures, b.figures
    by_step = {
        "placement efficiency": rate_ratio((x.work_s, x.length_s), (y.work_s, y.length_s)),
        "useful share": rate_ratio(
            (x.useful_tokens, x.decided_tokens), (y.useful_tokens, y.decided_tokens)
        ),
        "freshness weight": ratio(_known(x.ess), _known(y.ess)),
        "peak rate": rate_ratio((_work(x), x.work_s), (_work(y), y.work_s)),
    }
    goodput_log = _log(
        b.cascade.effective_tokens_per_device_s / a.cascade.effective_tokens_per_device_s
        if a.cascade.effective_tokens_per_device_s
        else math.nan
    )
    changes = []
    for one, other in zip(a.cascade.factors, b.cascade.factors, strict=True):
        value = other.value / one.value if one.value else math.nan
        change = _scaled(by_step.get(one.name), value)
        share = _log(value) / goodput_log if abs(goodput_log) > ALIKE else math.nan
        once = one.name not in by_step and not math.isnan(value)
        changes.append(FactorChange(one.name, one.value, other.value, change, share, once))
    return tuple(changes)


def _scaled(by_step: Interval | None, value: float) -> Interval:
    """The ratio of whole runs with the interval that their steps give it."""
    if by_step is not None and value == 1.0:
        return Interval(value, value, value)
    if by_step is None or not by_step.value > 0:
        return Interval(value, math.nan, math.nan)
    return Interval(
        value, value * by_step.low / by_step.value, value * by_step.high / by_step.value
    )


def _log(value: float) -> float:
    return math.log(value) if value > 0 else math.nan


def _known(values: Seconds) -> Seconds:
    return values[~np.isnan(values)]


def _drift(x: StepFigures, y: StepFigures) -> tuple[Drift, ...]:
    ones = (np.ones(x.steps), np.ones(y.steps))
    found = []
    for name, first, second in (
        ("samples a step", (x.generated_samples, ones[0]), (y.generated_samples, ones[1])),
        (
            "tokens a sample",
            (x.generated_tokens, x.generated_samples),
            (y.generated_tokens, y.generated_samples),
        ),
        ("tokens trained on a step", (x.trained_tokens, ones[0]), (y.trained_tokens, ones[1])),
        ("reward of a verdict", (x.reward, ones[0]), (y.reward, ones[1])),
    ):
        before, after = _rate(*first), _rate(*second)
        if math.isnan(before) or math.isnan(after):
            continue
        found.append(Drift(name, before, after, _rates(_both(*first), _both(*second))))
    return tuple(found)


def _rates(first: tuple[Seconds, Seconds], second: tuple[Seconds, Seconds]) -> Interval:
    """The ratio of two rates; exactly 1 where step by step the same was done (the same seed)."""
    if _same(first[0], second[0]) and _same(first[1], second[1]):
        return Interval(1.0, 1.0, 1.0)
    return rate_ratio(first, second)


def _same(first: Seconds, second: Seconds) -> bool:
    """Whether two series are the same, step by step; unknown ones are not."""
    return bool(len(first) == len(second) and (first == second).all())


def _both(amount: Seconds, per: Seconds) -> tuple[Seconds, Seconds]:
    known = ~np.isnan(amount) & ~np.isnan(per)
    return amount[known], per[known]


def _rate(amount: Seconds, per: Seconds) -> float:
    a, p = _both(amount, per)
    return float(a.sum() / p.sum()) if len(a) and p.sum() > 0 else math.nan
