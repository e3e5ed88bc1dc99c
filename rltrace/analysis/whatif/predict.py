"""Predictions: a workload replayed with levers moved, as ranges.

A range holds the replays with each constant that the levers used at its ends, the scatter of the
measured steps, and the error of the replay of the run as it was: each alone, added in quadrature.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import ge

from rltrace.analysis.stats.confidence_interval import Z95, Estimate
from rltrace.analysis.whatif.levers import LEVERS, Lever, NotApplicable, Untold, lever
from rltrace.analysis.whatif.replay import Replay, crowded, merged, replay
from rltrace.analysis.whatif.workload import OVERLAPPING, Constants, StepWorkload, number_of, table
from rltrace.trace.errors import CANNOT_TELL, RltraceError

_Move = tuple[Lever, str]  # with its value
_Gains = tuple[float, float, float]  # see `_gains`
Source = Callable[[Constants], StepWorkload]
"""A workload under given constants; measured ones ignore them."""

FASTER, SLOWER, NO_GAIN, UNSURE = "faster", "slower", "no gain", "may be either"
_ALIKE = 0.02  # gains of less are none
_SPLITS = 24


@dataclass(frozen=True)
class Prediction:
    """What levers would do. `step_s` is the new step, `gain` the old step over it, `goodput_gain`
    the new useful tokens for a device-second over the old; rates are NaN where tokens, devices or
    price are unknown. `lags` are shares of trained groups by lag in policy versions."""

    levers: tuple[str, ...]
    outcome: str
    before_s: float
    step_s: Estimate
    gain: Estimate
    goodput_gain: Estimate
    useful_tokens_per_device_s: Estimate
    useful_tokens_per_usd: Estimate
    devices: Mapping[str, float]
    learner_waits_share: float
    lag_shares: Mapping[int, float]
    mean_lag: float
    stale_share: float
    rests_on: tuple[str, ...]


@dataclass(frozen=True)
class ReplayBaseline:
    """The job as it is: its step, and what a replay of it gives (seconds)."""

    step_s: float
    replayed_s: float
    placement: str
    devices: Mapping[str, float]
    lag_shares: Mapping[int, float]
    rests_on: tuple[str, ...]
    replay_error_share: float


def baseline(source: Source) -> ReplayBaseline:
    """The replay of the job as it is, against its measured step where there is one."""
    constants = Constants()
    load = source(constants)
    played = replay(load)
    return ReplayBaseline(
        _step_s(load, played), played.step_s, load.placement, load.devices, played.lags,
        rests_on(load, load, constants), replay_error(load),
    )  # fmt: skip


def predict(source: Source, moves: Sequence[tuple[str, str]]) -> Prediction:
    """What moving these does, `(name, value)` each. Errors: `RltraceError` for a lever that is not
    known, does not apply or has no such value; `OffTheRun` where the replay is not near the run."""
    return predictor(source)(moves)


def predictor(source: Source) -> Callable[[Sequence[tuple[str, str]]], Prediction]:
    """`predict` for one source, which makes its workload only once for all questions."""
    known = _once(source)

    def answer(moves: Sequence[tuple[str, str]]) -> Prediction:
        try:
            return _predicted(known, moves)
        except NotApplicable as error:
            names = " and ".join(name for name, _ in moves)
            raise RltraceError(f"{names} cannot be moved here: {error}", CANNOT_TELL) from None

    return answer


def ranked(source: Source) -> tuple[tuple[Prediction, ...], dict[str, str]]:
    """All levers that apply, one at a time, the largest gain in goodput first; and levers that lack
    data, each with what is missing. Of levers that come to the same change the first stands for
    all. Errors: `OffTheRun` as for `predict`."""
    found: list[Prediction] = []
    untold, known = {}, _once(source)
    now = known(Constants())
    for name, value in ((name, value) for name, one in LEVERS.items() for value in one.tries):
        if getattr(now, name, None) == number_of(value):
            continue  # as it is
        try:
            one = _predicted(known, [(name, value)])
            # What changes the order of a job, and no stage, is the same if its figures are.
            same = any((x.gain, x.step_s) == (one.gain, one.step_s) for x in found)
            found += [one] * (not same or one.outcome == NO_GAIN or LEVERS[name].within is not None)
        except Untold as error:
            untold[f"{name}={value}"] = str(error)
        except NotApplicable:
            pass
    return tuple(sorted(found, key=place)), untold


def place(one: Prediction) -> tuple[bool, float]:
    """The order of a list: what may be slower comes after what is not."""
    return one.outcome == UNSURE, -round(one.goodput_gain.value, 9)


def _once(source: Source) -> Source:
    """The source, which makes the workload under the same constants once."""
    made: dict[tuple[tuple[str, float], ...], tuple[StepWorkload, list[str]]] = {}

    def known(constants: Constants) -> StepWorkload:
        key = tuple(constants.moved.items())
        if key not in made:
            made[key] = source(constants), list(constants.used)
        load, used = made[key]
        constants.used.update(dict.fromkeys(used))
        return load

    return known


def _predicted(source: Source, moves: Sequence[tuple[str, str]]) -> Prediction:
    """As of `predict`. Errors: `NotApplicable`, too."""
    chosen = sorted(((lever(name), value) for name, value in moves), key=lambda m: not m[0].first)
    constants = Constants()
    before = source(constants)
    base = replay(before)
    chosen = _with_split(before, base, chosen)
    after = _moved(before, base, chosen, constants)
    if is_off(before):
        raise OffTheRun(before)
    played = replay(after)
    own = _gains(before, base, after, played)
    at_ends = [own]  # and with each constant at either end of its range
    for name in list(constants.used):
        for end in (table()[name].low, table()[name].high):
            other = Constants({name: end})
            load = source(other)
            as_it_was = replay(load)
            changed = _moved(load, as_it_was, chosen, other)
            at_ends.append(_gains(load, as_it_was, changed, replay(changed)))
        if at_ends[-2:] == [own, own]:
            del constants.used[name]  # the answer does not rest on it
    others = list(otherwise(before, after))
    instead = [_gains(before, base, after, then) for _, then in others]
    noise, remains = _noise(before), _remains(base, played)
    alike = _runs(before) == _runs(after)
    gain, goodput_gain = (
        _ranged(i, own, at_ends, instead, before, noise, remains, alike) for i in range(2)
    )
    slower = math.exp(math.hypot(math.log(gain.value / gain.low), noise))
    faster = math.exp(math.hypot(math.log(gain.high / gain.value), noise))
    step_s = _step_s(before, base)
    new_s = step_s / gain.value
    rate = before.useful_tokens / (step_s * before.total_devices)
    price = before.usd_per_device_hour
    return Prediction(
        levers=tuple(f"{one.name}={value}" for one, value in chosen),
        outcome=verdict_of(goodput_gain),
        before_s=step_s,
        step_s=Estimate(new_s / faster, new_s, new_s * slower),
        gain=gain, goodput_gain=goodput_gain,
        useful_tokens_per_device_s=goodput_gain.times(rate),
        useful_tokens_per_usd=goodput_gain.times(rate * (3600 / price) if price > 0 else math.nan),
        devices=after.devices, learner_waits_share=played.learner_waits_s / played.step_s,
        lag_shares=played.lags, mean_lag=played.mean_lag, stale_share=played.stale_share,
        rests_on=rests_on(before, after, constants, [says for says, _ in others]),
    )  # fmt: skip


def _moved(
    before: StepWorkload, base: Replay, chosen: Sequence[_Move], constants: Constants
) -> StepWorkload:
    """The workload with all levers moved, those that place it first. `base` is its replay."""
    load = before
    for one, value in chosen:
        # Without GPUs each process is a device of its own, which cannot do another's work.
        split = load.devices if load.placement != "colocated" and load.device_kind == "GPU" else {}
        load = one.moved(load, value, constants)
        if load.placement == "colocated" and {"rollout", "train"} <= set(split):
            load = merged(load, constants)
    if load.placement in OVERLAPPING and before.placement not in OVERLAPPING:
        if not before.steps and load.placement == "async" and load.chunks == 1:
            load = replace(load, chunks=round(constants["minibatches"]))
        if load.device_kind == "GPU":
            waits_s = constants["overlap_wait"] * sum(map(load.mean_s, load.serial_s))
            load = replace(load, rest_s=load.rest_s + waits_s)
    return crowded(before, base, load, constants)


def _with_split(load: StepWorkload, base: Replay, chosen: list[_Move]) -> list[_Move]:
    """A placement with pools of its own needs a split: the best one, where none is given."""
    values = {one.name: value for one, value in chosen}
    if not load.shared or values.get("placement", "colocated") == "colocated" or "split" in values:
        return chosen
    total = load.total_devices
    parts = [total * i / _SPLITS for i in range(1, _SPLITS)]
    counts = parts if total < 2 else [max(1.0, round(part)) for part in parts]
    constants, one = Constants(), lever("split")
    texts = [f"{n:.4g}:{total - n:.4g}" for n in dict.fromkeys(counts) if 0 < n < total]
    return min(
        ([chosen[0], (one, text), *chosen[1:]] for text in texts),  # the placement is the first
        key=lambda moves: replay(_moved(load, base, moves, constants)).step_s,
    )


def _step_s(load: StepWorkload, played: Replay) -> float:
    return played.step_s if math.isnan(load.measured_step_s) else load.measured_step_s


def _gains(before: StepWorkload, base: Replay, after: StepWorkload, played: Replay) -> _Gains:
    """Old step over new, the same in useful tokens for each device-second, and the most that the
    first may be: where the job's own chains fit in its step, no new one is shorter than its own."""
    if not played.step_s > 0:
        raise NotApplicable("nothing would be left of a step")
    step_s = _step_s(before, base)
    most = step_s / (after.chain_s * min(1.0, step_s / before.chain_s))
    gain = min(base.step_s / played.step_s, most)
    if _runs(before) == _runs(after) and all(map(ge, before.efforts(), after.efforts())):
        gain = max(1.0, gain)  # what is faster, or more, may be left unused
    useful = after.useful_share / before.useful_share
    useful *= (1 - played.stale_share) / (1 - base.stale_share)
    more = after.total_devices / before.total_devices if before.devices else 1.0
    return gain, gain * useful / more, most


