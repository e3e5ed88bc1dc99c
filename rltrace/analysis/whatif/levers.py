"""What can be changed in a job, by command-line names.

What a lever makes of a workload is the function of its name. Errors: `NotApplicable`, and
`RltraceError` for a value that makes no sense. What else there is to know of it is data,
`rltrace/analysis/data/levers.toml`; of one that makes a stage take more or less time that is all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rltrace.analysis.timeline.intervals import Floats
from rltrace.analysis.whatif.replay import grown, resplit, scaled_learner, scaled_rollout
from rltrace.analysis.whatif.workload import (
    MECHANISMS,
    OVERLAPPING,
    PLACEMENTS,
    Constants,
    SampleBatch,
    StepWorkload,
    number_of,
    transfer_s,
)
from rltrace.trace.errors import WrongUsage, did_you_mean
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Stage

_ON = ["1"]
_MOST_TIMES = 10_000  # more of anything is a slip of the pen, and would be replayed for ever

_UNTOLD = "which sequences run, and which wait after their tools, was not recorded"
_SHARE = "rollout and training share their devices: use split or placement"
_NO_DEVICES = "the devices are not known"
_NO_TAIL_SEEN = "no trajectory was recorded, so the lengths of samples are not known"
_NO_BARRIER_SEEN = "rollout and training overlap already, and no trajectory was recorded"
_ONE_BY_ONE = "samples are generated one by one: batch them first, or measure it (speculative=1.6)"
_KEPT = "rollout and training still take turns on the same devices (partial_rollout=1.5)"


class NotApplicable(Exception):
    """The lever moves nothing that this workload has; the message says what is missing."""


class Untold(NotApplicable):
    """Nobody can tell what the lever moves: the message says what was not recorded."""


@dataclass(frozen=True)
class Lever:
    """An entry of the table, which says what its fields are."""

    name: str
    change: Callable[[StepWorkload, Any, Constants], StepWorkload]
    tries: Sequence[str] = ()
    within: Stage | None = None
    first: bool = False
    words: bool = False
    takes: str = ""
    rule: str = ""
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf

    def moved(self, load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
        """A value that makes no sense is refused before anything that the workload lacks."""
        if self.words:
            return self.change(load, value, constants)
        if self.tries == _ON:
            _check(value == _ON[0], self.name, value, "1: leave it out to keep what is")
        amount = _number(self.name, value if self.rule else value.removeprefix("x"))
        fits = self.least <= amount <= self.most and amount > self.above
        _check(fits, self.name, value, self.rule)
        if self.within is not None:
            _needs(_seen_s(load, self.within) > 0, _UNSEEN.get(self.within, ""))
            if self.takes == "1/value":
                amount = 1 / amount
            if self.takes:
                return slowed(load, self.within, amount * (self.takes != "0"))
        return self.change(load, amount if self.rule else value, constants)


def lever(name: str) -> Lever:
    """The lever of that name. Errors: `RltraceError` with the names there are."""
    if name not in LEVERS:
        near = did_you_mean(name, *LEVERS)
        raise WrongUsage(f"there is no lever {name!r}{near}: known are {', '.join(LEVERS)}")
    return LEVERS[name]


def moves(words: Sequence[str]) -> list[tuple[str, str]]:
    """Levers and values of words like `placement=async`. Errors: `RltraceError` for a word that is
    no lever with its value, and for a lever that is there twice."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name in LEVERS and LEVERS[name].tries != _ON:
            raise WrongUsage(f"--lever {word!r} must be {name}=VALUE")
        if name in found:
            raise WrongUsage(f"--lever {name} is there twice: give one value")
        found[name] = value or (_ON[0] if lever(name).tries == _ON else "")
    return list(found.items())


def _seen_s(load: StepWorkload, stage: Stage) -> float:
    seconds = {
        Stage.ROLLOUT: math.inf,
        Stage.ENV: sum(float(batch.env_s.sum()) for batch in load.batches),
        Stage.REWARD: sum(float(batch.verdict_s.sum()) for batch in load.batches),
        Stage.REFERENCE: load.reference_s,
        Stage.SYNC: load.sync.seconds,
        Stage.SWITCH: load.switch_s,
    }
    return seconds.get(stage, 0.0) + load.mean_s(stage)


