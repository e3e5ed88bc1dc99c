"""Two runs: which factor of goodput and which stage made the difference.

The stages' exposed seconds add up to the step, so their differences add up to the step's. Other
work and another pace are told apart by tokens: step = tokens a step × seconds a token. Goodput is
the product of its factors, so their logarithms add up to its own. Intervals are over the steps of
the two runs: what differs from one start of a job to the next is told by pairs of runs (`trial`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.alarm import CRASH
from rltrace.analysis.cascade import Cascade
from rltrace.analysis.chains import Seconds
from rltrace.analysis.differing import Difference, facts_that_differ, settings_that_differ
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.interval import UNKNOWN, Interval
from rltrace.analysis.stats.resampling import differences, rate_ratio, ratio
from rltrace.analysis.step_figures import StepFigures, step_figures
from rltrace.trace.errors import CANNOT_TELL, RltraceError
from rltrace.trace.run import Run
from rltrace.trace.sampled import only_some

ALIKE = 0.02
"""A factor that changes by less than this is as it was."""


@dataclass(frozen=True)
class StageChange:
    """Exposed seconds a step of a stage (or "wait", "unattributed", "between steps") in both runs,
    which add up to the step's."""

    name: str
    before_s: float
    after_s: float
    difference_s: Interval


@dataclass(frozen=True)
class Drift:
    """A property of the work a step did: `ratio` is second over first."""

    name: str
    before: float
    after: float
    ratio: Interval

    @property
    def changed(self) -> bool:
        return self.ratio.excludes(1.0) and abs(math.log(self.ratio.value)) > ALIKE


@dataclass(frozen=True)
class FactorChange(Drift):
    """A factor of goodput in both runs; the bounds of `ratio` are NaN where steps do not tell them.
    `once`: it is measured once a run, so that nothing tells how much of its change is chance.
    `share` is its part of the change of goodput (logarithms; NaN where goodput is unknown or
    alike)."""

    share: float
    once: bool

    @property
    def changed(self) -> bool:
        """Whether it is another one: surely, or by the only value that there is."""
        return super().changed or (self.once and abs(math.log(self.ratio.value)) > ALIKE)


@dataclass(frozen=True)
class Comparison:
    """Two runs, `steps` steady ones of each. `step_s` is the second's step minus the first's,
    `step_ratio` over it: the product of `work_ratio` (tokens a step) and `pace_ratio` (seconds a
    token), NaN where no tokens were recorded. `rate_ratio` is that of useful tokens a second.
    Stages are in the order of their difference. `unwell` says of each run what forbids advice on it
    or ended it, `only_some` that not all of its samples were recorded, `exposed_unknown` why nobody
    knows what held the steps of one up ("": it is known); there are no stages then."""

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


def compare(first: Run, second: Run) -> Comparison:
    """What differs from `first` to `second`. Errors: `RltraceError` where one has no step."""
    a, b = RunAnalysis(first), RunAnalysis(second)
    x, y = _figures(a), _figures(b)
    lengths, work = (x.length_s, y.length_s), (_work(x), _work(y))
    step_ratio = ratio(*lengths)
    return Comparison(
        steps=(x.steps, y.steps),
        before_s=float(x.length_s.mean()),
        after_s=float(y.length_s.mean()),
        step_s=differences(*lengths, *lengths)[0],
        step_ratio=step_ratio,
        work_ratio=_rates((work[0], np.ones(x.steps)), (work[1], np.ones(y.steps))),
        pace_ratio=step_ratio
        if _same(*work)
        else rate_ratio((x.length_s, work[0]), (y.length_s, work[1])),
        rate_ratio=rate_ratio((x.useful_tokens, x.length_s), (y.useful_tokens, y.length_s)),
        stages=_stages(x, y),
        factors=_factors(a.cascade, b.cascade, x, y),
        drift=_drift(x, y),
        settings=settings_that_differ(first, second),
        devices=facts_that_differ((first, a.devices), (second, b.devices)),
        unwell=(_unwell(a), _unwell(b)),
        only_some=(only_some(a.run.meta), only_some(b.run.meta)),
        exposed_unknown=a.untold or b.untold,
    )


def _figures(analysis: RunAnalysis) -> StepFigures:
    figures = step_figures(analysis, analysis.steps)
    if figures is None:
        raise RltraceError(f"{analysis.run.path} has no complete step to compare", CANNOT_TELL)
    return figures


def _unwell(analysis: RunAnalysis) -> tuple[str, ...]:
    alarms = analysis.health.alarms
    return tuple(alarm.says for alarm in alarms if alarm.forbids or alarm.kind == CRASH)


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
    means = (columns.mean(axis=0).tolist() for columns in (first, second))
    changes = [
        StageChange(name, before, after, difference)
        for name, before, after, difference in zip(names, *means, found, strict=True)
        if before or after
    ]
    return tuple(sorted(changes, key=lambda change: -abs(change.difference_s.value)))


def _factors(
    a: Cascade | None, b: Cascade | None, x: StepFigures, y: StepFigures
) -> tuple[FactorChange, ...]:
    if a is None or b is None:
        return ()
    by_step = {
        "placement efficiency": rate_ratio((x.work_s, x.device_s), (y.work_s, y.device_s)),
        "useful share": rate_ratio(
            (x.useful_tokens, x.decided_tokens), (y.useful_tokens, y.decided_tokens)
        ),
        "freshness weight": ratio(_known(x.ess), _known(y.ess)),
        "peak rate": rate_ratio((_work(x), x.work_s), (_work(y), y.work_s)),
    }
    goodputs = a.effective_tokens_per_device_s, b.effective_tokens_per_device_s
    goodput_log = _log_ratio(*goodputs)
    changes = []
    for one, other in zip(a.factors, b.factors, strict=True):
        value = other.value / one.value if one.value else math.nan
        # The ratio of whole runs with the interval that their steps give it.
        steps = by_step.get(one.name, UNKNOWN)
        ends = [value * end / steps.value for end in (steps.low, steps.high)]
        told = one.name in by_step
        change = Interval(value, *([1.0, 1.0] if told and value == 1.0 else ends))
        share = math.nan
        if abs(goodput_log) > ALIKE:
            share = _log_ratio(one.value, other.value) / goodput_log
        once = not told and not math.isnan(value)
        changes.append(FactorChange(one.name, one.value, other.value, change, share, once))
    return tuple(changes)


def _log_ratio(before: float, after: float) -> float:
    return math.log(after / before) if before and after / before > 0 else math.nan


def _known(values: Seconds) -> Seconds:
    return values[~np.isnan(values)]


def _drift(x: StepFigures, y: StepFigures) -> tuple[Drift, ...]:
    def rates(figures: StepFigures) -> dict[str, tuple[Seconds, Seconds]]:
        ones = np.ones(figures.steps)
        return {
            "samples a step": (figures.generated_samples, ones),
            "tokens a sample": (figures.generated_tokens, figures.generated_samples),
            "tokens trained on a step": (figures.trained_tokens, ones),
            "reward of a verdict": (figures.reward, ones),
        }

    found = []
    for (name, first), second in zip(rates(x).items(), rates(y).values(), strict=True):
        before, after = _rate(*first), _rate(*second)
        if not (math.isnan(before) or math.isnan(after)):
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
