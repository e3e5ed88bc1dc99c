"""Runs before and after a change, in pairs: what it gained, and whether that was predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.interval import Estimate, Interval, factor
from rltrace.analysis.stats.resampling import drawn_counts, mean_block, mean_ratio
from rltrace.analysis.stats.student import t95
from rltrace.analysis.step_figures import edges_of
from rltrace.trace.run import Run

STEP, FRESHNESS, GOODPUT = "step", "freshness", "goodput"
CONFIRMED, REFUTED, CANNOT_TELL = "confirmed", "refuted", "cannot tell"
GAINS, LOSES, NO_GAIN = "gains", "loses", "no gain"

_NONE = 0.02  # gains of less are none


@dataclass(frozen=True)
class Pace:
    """How fast a run was over its steady steps. `step_s` is the mean from the begin of a step to
    that of the next. `effective_tokens_per_s` are useful tokens, weighted by
    `freshness`, `tokens_per_sample` response tokens of what was trained on; NaN: unknown.
    `useful_tokens` are those of each of the steps."""

    step_s: float
    effective_tokens_per_s: float
    tokens_per_sample: float = math.nan
    freshness: float = math.nan
    useful_tokens: tuple[int, ...] = ()


def pace(run: Run) -> Pace:
    analysis = RunAnalysis(run)
    if not analysis.steady:
        return Pace(math.nan, math.nan)
    step_s = float(np.diff(np.append(*edges_of(analysis.steps))).mean()) / 1e9
    tokens = analysis.goodput
    effective = length = weight = math.nan
    useful: tuple[int, ...] = ()
    if tokens is not None and tokens.window_s and tokens.trained.samples:
        weight = analysis.freshness.effective_share.value
        effective = tokens.trained.useful_tokens / tokens.window_s * weight
        length = tokens.trained.tokens / tokens.trained.samples
        useful = tuple(analysis.goodput_of_steps[i].useful_tokens for i in analysis.steady)
    return Pace(step_s, effective, length, weight, useful)


@dataclass(frozen=True)
class Trial:
    """What a change gained over all `pairs` (before, after), by `metric`: the step before over the
    step after; steps a second weighted by freshness, after over before; or effective tokens a
    second, at the lengths of before: a policy that learns to answer in half the words does the same
    work.

    `predicted` is None where nothing predicts it. `answer` is "confirmed", "refuted" or "cannot
    tell" with a prediction, and "gains", "loses", "no gain" or "cannot tell" without one.
    """

    metric: str
    pairs: tuple[tuple[Pace, Pace], ...]
    gain: Interval
    predicted: Estimate | None
    answer: str
    because: str

    @property
    def saved(self) -> Interval:
        """The gain as a share of what a step, or an effective token, cost before."""
        return _saved(self.gain.value, self.gain.low, self.gain.high)

    @property
    def predicted_saved(self) -> Interval | None:
        """The same of the prediction: `low` and `high` are the ends of its range."""
        found = self.predicted
        return _saved(found.value, found.low, found.high) if found else None


def _saved(*gains: float) -> Interval:
    return Interval(*(1 - 1 / gain for gain in gains))


def trial(pairs: tuple[tuple[Pace, Pace], ...], metric: str, predicted: Estimate | None) -> Trial:
    rates = [(_rate(a, metric), _rate(b, metric)) for a, b in pairs]
    gain = mean_ratio([b / a for a, b in rates if a > 0 and b > 0])
    if metric == GOODPUT and gain.known:
        gain = _with_luck(gain, pairs)
    return Trial(metric, pairs, gain, predicted, *_answer(gain, predicted))


def _with_luck(gain: Interval, pairs: tuple[tuple[Pace, Pace], ...]) -> Interval:
    """The gain with the chance of what was drawn: where a seed is fixed all pairs draw the same
    samples, have the same luck with them, and do not differ by it. So it is taken from the steps.
    """
    drawn = {(before.useful_tokens, after.useful_tokens) for before, after in pairs}
    if len(drawn) > 1:
        return gain  # the pairs show it themselves
    [useful] = drawn
    if min(map(len, useful)) < 2:
        return gain
    errors, freedom = zip(*map(_luck, useful), strict=True)
    chance = t95(min(freedom)) * math.hypot(*errors)
    return factor(math.log(gain.value), math.hypot(math.log(gain.value / gain.low), chance))


def _luck(useful: tuple[int, ...]) -> tuple[float, float]:
    """`(standard error of the logarithm of the mean, degrees of freedom)` of useful tokens a step,
    steps drawn in blocks."""
    tokens = np.asarray(useful, np.float64)
    block = mean_block(tokens)
    drawn = drawn_counts(len(tokens), block, seed=0) @ tokens
    return float(np.log(drawn[drawn > 0]).std()), max(1.0, len(tokens) / block - 1)


def _rate(pace: Pace, metric: str) -> float:
    """What is to grow: steps a second, fresh ones, or effective samples (of the run's mean
    length)."""
    if metric == GOODPUT:
        return _over(pace.effective_tokens_per_s, pace.tokens_per_sample)
    return _over(pace.freshness if metric == FRESHNESS else 1.0, pace.step_s)


def _over(much: float, of: float) -> float:
    """NaN where there is nothing to divide by: no token may be known, or none of use."""
    return much / of if of else math.nan


def _answer(gain: Interval, predicted: Estimate | None) -> tuple[str, str]:
    if math.isnan(gain.value):
        return CANNOT_TELL, "no pair of runs gave a figure before and after"
    if math.isnan(gain.low):
        return CANNOT_TELL, "one pair does not show what is chance: run more pairs"
    if predicted is None:
        return _plainly(gain)
    low, high = predicted.low, predicted.high
    if gain.high < low:
        return REFUTED, "the whole interval lies below the predicted range"
    if gain.low > high:
        return REFUTED, "the whole interval lies above the predicted range"
    if not low <= gain.value <= high:
        return CANNOT_TELL, "outside the predicted range, but the interval reaches into it"
    if (low > 1 or high < 1) and gain.low <= 1 <= gain.high:
        return CANNOT_TELL, "the gain is as predicted, but may be chance: run more pairs"
    return CONFIRMED, "the gain lies in the predicted range"


def _plainly(gain: Interval) -> tuple[str, str]:
    if gain.low > 1:
        return GAINS, "the whole interval is a gain"
    if gain.high < 1:
        return LOSES, "the whole interval is a loss"
    if gain.low > 1 - _NONE and gain.high < 1 + _NONE:
        return NO_GAIN, f"any gain is below {100 * _NONE:.0f} %"
    return CANNOT_TELL, "the interval reaches from a loss to a gain: run more pairs"
