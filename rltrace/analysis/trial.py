"""Runs before and after a change, in pairs: what it gained, and whether that was predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.activity import read_activity
from rltrace.analysis.bootstrap import UNKNOWN, Interval, mean_ratio, rate_ratio, ratio
from rltrace.analysis.cut_short import whole_steps
from rltrace.analysis.freshness import freshness
from rltrace.analysis.goodput import goodput, step_goodput
from rltrace.analysis.staleness import staleness
from rltrace.analysis.steps import find_steps
from rltrace.analysis.whatif.predict import Estimate

if TYPE_CHECKING:
    from rltrace.trace.run import Run

STEP, FRESHNESS, GOODPUT = "step", "freshness", "goodput"
CONFIRMED, REFUTED, CANNOT_TELL = "confirmed", "refuted", "cannot tell"
GAINS, LOSES, NO_GAIN = "gains", "loses", "no gain"

_NONE = 0.02  # gains of less are none


@dataclass(frozen=True)
class Pace:
    """How fast a run was over its steady steps. `steps_s` are seconds from the begin of a step to
    that of the next one; `step_s` is their mean. `effective_tokens_per_s` are useful tokens,
    weighted by freshness, `tokens_per_sample` response tokens of what was trained on, and
    `freshness` that weight; NaN where nobody said what that was, or not all samples were recorded.
    `useful_tokens` are those of each of the steps."""

    steps_s: tuple[float, ...]
    step_s: float
    effective_tokens_per_s: float
    tokens_per_sample: float = math.nan
    freshness: float = math.nan
    useful_tokens: tuple[int, ...] = ()


def pace(run: Run) -> Pace:
    """The pace of `run`."""
    run = whole_steps(run)
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    steady = () if steps.whole_run else tuple(steps.windows[i] for i in steps.steady)
    if not steady:
        return Pace((), math.nan, math.nan)
    begins = [window.start_ns for window in steady]
    ends = [*begins[1:], steady[-1].end_ns]
    steps_s = tuple((b - a) / 1e9 for a, b in zip(begins, ends, strict=True))
    tokens = goodput(run, steps, None)
    effective = length = weight = math.nan
    useful: tuple[int, ...] = ()
    if tokens is not None and tokens.window_s and tokens.trained.samples:
        weight = freshness(run, staleness(run)).weight
        effective = tokens.trained.useful_tokens / tokens.window_s * weight
        length = tokens.trained.tokens / tokens.trained.samples
        of_step = step_goodput(run, steps)
        useful = tuple(of_step[i].useful_tokens for i in steps.steady)
    return Pace(steps_s, float(np.mean(steps_s)), effective, length, weight, useful)


@dataclass(frozen=True)
class Trial:
    """What a change gained over all `pairs` (before, after), by `metric`: the step before over the
    step after; steps a second weighted by freshness, after over before; or effective tokens a
    second, at the lengths of before: a policy that learns to answer in half the words does the same
    work, and so does one that learns what it is asked, and has fewer groups to learn from (which
    effective tokens do count: more of these are what some changes are for).

    `predicted` is None where nothing predicts it. `answer` is "confirmed", "refuted" or "cannot
    tell" with a prediction, and "gains", "loses", "no gain" or "cannot tell" without one; `because`
    says why."""

    metric: str
    pairs: tuple[tuple[Pace, Pace], ...]
    gain: Interval
    predicted: Estimate | None
    answer: str
    because: str

    @property
    def saved(self) -> Interval:
        """The gain as a share of what a step, or an effective token, cost before."""
        return Interval(*(1 - 1 / g for g in (self.gain.value, self.gain.low, self.gain.high)))

    @property
    def uncounted(self) -> float:
        """What else there is to learn from after over before, which `metric` leaves out: response
        tokens a sample, with freshness useful tokens a step. NaN where nobody said."""
        ratios = [
            _over(_left_out(after, self.metric), _left_out(before, self.metric))
            for before, after in self.pairs
        ]
        return float(np.mean(ratios)) if ratios else math.nan

    @property
    def predicted_saved(self) -> Interval | None:
        """The same of the prediction: `low` and `high` are the ends of its range."""
        if self.predicted is None:
            return None
        return Interval(*(1 - 1 / g for g in (
            self.predicted.middle, self.predicted.low, self.predicted.high,
        )))  # fmt: skip


def trial(pairs: tuple[tuple[Pace, Pace], ...], metric: str, predicted: Estimate | None) -> Trial:
    """What these pairs of runs say."""
    gain = _gain(pairs, metric)
    answer, because = _answer(gain, predicted)
    return Trial(metric, pairs, gain, predicted, answer, because)


def _gain(pairs: tuple[tuple[Pace, Pace], ...], metric: str) -> Interval:
    if metric == STEP:
        known = [(a, b) for a, b in pairs if a.step_s > 0 and b.step_s > 0]
        if len(known) == 1:  # steps within the runs are all that is known of chance
            before, after = known[0]
            return ratio(after.steps_s, before.steps_s)
        ratios = [a.step_s / b.step_s for a, b in known]
    else:
        rates = [(_rate(a, metric), _rate(b, metric)) for a, b in pairs]
        ratios = [b / a for a, b in rates if a > 0 and b > 0]
    if not ratios:
        return UNKNOWN
    return _with_luck(mean_ratio(ratios), pairs) if metric == GOODPUT else mean_ratio(ratios)


def _with_luck(gain: Interval, pairs: tuple[tuple[Pace, Pace], ...]) -> Interval:
    """The gain with the chance of what was drawn: where a seed is fixed all pairs draw the same
    samples, have the same luck with them, and do not differ by it. So it is taken from the steps.
    """
    drawn = {(before.useful_tokens, after.useful_tokens) for before, after in pairs}
    if len(drawn) > 1:
        return gain  # the pairs show it themselves
    [(before, after)] = drawn
    luck = rate_ratio((before, np.ones(len(before))), (after, np.ones(len(after))))
    if math.isnan(luck.low):
        return gain
    half = math.hypot(math.log(gain.value / gain.low), math.log(luck.value / luck.low))
    return Interval(gain.value, gain.value * math.exp(-half), gain.value * math.exp(half))


def _rate(pace: Pace, metric: str) -> float:
    """What is to grow: fresh steps a second, or effective samples (of the run's mean length)."""
    if metric == FRESHNESS:
        return _over(pace.freshness, pace.step_s)
    return _over(pace.effective_tokens_per_s, pace.tokens_per_sample)


def _left_out(pace: Pace, metric: str) -> float:
    if metric == FRESHNESS:
        return _over(pace.effective_tokens_per_s, _rate(pace, metric))
    return pace.tokens_per_sample if metric == GOODPUT else math.nan


def _over(much: float, of: float) -> float:
    """NaN where there is nothing to divide by: no token may be known, or none of use."""
    return much / of if of else math.nan


def _answer(gain: Interval, predicted: Estimate | None) -> tuple[str, str]:
    if math.isnan(gain.value):
        return CANNOT_TELL, "no pair of runs gave a figure before and after"
    if math.isnan(gain.low):
        return CANNOT_TELL, "one pair says nothing of chance: more pairs"
    if predicted is None:
        return _plainly(gain)
    low, high = predicted.low, predicted.high
    if gain.high < low:
        return REFUTED, "the whole interval lies below the predicted range"
    if gain.low > high:
        return REFUTED, "the whole interval lies above the predicted range"
    if not low <= gain.value <= high:
        return CANNOT_TELL, "the gain is outside of the predicted range, its interval is not"
    if (low > 1 or high < 1) and gain.low <= 1 <= gain.high:
        return CANNOT_TELL, "the gain is as predicted, but may be chance: more pairs"
    return CONFIRMED, "the gain lies in the predicted range"


def _plainly(gain: Interval) -> tuple[str, str]:
    if gain.low > 1:
        return GAINS, "the whole interval is a gain"
    if gain.high < 1:
        return LOSES, "the whole interval is a loss"
    if gain.low > 1 - _NONE and gain.high < 1 + _NONE:
        return NO_GAIN, f"any gain is below {100 * _NONE:.0f} %"
    return CANNOT_TELL, "the interval holds gains and losses: more pairs"