def _ranged(
    which: int, own: _Gains, at_ends: list[_Gains], instead: list[_Gains], before: StepWorkload,
    noise: float, remains: float, alike: bool,
) -> Estimate:  # fmt: skip
    """The range of a gain, from those with constants at their ends and what it may be `instead`;
    `alike`: who waits for whom stays."""
    gain = own[which]
    moved = [math.log(one[which] / gain) for one in at_ends]
    half = [math.log(one[which] / gain) / 2 for one in instead]
    middle = math.prod(map(math.exp, half), start=gain)
    # What is not changed errs before and after alike; nothing is known better than what is no gain.
    part = min(1.0, abs(math.log(middle)) / math.log(2)) if alike else 1.0
    known = 0.0 if math.isnan(before.model_error) else abs(before.model_error)
    of = "stated" if math.isnan(before.model_error) else "measured"
    error = max(known, table()[f"{of}_error"].middle)
    # What scatters and stays is a larger part of a shorter step.
    scatter = noise * max(1.0, remains * middle - 1) * (before.steps > 0)
    varies = max(_ALIKE, before.computes * table()["cores_vary"].middle)
    errs = varies**2 + (part * math.hypot(scatter, error)) ** 2
    down, up = (
        math.sqrt(sum([*(way(0.0, x) ** 2 for x in moved), *(x * x for x in half)]) + errs)
        for way in (min, max)
    )
    most = gain / own[0] * (math.inf if before.steps else max(one[2] for one in at_ends))
    middle = min(middle, most)
    return Estimate(middle * math.exp(-down), middle, min(most, middle * math.exp(up)))


