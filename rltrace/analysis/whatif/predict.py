"""Predictions: a workload with levers moved, replayed, as ranges with what they rest on.

A range holds the replays with each constant at its ends (those that the levers used), the scatter
of the measured steps, and the error of the replay of the run as it was, each moved alone and added
in quadrature. Gains are in step time, in useful tokens for a device-second and for a dollar: at an
equal number of devices they are the same, else only the latter two compare.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rltrace.analysis.whatif.basis import measured, otherwise, rest, rests_on, sentences
from rltrace.analysis.whatif.bound import walls
from rltrace.analysis.whatif.constants import Constants, table
from rltrace.analysis.whatif.cores import crowded
from rltrace.analysis.whatif.lever import Lever, NotApplicable
from rltrace.analysis.whatif.levers import LEVERS, lever
from rltrace.analysis.whatif.pools import merged
from rltrace.analysis.whatif.replay import Replay, replay
from rltrace.analysis.whatif.trust import OffTheRun, is_off, replay_error
from rltrace.analysis.whatif.workload import Workload
from rltrace.trace.errors import CANNOT_TELL, RltraceError

Source = Callable[[Constants], Workload]
"""A workload under given constants; measured ones ignore them."""

FASTER, SLOWER, NO_GAIN, UNSURE = "faster", "slower", "no gain", "may be either"
_ALIKE = 0.02  # gains of less are none
_Z95 = 1.96
_SPLITS = 24
_EITHER = (
    "whether generation stands still while weights are sent is unknown, and the range has both: "
    '`rltrace.weight_update(version, role="sink")` where they are taken would tell'
)
_LEAST_ERROR = 0.11
"""What a prediction errs by, as a logarithm, even where the replay of the run as it was fits: 95 %
of what ten predictions missed by, of pairs of runs of the built-in trainer (examples/walls)."""


@dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its range."""

    low: float
    middle: float
    high: float

    @property
    def is_no_gain(self) -> bool:
        """Whether a gain is none, to the percent."""
        return round(100 * (self.middle - 1)) <= 0

    def times(self, factor: float) -> Estimate:
        """The same in another unit; the factor is positive."""
        return Estimate(self.low * factor, self.middle * factor, self.high * factor)

    def at_most(self, most: float) -> Estimate:
        """The same, where more cannot be."""
        return Estimate(min(self.low, most), min(self.middle, most), min(self.high, most))

    def joined(self, other: Estimate) -> Estimate:
        """What may be either: both ranges, and what is in the middle of both."""
        middle = math.sqrt(self.middle * other.middle)
        return Estimate(min(self.low, other.low), middle, max(self.high, other.high))

    def and_then(self, other: Estimate) -> Estimate:
        """The product of two gains that know nothing of each other: half-widths in quadrature."""
        middle = self.middle * other.middle
        down = math.hypot(math.log(self.middle / self.low), math.log(other.middle / other.low))
        up = math.hypot(math.log(self.high / self.middle), math.log(other.high / other.middle))
        return Estimate(middle * math.exp(-down), middle, middle * math.exp(up))


@dataclass(frozen=True)
class Prediction:
    """What levers would do. `step_s` is the new step, `gain` the old step over it, `goodput_gain`
    the new useful tokens for a device-second over the old (the same for a dollar, as long as all
    devices cost the same); rates are NaN where tokens, devices or price are unknown. `devices` are
    by pool, after the change. `lags` are shares of trained groups by lag in policy versions."""

    levers: tuple[str, ...]
    verdict: str
    before_s: float
    step_s: Estimate
    gain: Estimate
    goodput_gain: Estimate
    useful_tokens_per_device_s: Estimate
    useful_tokens_per_usd: Estimate
    devices: Mapping[str, float]
    learner_waits_share: float
    lags: Mapping[int, float]
    mean_lag: float
    stale_share: float
    walls: tuple[str, ...]
    rests_on: tuple[str, ...]


@dataclass(frozen=True)
class Baseline:
    """The job as it is: its step, and what a replay of it gives (seconds). `unfitted_error` is that
    of the replay before any fit: replayed over measured step, minus 1 (NaN: there is nothing that
    it could be held against)."""

    step_s: float
    replayed_s: float
    placement: str
    devices: Mapping[str, float]
    walls: tuple[str, ...]
    lags: Mapping[int, float]
    rests_on: tuple[str, ...]
    unfitted_error: float = math.nan

    @property
    def replay_error(self) -> float:
        """Replayed over measured, minus 1."""
        return self.replayed_s / self.step_s - 1


