"""What differs between two runs, and what a change gained over pairs of them.

It is the gate's comparison of one run with one, over their steady steps: stages add up to the step,
step = tokens a step × seconds a token, and goodput is the product of its factors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.alarms.alarm import CRASH
from rltrace.analysis.figures.goodput_factors import Cascade
from rltrace.analysis.fixes.job_settings import Difference, differing, settings_that_differ
from rltrace.analysis.gate import metrics as m
from rltrace.analysis.gate.baseline import framework_facts, hardware_of
from rltrace.analysis.gate.change_location import (
    drift_of,
    factor_changes,
    guilty_stage,
    stage_changes,
)
from rltrace.analysis.gate.metrics import Drift, FactorChange, StageChange
from rltrace.analysis.gate.paired_steps import Panel, RunSeries, columns_of, panel_of
from rltrace.analysis.gate.regression import TAU, contrast
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import UNKNOWN, Estimate, Interval, factor, t95
from rltrace.analysis.stats.resampling import drawn_counts, mean_block, mean_ratio
from rltrace.analysis.timeline.step_figures import edges_of, step_figures
from rltrace.trace.errors import CANNOT_TELL, RltraceError
from rltrace.trace.read.run import OpenedRun

STEP, FRESHNESS, GOODPUT = "step", "freshness", "goodput"
CONFIRMED, REFUTED, UNDECIDED = "confirmed", "refuted", "cannot tell"
GAINS, LOSES, NO_GAIN = "gains", "loses", "no gain"

_ALIKE = 0.02  # a factor that changes by less than this is as it was, and a smaller gain is none


@dataclass(frozen=True)
class Comparison:
    """Two runs, `steps` steady ones of each; differences are the second's minus the first's, ratios
    the second's over the first's. `step_ratio` is the product of `work_ratio` (tokens a step) and
    `pace_ratio` (seconds a token), NaN where no tokens were recorded. `rate_ratio` is that of
    useful tokens a second. Stages are in the order of their difference. `alarms` say of each run
    what forbids advice on it or ended it, `no_rollout` what it does where it is no RL."""

    steps: tuple[int, ...]
    before_s: float
    after_s: float
    difference_s: Interval
    step_ratio: Interval
    work_ratio: Interval
    pace_ratio: Interval
    rate_ratio: Interval
    stages: tuple[StageChange, ...]
    factors: tuple[FactorChange, ...]
    drift: tuple[Drift, ...]
    settings: tuple[Difference, ...]
    devices: tuple[Difference, ...]
    alarms: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    no_rollout: tuple[str, str] = ("", "")

    @property
    def stage(self) -> StageChange | None:
        """The stage that made most of the step's difference; None where none surely did."""
        return guilty_stage(self.stages, faster=self.difference_s.value < 0)

    @property
    def factor(self) -> FactorChange | None:
        """The factor that changed most, surely or by the only value there is; None: none did."""
        logs = {
            one: abs(math.log(one.ratio.value))
            for one in self.factors
            if one.ratio.value > 0 and (one.once or one.ratio.excludes(1.0))
        }
        most = max(logs, key=lambda one: logs[one], default=None)
        return most if most is not None and logs[most] > _ALIKE else None