def _runs(load: StepWorkload) -> tuple[object, ...]:
    """Who waits for whom."""
    return load.placement, load.keeps_unfinished, load.in_batches


def _noise(load: StepWorkload) -> float:
    """Logarithm of the factor within which the mean of the measured steps is known."""
    if not load.steps:
        return table()["measured_error"].middle * math.isnan(load.measured_step_s)
    return Z95 * load.step_deviation / math.sqrt(load.steps) if load.steps > 1 else 0.1


def _remains(base: Replay, played: Replay) -> float:
    """How much of the scatter of the steps, in seconds, a change leaves there; 0 to 1."""
    before, after = statistics.pstdev(base.steps_s), statistics.pstdev(played.steps_s)
    return min(1.0, after / before) if before > 0 else 1.0


def verdict_of(gain: Estimate) -> str:
    if gain.low > 1 + _ALIKE:
        return FASTER
    if gain.high < 1 - _ALIKE:
        return SLOWER
    if abs(gain.value - 1) <= _ALIKE:
        return NO_GAIN
    return UNSURE if gain.low < 1 < gain.high else FASTER if gain.value > 1 else SLOWER


# --- what a prediction rests on, and whether the replay fits its run

MOST_ERROR = 0.3
"""A replay that misses a step by more has another idea of who waits than the job (9 % is usual)."""

_SOME_REST = 0.01  # of the step in no span; less is not worth a sentence
_MUCH_REST = 0.05


class OffTheRun(RltraceError):
    """The replay is not the run's: it predicts nothing."""

    def __init__(self, load: StepWorkload) -> None:
        why = f"the replay of this run is off by {100 * replay_error(load):+.0f} %"
        if load.untold:
            why = f"{load.untold} is not known"
        super().__init__(f"cannot be predicted: {why}; trying it would tell", CANNOT_TELL)