class _Cases:
    """A source and its replays as they are, each worked out once: a constant at either end of its
    range serves all levers."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._known: dict[tuple[tuple[str, float], ...], tuple[Workload, Replay, list[str]]] = {}

    @cached_property
    def instead(self) -> _Cases | None:
        """Those of the other run that it may have been."""
        other = self.at(Constants())[0].instead
        return _Cases(lambda constants: other) if other is not None else None

    def at(self, constants: Constants) -> tuple[Workload, Replay]:
        """The workload under these constants, and its replay. It notes which constants it used."""
        key = tuple(constants.moved.items())
        if key not in self._known:
            load = self.source(constants)
            self._known[key] = load, replay(load), list(constants.used)
        load, played, used = self._known[key]
        constants.used.update(dict.fromkeys(used))
        return load, played


def baseline(source: Source) -> Baseline:
    """The replay of the job as it is, against its measured step where there is one."""
    constants = Constants()
    load, played = _Cases(source).at(constants)
    step_s = played.step_s if math.isnan(load.measured_step_s) else load.measured_step_s
    return Baseline(
        step_s, played.step_s, load.placement, load.devices, walls(load, played), played.lags,
        (*load.rests_on, *measured(load), *rest(load, load), *sentences(constants)),
        replay_error(load),
    )  # fmt: skip


def predict(source: Source, moves: Sequence[tuple[str, str]]) -> Prediction:
    """What moving these levers does: `(name, value)` each.

    Errors: `RltraceError` for an unknown lever, a value without sense, or a lever that does not
    apply to the workload; `OffTheRun` where the replay of the run as it was is not near it.
    """
    return _answered(_Cases(source), moves, binds=True)


def predictor(source: Source) -> Callable[[Sequence[tuple[str, str]]], Prediction]:
    """`predict` for one source, which replays it as it is only once for all questions. What then
    binds it leaves out (`walls` is empty): that would take a replay of the actors alone."""
    cases = _Cases(source)
    return lambda moves: _answered(cases, moves, binds=False)


def _answered(cases: _Cases, moves: Sequence[tuple[str, str]], binds: bool) -> Prediction:
    try:
        return _predict(cases, moves, binds)
    except NotApplicable as error:
        names = " and ".join(name for name, _ in moves)
        raise RltraceError(f"{names} cannot be moved here: {error}", CANNOT_TELL) from None


def ranked(source: Source) -> tuple[Prediction, ...]:
    """All levers that apply, one at a time, the largest gain in goodput first. Errors: `OffTheRun`
    as for `predict`."""
    found = []
    cases = _Cases(source)
    for one in LEVERS.values():
        for value in one.tries:
            try:
                found.append(_predict(cases, [(one.name, value)], binds=True))
            except NotApplicable:
                continue
    # What differs by rounding only stays in the order of the levers.
    return tuple(sorted(found, key=lambda p: -round(p.goodput_gain.middle, 9)))


def _predict(cases: _Cases, moves: Sequence[tuple[str, str]], binds: bool) -> Prediction:
    """What the moves do; where the run may have been one of two, both answers in one. A replay that
    is off the run is none of them."""
    other = cases.instead
    if other is None:
        return _of_one(cases, moves, binds)
    try:
        found = _of_one(cases, moves, binds)
    except OffTheRun:
        return _of_one(other, moves, binds)
    try:
        return _either(found, _of_one(other, moves, binds))
    except OffTheRun:
        return found


def _either(one: Prediction, other: Prediction) -> Prediction:
    """A range that has both, and what is in the middle of both."""
    goodput = one.goodput_gain.joined(other.goodput_gain)
    return replace(
        one,
        step_s=one.step_s.joined(other.step_s),
        gain=one.gain.joined(other.gain),
        goodput_gain=goodput,
        useful_tokens_per_device_s=one.useful_tokens_per_device_s.joined(
            other.useful_tokens_per_device_s
        ),
        useful_tokens_per_usd=one.useful_tokens_per_usd.joined(other.useful_tokens_per_usd),
        verdict=verdict_of(goodput),
        walls=tuple(dict.fromkeys((*one.walls, *other.walls))),
        rests_on=tuple(dict.fromkeys((*one.rests_on, *other.rests_on, _EITHER))),
    )


def _of_one(cases: _Cases, moves: Sequence[tuple[str, str]], binds: bool) -> Prediction:
    chosen = sorted(((lever(name), value) for name, value in moves), key=lambda m: m[0].order)
    constants = Constants()
    before, base = cases.at(constants)
    chosen = _with_split(before, base, chosen)
    after = _moved(before, base, chosen, constants)
    if is_off(before):
        raise OffTheRun(before)
    played = replay(after)
    step_s = base.step_s if math.isnan(before.measured_step_s) else before.measured_step_s
    middle = _gains(before, base, after, played)
    down = up = [0.0, 0.0]
    for name in constants.used:
        for end in (table()[name].low, table()[name].high):
            other = Constants({name: end})
            load, as_it_was = cases.at(other)
            changed = _moved(load, as_it_was, chosen, other)
            gains = _gains(load, as_it_was, changed, replay(changed))
            moves_by = [math.log(g / m) for g, m in zip(gains, middle, strict=True)]
            down = [d + min(0.0, by) ** 2 for d, by in zip(down, moves_by, strict=True)]
            up = [u + max(0.0, by) ** 2 for u, by in zip(up, moves_by, strict=True)]
    gains = middle  # of the answer before any other
    for instead, then in otherwise(before, after):
        ends = _gains(before, base, instead, then)
        moved_by = [math.log(g / m) / 2 for g, m in zip(ends, gains, strict=True)]
        middle = (middle[0] * math.exp(moved_by[0]), middle[1] * math.exp(moved_by[1]))
        down = [d + by * by for d, by in zip(down, moved_by, strict=True)]
        up = [u + by * by for u, by in zip(up, moved_by, strict=True)]
    noise = _noise(before)
    remains = _remains(base, played)
    changes = []
    for g, d, u in zip(middle, down, up, strict=True):
        # What is not changed errs before and after alike: the gain of no change is exactly 1.
        part = min(1.0, abs(math.log(g)) / math.log(2))
        known = 0.0 if math.isnan(before.model_error) else abs(before.model_error)
        error = max(known, _LEAST_ERROR) if before.steps else 0.0
        # What scatters and stays is a larger part of a shorter step.
        scatter = noise * max(1.0, remains * g - 1)
        own = (part * math.hypot(scatter, error)) ** 2
        lower, upper = math.sqrt(d + own), math.sqrt(u + own)
        changes.append(Estimate(g * math.exp(-lower), g, g * math.exp(upper)))
    gain, goodput_gain = changes
    slower = math.exp(math.hypot(math.log(gain.middle / gain.low), noise))
    faster = math.exp(math.hypot(math.log(gain.high / gain.middle), noise))
    new_s = step_s / gain.middle
    rate = before.useful_tokens / (step_s * before.total_devices)
    price = before.usd_per_device_hour
    per_usd = 3600 / price if price > 0 else math.nan
    return Prediction(
        levers=tuple(f"{one.name}={value}" for one, value in chosen),
        verdict=verdict_of(goodput_gain),
        before_s=step_s,
        step_s=Estimate(new_s / faster, new_s, new_s * slower),
        gain=gain,
        goodput_gain=goodput_gain,
        useful_tokens_per_device_s=goodput_gain.times(rate),
        useful_tokens_per_usd=goodput_gain.times(rate * per_usd),
        devices=after.devices,
        learner_waits_share=played.learner_waits_s / played.step_s,
        lags=played.lags,
        mean_lag=played.mean_lag,
        stale_share=played.stale_share,
        walls=walls(after, played) if binds else (),
        rests_on=rests_on(before, after, constants),
    )


def _moved(
    before: Workload, base: Replay, chosen: Sequence[tuple[Lever, str]], constants: Constants
) -> Workload:
    """The workload with all levers moved, those that place it first. `base` is its replay."""
    load = before
    for one, value in chosen:
        # Without GPUs each process is a device of its own, which cannot do another's work.
        apart = load.placement != "colocated" and load.device_kind == "GPU"
        split = load.devices if apart else {}
        load = one.moved(load, value, constants)
        if load.placement == "colocated" and {"rollout", "train"} <= set(split):
            load = merged(load, constants)
    return crowded(before, base, load, constants)


def _with_split(
    load: Workload, base: Replay, chosen: list[tuple[Lever, str]]
) -> list[tuple[Lever, str]]:
    """A placement with pools of its own needs a split: the best one, where none is given."""
    names = [one.name for one, _ in chosen]
    placement = next((value for one, value in chosen if one.name == "placement"), "")
    if not load.shared or placement in ("", "colocated") or "split" in names:
        return chosen
    total = load.total_devices
    parts = [total * i / _SPLITS for i in range(1, _SPLITS)]
    counts = parts if total < 2 else [max(1.0, round(part)) for part in parts]
    constants = Constants()
    first = 1 + names.index("placement")

    def with_split(count: float) -> list[tuple[Lever, str]]:
        text = f"{count:.4g}:{total - count:.4g}"
        return [*chosen[:first], (lever("split"), text), *chosen[first:]]

    sensible = [count for count in dict.fromkeys(counts) if 0 < count < total]
    return min(
        map(with_split, sensible),
        key=lambda moves: replay(_moved(load, base, moves, constants)).step_s,
    )


def _gains(before: Workload, base: Replay, after: Workload, played: Replay) -> tuple[float, float]:
    """Old step over new, and the same in useful tokens for each device-second."""
    gain = base.step_s / played.step_s
    useful = after.useful_share / before.useful_share
    useful *= (1 - played.stale_share) / (1 - base.stale_share)
    more = after.total_devices / before.total_devices if before.devices else 1.0
    return gain, gain * useful / more


def _noise(load: Workload) -> float:
    """Logarithm of the factor within which the mean of the measured steps is known."""
    if not load.steps:
        return 0.0
    return _Z95 * load.step_deviation / math.sqrt(load.steps) if load.steps > 1 else 0.1


def _remains(base: Replay, played: Replay) -> float:
    """How much of the scatter of the steps, in seconds, a change leaves there; 0 to 1."""
    before, after = statistics.pstdev(base.steps_s), statistics.pstdev(played.steps_s)
    return min(1.0, after / before) if before > 0 else 1.0


def verdict_of(gain: Estimate) -> str:
    """A gain in goodput in a word or two."""
    if gain.low > 1 + _ALIKE:
        return FASTER
    if gain.high < 1 - _ALIKE:
        return SLOWER
    if abs(gain.middle - 1) <= _ALIKE:
        return NO_GAIN
    return UNSURE if gain.low < 1 < gain.high else FASTER if gain.middle > 1 else SLOWER