def compare(first: OpenedRun, second: OpenedRun) -> Comparison:
    """What differs from `first` to `second`. Errors: `RltraceError` where one has no step."""
    a, b = RunAnalysis(first), RunAnalysis(second)
    panel = panel_of([_series(a)], [_series(b)], settled=True)
    lengths = panel.figures(m.GateMetric("step", m.LENGTH, m.STEPS))
    before_s, after_s = lengths[0].tolist()
    step_ratio = _ratio(panel, m.LENGTH, m.STEPS)
    for tokens in (m.GENERATED, m.TRAINED):
        work = _ratio(panel, tokens, m.STEPS)
        if work.known:
            break
    same_work = work == Interval(1.0, 1.0, 1.0)
    step_s = contrast(panel, lengths, tau=TAU * max(before_s, after_s), logs=False)
    return Comparison(
        steps=panel.steps, before_s=before_s, after_s=after_s, difference_s=step_s.interval(),
        step_ratio=step_ratio, work_ratio=work,
        pace_ratio=step_ratio if same_work else _ratio(panel, m.LENGTH, tokens),
        rate_ratio=_ratio(panel, m.USEFUL, m.LENGTH),
        stages=stage_changes(panel, usual=False), factors=_factors(a.cascade, b.cascade, panel),
        drift=drift_of(panel), settings=settings_that_differ(first, second),
        devices=differing(_facts(first), _facts(second)),
        alarms=(_unwell(a), _unwell(b)), no_rollout=(a.no_rollout, b.no_rollout),
    )  # fmt: skip


def _series(analysis: RunAnalysis) -> RunSeries:
    figures = step_figures(analysis, analysis.steps)
    if figures is None:
        raise RltraceError(f"{analysis.run.path} has no complete step to compare", CANNOT_TELL)
    numbers = [analysis.steps.windows[place].step for place in analysis.steady]
    return RunSeries("", 0, np.array(numbers, np.int64), columns_of(figures))


def _unwell(analysis: RunAnalysis) -> tuple[str, ...]:
    alarms = analysis.health.alarms
    return tuple(alarm.says for alarm in alarms if alarm.forbids or alarm.kind == CRASH)


def _facts(run: OpenedRun) -> dict[str, object]:
    probed = "probe" in (run.meta.get("settings") or {})
    return {**hardware_of(run), **framework_facts(run), "probed": probed}


def _ratio(panel: Panel, of: str, per: str) -> Interval:
    return contrast(panel, panel.figures(m.GateMetric("", of, per))).mapped(math.exp)


def _factors(a: Cascade | None, b: Cascade | None, panel: Panel) -> tuple[FactorChange, ...]:
    """The factors of whole runs, each with the interval that its steps give it."""
    if a is None or b is None:
        return ()
    by_step = {one.name: one.ratio for one in factor_changes(panel)}
    by_step["freshness weight"] = _ratio(panel, m.ESS, m.STEPS)
    changes = []
    for one, other in zip(a.factors, b.factors, strict=True):
        value = other.value / one.value if one.value else math.nan
        steps = by_step.get(one.name, UNKNOWN)
        ends = [value * end / steps.value for end in (steps.low, steps.high)]
        told = one.name in by_step
        change = Interval(value, *([1.0, 1.0] if told and value == 1.0 else ends))
        once = not told and not math.isnan(value)
        changes.append(FactorChange(one.name, one.value, other.value, change, once))
    return tuple(changes)


@dataclass(frozen=True)
class RunPace:
    """How fast a run was over its steady steps; NaN: unknown. `step_s` is the mean from the begin
    of a step to that of the next. `effective_tokens_per_s` are useful tokens, weighted by
    `freshness`, `tokens_per_sample` response tokens of what was trained on. `useful_tokens` are
    those of each step."""

    step_s: float
    effective_tokens_per_s: float
    tokens_per_sample: float = math.nan
    freshness: float = math.nan
    useful_tokens: tuple[int, ...] = ()


Pairs = tuple[tuple[RunPace, RunPace], ...]


def pace(run: OpenedRun) -> RunPace:
    analysis = RunAnalysis(run)
    if not analysis.steady:
        return RunPace(math.nan, math.nan)
    step_s = float(np.diff(np.append(*edges_of(analysis.steps))).mean()) / 1e9
    tokens = analysis.goodput
    effective = length = weight = math.nan
    useful: tuple[int, ...] = ()
    if tokens is not None and tokens.window_s and tokens.trained.samples:
        weight = analysis.freshness.effective_share.value
        effective = tokens.trained.useful_tokens / tokens.window_s * weight
        length = tokens.trained.tokens / tokens.trained.samples
        useful = tuple(analysis.goodput_of_steps[i].useful_tokens for i in analysis.steady)
    return RunPace(step_s, effective, length, weight, useful)