def is_off(load: StepWorkload) -> bool:
    """Whether the replay of the run as it was is too far off, or for what its samples waited."""
    return abs(replay_error(load)) > MOST_ERROR or bool(load.untold)


def replay_error(load: StepWorkload) -> float:
    """Replayed over measured step before any fit, minus 1; NaN: it is made of stage seconds."""
    return math.expm1(load.model_error)


def otherwise(before: StepWorkload, after: StepWorkload) -> Iterator[tuple[str, Replay]]:
    """What else may come of the levers, and a sentence on it: the answer's range has both."""
    if not before.steps:
        return
    # A job that becomes asynchronous does not say what it then does with what comes too late.
    if after.placement == "async" != before.placement and before.drops_stale is None:
        says = "samples that come too late are dropped, or trained on: the range has both"
        yield says, replay(replace(after, drops_stale=True))
    changes = replay(before) != replay(after)
    # More come to be on the way than ever were: no limit was seen, and one may be near.
    seen = before.engine.seen_at_once
    may = math.isfinite(seen) if before.streams else after.streams
    if may and changes and math.isinf(after.engine.slots):
        if math.isinf(seen):
            seen = max(len(batch.tokens) for batch in before.batches) / before.engine.workers
        says = "more sequences than a worker was seen to run at once are run, or wait"
        held = replay(after)
        if held.most_at_once >= seen:
            held = replay(replace(after, engine=replace(after.engine, slots=seen)))
        yield f"{says}: the range has both", held
    # Without a stated bound, that no sample was later is not what held them up; but where nobody
    # knows how many a worker has room for, the lag that came stands for that.
    stays = before.placement == after.placement == "async" and before.lag_bound == after.lag_bound
    if stays and changes and not before.bound_stated and before.places_told:
        first = replay(after)
        later = first
        if (
            first.learner_waits_s > _SOME_REST * first.step_s
        ):  # later samples save no more than that
            later = replay(replace(after, lag_bound=2 * before.lag_bound + 1))
        if first.step_s - later.step_s > _SOME_REST * first.step_s:
            came = f"no sample was more than {before.lag_bound:g} versions late"
            how = "they may come to be later, and the range has both"
            yield f"{came}, and the job states no bound: {how}", later
    if _rest_may_hold_up(before, after):
        found = replay(replace(after, rest_s=0.0))
        yield "", replace(found, step_s=found.step_s + after.rest_s)


def rests_on(
    before: StepWorkload, after: StepWorkload, constants: Constants, more: Sequence[str] = ()
) -> tuple[str, ...]:
    """What an answer rests on, in sentences; `more` are those of `otherwise`."""
    said = list(dict.fromkeys((*before.rests_on, *after.rests_on)))
    said += [*_measured(before), *_rest(before, after)]
    if before.shared and not after.shared:
        own = " : ".join(f"{after.devices[pool]:g}" for pool in ("rollout", "train"))
        said.append(f"devices are split {own} (rollout : training)")
    said += filter(None, more)
    return (*said, *(table()[name].sentence() for name in constants.used))


def _measured(load: StepWorkload) -> list[str]:
    """How many steps were measured, and how near to them the replay is."""
    if not load.steps:
        return []
    error = replay_error(load)
    steps = f"{load.steps} measured step{'s' * (load.steps != 1)}"
    if math.isnan(error):
        how = "the replay is made of these, and was held against nothing else"
        return [f"{steps}, of which the stage seconds are known and no samples: {how}"]
    return [f"{steps}; replayed as they were, before any fit, they take {100 * error:+.1f} %"]


def _rest(before: StepWorkload, after: StepWorkload) -> list[str]:
    share = before.rest_s / before.measured_step_s if before.measured_step_s else math.nan
    if not share > _SOME_REST:
        return []
    says = f"{100 * share:.0f} % of the step is not explained by the replay, and stays as it is"
    if _rest_may_hold_up(before, after):
        return [f"{says}: beside generation, or holding it up, and the range has both"]
    return [says if after.rest_s >= before.rest_s else f"{says}, in part"]


def _rest_may_hold_up(before: StepWorkload, after: StepWorkload) -> bool:
    """Whether what takes turns comes to run at once, and much of the step is in no span."""
    begins = after.placement in OVERLAPPING and before.placement not in OVERLAPPING
    return before.steps > 0 and begins and after.rest_s > _MUCH_REST * before.measured_step_s
