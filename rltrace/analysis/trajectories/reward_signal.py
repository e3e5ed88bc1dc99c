"""Reward against device-hours, and groups whose rewards carry a signal.

The reward of a step is the mean of the verdicts that were reached in it (from the end of the step
before to its own); where versions overlap they are of several policies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import UNKNOWN, Interval, around, proportion, t95
from rltrace.analysis.timeline.intervals import Floats
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_toml

_SQL = packaged_toml("analysis/data/sample_queries.toml")
_FEWEST_STEPS = 10
_SURE = 4.0  # standard errors
_LARGE = 0.5
_WINDOW = 3
_ROUNDING = 1e-9  # of a reward: means of the same verdicts differ by less


@dataclass(frozen=True)
class RewardPoint:
    """A step: mean verdict, how many, and device-hours from the first step on (NaN: unknown)."""

    step: int
    reward: float
    rewards: int
    device_hours: float


@dataclass(frozen=True)
class Collapse:
    """From `step` on the reward is low: its level `before`, the mean `after`, how sure it is."""

    step: int
    before: float
    after: float
    standard_errors: float


@dataclass(frozen=True)
class RewardCurve:
    """The reward by step. `first_reward` and `last_reward` are means over the first and the last
    tenth of the steps (at least 3, at most half of them). `gain_per_device_hour` is the slope of a
    straight line, with steps as independent: a description, no forecast. `device` is "GPU", "core"
    or empty. Verdicts are of so many `components`, all counted alike."""

    device: str
    points: tuple[RewardPoint, ...]
    first_reward: float
    last_reward: float
    steps_per_hour: float
    device_hours: float
    gain_per_device_hour: Interval
    collapse: Collapse | None
    components: int = 1


@np.errstate(over="ignore", invalid="ignore")  # rewards may be as large as a number can be
def reward_curve(analysis: RunAnalysis) -> RewardCurve | None:
    """None where no verdict was reached in a step."""
    run, steps, devices = analysis.run, analysis.steps, analysis.devices
    if steps.whole_run or not steps.windows:
        return None
    ends = steps.ends_ns
    counted = (
        "from raw_rewards where start_ns > 0 and outcome <= 0 "
        f"and isfinite(value) and end_ns > 0 and end_ns <= {int(ends[-1])}"
    )
    reached = run.ask_columns(f"select end_ns, value {counted}")
    place = np.searchsorted(ends, np.asarray(reached["end_ns"], np.int64), side="left")
    count = np.bincount(place, minlength=len(ends))
    total = np.bincount(place, np.asarray(reached["value"], np.float64), len(ends))
    judged = np.flatnonzero(count)
    if not len(judged):
        return None
    reward = total[judged] / count[judged]
    hours = (ends - steps.starts_ns[0]) / 3.6e12
    spent = hours * devices.count if devices.count else np.full(len(ends), math.nan)
    tenth = min(max(3, len(reward) // 10), max(1, len(reward) // 2))
    return RewardCurve(
        device=devices.kind if devices.count else "",
        points=tuple(
            RewardPoint(steps.windows[i].step, float(r), int(count[i]), float(spent[i]))
            for i, r in zip(judged, reward, strict=True)
        ),
        first_reward=float(reward[:tenth].mean()),
        last_reward=float(reward[-tenth:].mean()),
        steps_per_hour=len(ends) / float(hours[-1]) if hours[-1] > 0 else math.nan,
        device_hours=float(spent[-1]),
        gain_per_device_hour=_line(spent[judged], reward),
        collapse=_collapse(reward, [steps.windows[i].step for i in judged]),
        components=run.ask(f"select count(distinct component) {counted}")[0][0],
    )


def _line(x: Floats, y: Floats) -> Interval:
    """Slope of a straight line and its 95 % interval; all 0 where nothing changes but digits."""
    n = len(x)
    centred = x - x.mean()
    squares = float((centred**2).sum())
    if n < 3 or not squares > 0:
        return UNKNOWN
    if float(np.ptp(y)) <= _ROUNDING * float(np.abs(y).max()):
        return Interval(0.0, 0.0, 0.0)
    slope = float((centred * y).sum()) / squares
    left = y - y.mean() - slope * centred
    half = t95(n - 2) * math.sqrt(float((left**2).sum()) / (n - 2) / squares)
    return around(slope, half)


def _collapse(reward: Floats, numbers: list[int]) -> Collapse | None:
    """A large and sure fall from the best level to the last one. Levels are means over a tenth of
    the steps (at least `_WINDOW`). Noise is taken from the differences of neighbours, which a trend
    does not move; the best level is a maximum, and lowered by what noise alone would raise it. A
    fall is large where `_LARGE` of the best level is lost, from 0 or the lowest reward seen."""
    n = len(reward)
    if n < _FEWEST_STEPS:
        return None
    width = max(_WINDOW, n // 10)
    noise = float(np.diff(reward).std()) / math.sqrt(2)
    total = np.concatenate([[0.0], np.cumsum(reward)])
    level = (total[width:] - total[:-width]) / width
    best = int(np.argmax(level[:-width]))
    raised = noise / math.sqrt(width) * math.sqrt(2 * math.log(max(1.0, n / width)))
    top, last = float(level[best]) - raised, float(level[-1])
    floor = min(0.0, float(reward.min()))
    error = noise * math.sqrt(2 / width) + 1e-12
    # Told so that what is no number is no fall.
    if not math.inf > top - last >= max(_SURE * error, _LARGE * (top - floor)):
        return None
    # The change point: the cut after the best level that leaves the least square error.
    tail = reward[best:]
    cut = np.arange(1, len(tail))
    sums, whole = np.cumsum(tail)[:-1], float(tail.sum())
    explained = sums**2 / cut + (whole - sums) ** 2 / (len(tail) - cut)
    at = best + 1 + int(np.argmax(explained))
    before = float(reward[max(0, at - width) : at].mean())
    return Collapse(numbers[at], before, float(reward[at:].mean()), (top - last) / error)


# --- A group whose rewards are equal was generated and judged for nothing where advantages are
# relative to it. A group with a reward that is NaN carries no signal either.

_MOST_UNCLEAR = 0.1  # part of the samples


@dataclass(frozen=True)
class GroupSignal:
    """Groups with verdicts of two samples or more, whole run; `share` of them carry a signal
    (Wilson, 95 %). `reward` is the mean verdict of all, `reward_without_signal` of those without
    (NaN: none): low where prompts are too hard, high where they are too easy. `with_nan` have none
    because a reward is NaN. Of all `samples` with a group `unclear` have an id that comes again, so
    that nothing is known of their groups."""

    groups: int
    with_signal: int
    share: float
    low: float
    high: float
    reward: float
    reward_without_signal: float
    with_nan: int
    samples: int
    unclear: int

    @property
    def known(self) -> bool:
        return self.groups > 0 and mostly_clear(self.unclear, self.samples)


def mostly_clear(unclear: int, samples: int) -> bool:
    """Whether the samples with a clear group speak for the others."""
    return unclear <= _MOST_UNCLEAR * samples


def unclear_samples(run: OpenedRun) -> tuple[int, int]:
    """`(samples whose group's id is of several groups, all samples that have a group)`."""
    unclear, samples = run.ask(_SQL["unclear"])[0]
    return int(unclear), int(samples)


def group_signal(run: OpenedRun) -> GroupSignal | None:
    """None where no group has two verdicts, and ids that come again are not why; or where
    advantages are not known to be relative to a group."""
    if run.ask("select of_group from advantage_baseline")[0][0] is not True:
        return None
    groups, with_signal, with_nan, reward, without = run.ask(_SQL["group_rewards"])[0]
    unclear, samples = unclear_samples(run)
    if not groups and not unclear:
        return None
    share = proportion(with_signal / groups if groups else math.nan, groups)
    return GroupSignal(
        groups=groups, with_signal=with_signal, share=share.value, low=share.low, high=share.high,
        reward=math.nan if reward is None else reward,
        reward_without_signal=math.nan if without is None else without, with_nan=with_nan,
        samples=samples, unclear=unclear,
    )  # fmt: skip