def slowed(load: StepWorkload, stage: Stage, factor: float) -> StepWorkload:
    """The workload in which a stage takes so many times as long; 0: it is not there."""
    if stage is Stage.ENV:
        return load.with_batches(lambda b: replace(b, env_s=b.env_s * factor))
    if stage is Stage.REWARD:
        load = load.with_batches(lambda b: replace(b, verdict_s=b.verdict_s * factor))
    if stage is Stage.SYNC:
        return replace(load, sync=replace(load.sync, seconds=load.sync.seconds * factor))
    if stage is Stage.SWITCH:
        return replace(load, switch_s=load.switch_s * factor)
    if stage is Stage.REFERENCE:
        load = replace(load, reference_s=load.reference_s * factor)
    paced = load.paced(lambda one: factor if one is stage else 1.0)
    return paced if factor else load.without(stage)


def _factor(name: str, value: str, now: float) -> float:
    """`x2` is a factor, `4` a number of what there is now."""
    factor = _number(name, value.removeprefix("x")) / (1.0 if value.startswith("x") else now)
    _check(factor > 0, name, value, "above 0")
    _check(factor <= _MOST_TIMES, name, value, f"at most {_MOST_TIMES:,} times what there is")
    return factor


def _number(name: str, text: str) -> float:
    value = number_of(text)
    _check(math.isfinite(value), name, text, "a number")
    return value


def _check(holds: bool, name: str, value: str, rule: str) -> None:
    if not holds:
        raise WrongUsage(f"{name} must be {rule}, not {value!r}")


def _needs(holds: bool, why: str, kind: type[NotApplicable] = NotApplicable) -> None:
    if not holds:
        raise kind(why)


_knows = partial(_needs, kind=Untold)


# --- who runs when, and on how many devices