@dataclass(frozen=True)
class Trial:
    """What a change gained over all `pairs` (before, after), by `metric`: the step before over the
    step after; steps a second weighted by freshness, after over before; or effective samples a
    second: a policy that learns to answer in half the words does the same work. `predicted` is None
    where nothing predicts it: then `answer` is "gains", "loses", "no gain" or "cannot tell", else
    "confirmed", "refuted" or "cannot tell"."""

    metric: str
    pairs: Pairs
    gain: Interval
    predicted: Estimate | None
    answer: str
    because: str


def trial(pairs: Pairs, metric: str, predicted: Estimate | None) -> Trial:
    rates = [(_rate(a, metric), _rate(b, metric)) for a, b in pairs]
    gain = mean_ratio([b / a for a, b in rates if a > 0 and b > 0])
    if metric == GOODPUT and gain.known:
        gain = _with_luck(gain, pairs)
    return Trial(metric, pairs, gain, predicted, *_answer(gain, predicted))


def _with_luck(gain: Interval, pairs: Pairs) -> Interval:
    """The gain with the chance of what was drawn: where a seed is fixed all pairs have the same
    luck with their samples, and do not differ by it. So it is taken from the steps."""
    drawn = {(before.useful_tokens, after.useful_tokens) for before, after in pairs}
    useful, *others = drawn
    if others or min(map(len, useful)) < 2:  # others: the pairs show it themselves
        return gain
    errors, freedom = zip(*map(_luck, useful), strict=True)
    chance = t95(min(freedom)) * math.hypot(*errors)
    return factor(math.log(gain.value), math.hypot(math.log(gain.value / gain.low), chance))


def _luck(useful: tuple[int, ...]) -> tuple[float, float]:
    """`(standard error of the logarithm of the mean, degrees of freedom)`, drawn in blocks."""
    tokens = np.asarray(useful, np.float64)
    block = mean_block(tokens)
    drawn = drawn_counts(len(tokens), block, seed=0) @ tokens
    return float(np.log(drawn[drawn > 0]).std()), max(1.0, len(tokens) / block - 1)


def _rate(pace: RunPace, metric: str) -> float:
    """What is to grow: steps a second, fresh ones, or effective samples; NaN where unknown."""
    much, of = (pace.freshness if metric == FRESHNESS else 1.0), pace.step_s
    if metric == GOODPUT:
        much, of = pace.effective_tokens_per_s, pace.tokens_per_sample
    return much / of if of else math.nan


def _answer(gain: Interval, predicted: Estimate | None) -> tuple[str, str]:
    if math.isnan(gain.value):
        return UNDECIDED, "no pair of runs gave a figure before and after"
    if math.isnan(gain.low):
        return UNDECIDED, "one pair does not show what is chance: run more pairs"
    if predicted is None:
        return _answer_alone(gain)
    low, high = predicted.low, predicted.high
    if gain.high < low:
        return REFUTED, "the whole interval lies below the predicted range"
    if gain.low > high:
        return REFUTED, "the whole interval lies above the predicted range"
    if not low <= gain.value <= high:
        return UNDECIDED, "outside the predicted range, but the interval reaches into it"
    if (low > 1 or high < 1) and gain.low <= 1 <= gain.high:
        return UNDECIDED, "the gain is as predicted, but may be chance: run more pairs"
    return CONFIRMED, "the gain lies in the predicted range"


def _answer_alone(gain: Interval) -> tuple[str, str]:
    if gain.low > 1:
        return GAINS, "the whole interval is a gain"
    if gain.high < 1:
        return LOSES, "the whole interval is a loss"
    if gain.low > 1 - _ALIKE and gain.high < 1 + _ALIKE:
        return NO_GAIN, f"any gain is below {100 * _ALIKE:.0f} %"
    return UNDECIDED, "the interval reaches from a loss to a gain: run more pairs"