def rollout_workers(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    _needs(not load.shared, _SHARE)
    _knows(load.places_told, _UNTOLD)
    factor = _factor("rollout_workers", value, load.engine.workers)
    if not load.engine.pooled:
        _check(round(factor * load.engine.workers) >= 1, "rollout_workers", value, "1 or more")
    return scaled_rollout(load, factor, constants)


def learner_workers(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    _needs(not load.shared, _SHARE)
    factor = _factor("learner_workers", value, load.devices.get("train", 1.0))
    return scaled_learner(load, factor, constants)


def devices(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    _knows(bool(load.devices), _NO_DEVICES)
    return grown(load, _factor("devices", value, load.total_devices), constants)


def split(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    _knows(bool(load.devices), _NO_DEVICES)
    total, whole = load.total_devices, load.devices_told and load.device_kind == "GPU"
    least = min(1.0, *load.devices.values()) if whole else 0.0  # as the job itself splits them
    _needs(total >= 2 * least, "one device cannot be split into two pools")
    left, colon, right = value.partition(":")
    rollout = _number("split", left)
    if colon:
        train = _number("split", right)
        fits = math.isclose(rollout + train, total, rel_tol=1e-3)
        _check(fits, "split", value, f"counts that add up to {total:g} devices")
    else:
        _check(0 < rollout < 1, "split", value, "a part between 0 and 1, or counts like 16:16")
        rollout *= total
        train = total - rollout
    fits = min(rollout, train) >= least and rollout > 0 and train > 0
    _check(fits, "split", value, "a device at least on both sides")
    if load.shared and load.placement == "colocated":
        load = replace(load, placement="one-step-off")
    return resplit(load, rollout, train, constants)


def placement(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    _check(value in PLACEMENTS, "placement", value, "one of " + ", ".join(PLACEMENTS))
    _needs(value != load.placement, f"the job is {value} already")
    beside = value in OVERLAPPING and load.placement in OVERLAPPING
    _knows(not (beside and load.without_samples), _NO_BARRIER_SEEN)
    scoring = "group" if load.scoring == "batch" and value != "colocated" else load.scoring
    return replace(load, placement=value, scoring=scoring, keeps_unfinished=False, in_batches=False)


def no_barrier(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    if load.in_batches:
        return replace(load, in_batches=False)
    _needs(load.placement != "async", "there is no barrier in async")
    _knows(not load.without_samples, _NO_TAIL_SEEN)
    if load.shared:
        return partial_rollout(load, 1.5, constants).noted(_KEPT)
    bound = max(1.0, load.lag_bound)
    lag = f"samples lag by up to {bound:g} version{'s' * (bound != 1)} (placement=async)"
    note = f"rollout goes on beside training, each on its own devices; {lag}"
    return replace(load.noted(note), placement="async", lag_bound=bound)


def partial_rollout(load: StepWorkload, in_flight: float, constants: Constants) -> StepWorkload:
    turns = load.placement in ("colocated", "disaggregated")
    _needs(turns, f"{load.placement} does not wait for a batch to end")
    _knows(not load.without_samples, _NO_TAIL_SEEN)
    if load.scoring == "batch":  # whose verdicts still begin once it is full, and hide nowhere
        each = tuple(float(one.verdict_s.sum()) / load.reward_workers for one in load.batches)
        load = load.with_batches(lambda b: replace(b, verdict_s=np.zeros_like(b.verdict_s)))
        load = replace(load, serial_s={Stage.REWARD: each, **load.serial_s})
    return replace(load, keeps_unfinished=True, in_flight=in_flight)


def lag_bound(load: StepWorkload, bound: float, constants: Constants) -> StepWorkload:
    _needs(load.placement == "async", f"{load.placement} has no bound to move")
    return replace(load, lag_bound=bound)


def chunks(load: StepWorkload, parts: float, constants: Constants) -> StepWorkload:
    _check(parts.is_integer(), "chunks", f"{parts:g}", "a whole number of parts")
    in_parts = load.placement in ("disaggregated", "async")
    _needs(in_parts, f"in {load.placement} the learner takes whole batches")
    return replace(load, chunks=int(parts))


# --- how samples are generated, judged and served by tools


def slots(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    _needs(math.isfinite(load.engine.slots), "no limit of sequences at once was seen")
    _knows(load.places_told, _UNTOLD)
    # A number is of sequences of the job, and a played one stands for several, or a part.
    each = load.engine.stands_for if load.engine.stands_for > 0 else 1.0
    slots = load.engine.slots * _factor("slots", value, load.engine.slots * each)
    return replace(load, engine=replace(load.engine, slots=max(1.0, slots)))


def speculative(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    factor, engine = _number("speculative", value), load.engine
    _check(factor >= 1, "speculative", value, "1 (as published) or a measured factor above 1")
    if factor > 1:
        return replace(load, engine=engine.paced(1 / factor))
    _knows(engine.stands_for > 0, "how many sequences run at once is not known")
    _knows(engine.slots * engine.stands_for > 1, _ONE_BY_ONE)
    note = "drafts are accepted as often as in the published case"
    return replace(load.noted(note), engine=replace(engine, drafting=constants["draft_gain"]))


def tail_cap(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    _knows(not load.without_samples, _NO_TAIL_SEEN)
    tokens = np.concatenate([batch.tokens for batch in load.batches])
    cap = _cap("tail_cap", value, tokens, "tokens")
    told = value.startswith("p") or float(tokens.max()) > 1.5
    _knows(told, "token counts are not known: give a quantile, like p95")
    _needs(cap < float(tokens.max()), "no response is longer")
    kept = float(np.minimum(tokens, cap).sum() / tokens.sum())
    note = f"the cap cuts {100 * (1 - kept):.0f} % of the tokens: whether rewards suffer is unknown"
    capped = load.with_batches(lambda b: replace(b, tokens=np.minimum(b.tokens, cap)))
    return replace(capped.noted(note), useful_share=load.useful_share * kept)


def env_cap(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    tools_s = np.concatenate([batch.env_s for batch in load.batches])
    cap_s = _cap("env_cap", value, tools_s, "seconds")
    lost = float((tools_s > cap_s).mean())
    _needs(lost > 0, "the tools of no sample take longer")
    note = f"the time limit ends {100 * lost:.0f} % of the samples: all their tokens are lost"
    capped = load.with_batches(lambda b: replace(b, env_s=np.minimum(b.env_s, cap_s)))
    return replace(capped.noted(note), useful_share=load.useful_share * (1 - lost))


def _cap(name: str, value: str, of: Floats, unit: str) -> float:
    """The most that there may be: a number, or a quantile of what there is (`p95`)."""
    quantile, cap = value.startswith("p"), _number(name, value.removeprefix("p"))
    fits = 0 < cap < (100 if quantile else math.inf)
    _check(fits, name, value, f"{unit}, or a quantile like p95")
    return float(np.quantile(of, cap / 100)) if quantile else cap


def samples(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    sizes = [len(b.group) / len(set(b.group)) for b in load.batches if b.group]
    _knows(bool(sizes), "which samples belong to one prompt was not recorded")
    mean = sum(sizes) / len(sizes)
    factor = max(1, round(mean * _factor("samples", value, mean))) / mean
    note = "more samples of a prompt are like the present ones; training takes longer by as much"
    return replace(
        load.with_batches(lambda batch: _resized(batch, factor)).paced(lambda stage: factor),
        reference_s=load.reference_s * factor,
        useful_share=load.useful_share * factor,
    ).noted(note)


def _resized(batch: SampleBatch, factor: float) -> SampleBatch:
    """The batch with `factor` times the samples in each group, the same ones again in turn."""
    group = np.array(batch.group)
    members = [np.flatnonzero(group == one) for one in dict.fromkeys(batch.group)]
    places = np.concatenate([np.resize(m, max(1, round(factor * len(m)))) for m in members])
    tokens, env_s, verdict_s = batch.tokens[places], batch.env_s[places], batch.verdict_s[places]
    return SampleBatch(tokens, env_s, verdict_s, tuple(group[places].tolist()))


def reward_parallel(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    size = round(_factor("reward_parallel", value, load.reward_workers) * load.reward_workers)
    _check(size >= 1, "reward_parallel", value, "1 or more")
    return replace(load, reward_workers=size)


def reward_cache(load: StepWorkload, share: float, constants: Constants) -> StepWorkload:
    def cached(batch: SampleBatch) -> SampleBatch:
        hits = np.floor(np.arange(len(batch.verdict_s) + 1) * share)
        return replace(batch, verdict_s=np.where(np.diff(hits) > 0, 0.0, batch.verdict_s))

    return load.with_batches(cached)


def reward_async(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    _needs(load.scoring != "sample", "each sample is scored as it ends already")
    return replace(load, scoring="sample")


# --- the learner's passes, and how its weights travel


def reference_side(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    _check(value == "actor", "reference_side", value, "actor")
    moved_s = load.mean_s(Stage.REFERENCE) / load.referred_share
    _needs(moved_s > 0, "no reference pass was seen on the learner's side")
    _needs(load.placement != "colocated", "all stages take turns")
    return replace(load.without(Stage.REFERENCE), reference_s=load.reference_s + moved_s)


def sync(load: StepWorkload, value: str, constants: Constants) -> StepWorkload:
    mechanism, _, overlap = value.partition(":")
    _check(mechanism in MECHANISMS, "sync", value, "one of " + ", ".join(MECHANISMS))
    part = _number("sync", overlap) if overlap else load.sync.overlap
    _check(0 <= part <= 1, "sync", value, "a mechanism and the part that is hidden, 0 to 1")
    _needs(load.sync.seconds > 0, _UNSEEN[Stage.SYNC])
    _knows(not math.isnan(load.sync.bytes), "the size of the weights was not recorded")
    seconds = min(transfer_s(mechanism, load, constants), load.sync.seconds)
    return replace(load, sync=replace(load.sync, seconds=seconds, overlap=part))


_TABLE = packaged_toml("analysis/data/levers.toml")
_STAGES = {stage.name.lower(): stage for stage in Stage}
_UNSEEN = {_STAGES[name]: why for name, why in _TABLE["unseen"].items()}
LEVERS: Mapping[str, Lever] = {
    name: Lever(
        name, globals().get(name, slowed), **{**entry, "within": _STAGES.get(entry.get("within"))}
    )
    for name, entry in _TABLE["lever"].items()
}
