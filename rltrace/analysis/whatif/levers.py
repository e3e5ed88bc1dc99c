"""What can be changed, each change on its own: a workload in, a workload out.

A lever that does not apply to a workload says why (`NotApplicable`); a value that makes no sense is
refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rltrace.analysis.whatif.constants import Constants
from rltrace.analysis.whatif.pools import grown, resplit, scaled_learner, scaled_rollout
from rltrace.analysis.whatif.sync import MECHANISMS, transfer_s
from rltrace.analysis.whatif.workload import PLACEMENTS, Sync, Workload
from rltrace.trace.errors import WRONG_USAGE, RltraceError
from rltrace.trace.vocabulary import Stage


class NotApplicable(Exception):
    """The lever moves nothing that this workload has; the message says what is missing."""


Change = Callable[[Workload, str, Constants], Workload]

ON = ("1",)


@dataclass(frozen=True)
class Lever:
    """`tries` are the values of the ranked table; those of order 0 are moved before all others. A
    lever whose `tries` are `ON` is there or is not."""

    name: str
    meaning: str
    change: Change
    tries: tuple[str, ...]
    order: int = 1

    def moved(self, load: Workload, value: str, constants: Constants) -> Workload:
        """The workload with the lever moved. Errors: `NotApplicable`; `RltraceError` for a value
        that makes no sense."""
        if self.tries == ON:
            on = value.lower() in ("", "1", "yes", "true", "on")
            rule = "yes (1, true, on or nothing): leave it out to keep what is"
            _check(on, self.name, value, rule)
        return self.change(load, value, constants)


def _rollout_workers(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(not load.shared, "generation and training share their devices: use split or placement")
    factor = _factor(value, load.engine.workers)
    if not load.engine.pooled:
        _check(round(factor * load.engine.workers) >= 1, "rollout_workers", value, "1 or more")
    return scaled_rollout(load, factor, constants)


def _learner_workers(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(not load.shared, "generation and training share their devices: use split or placement")
    _needs(bool(load.serial_s), "no stage of the learner is known")
    return scaled_learner(load, _factor(value, load.devices.get("train", 1.0)), constants)


def _devices(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(bool(load.devices), "the devices are not known")
    return grown(load, _factor(value, load.total_devices), constants)


def _split(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(bool(load.devices), "the devices are not known")
    total = load.total_devices
    if ":" in value:
        left, _, right = value.partition(":")
        rollout, train = _number("split", left), _number("split", right)
        fits = math.isclose(rollout + train, total, rel_tol=1e-3)
        _check(fits, "split", value, f"counts that add up to {total:g} devices")
    else:
        part = _number("split", value)
        _check(0 < part < 1, "split", value, "a part between 0 and 1, or counts like 16:16")
        rollout = part * total
        train = total - rollout
    _check(rollout > 0 and train > 0, "split", value, "devices on both sides")
    if load.shared and load.placement == "colocated":
        load = replace(load, placement="one-step-off")
    return resplit(load, rollout, train, constants)


def _placement(load: Workload, value: str, constants: Constants) -> Workload:
    _check(value in PLACEMENTS, "placement", value, "one of " + ", ".join(PLACEMENTS))
    _needs(value != load.placement, f"it is {value} already")
    scoring = "group" if load.scoring == "batch" and value != "colocated" else load.scoring
    return replace(load, placement=value, scoring=scoring, keeps_unfinished=False)


def _no_barrier(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(load.placement != "async", "there is no barrier in async")
    if load.shared:
        return _partial_rollout(load, "1.5", constants)
    return replace(load, placement="async", lag_bound=max(1.0, load.lag_bound))


def _partial_rollout(load: Workload, value: str, constants: Constants) -> Workload:
    in_flight = _number("partial_rollout", value)
    _check(in_flight >= 1, "partial_rollout", value, "groups begun for each one needed, 1 or more")
    turns = load.placement in ("colocated", "disaggregated")
    _needs(turns, f"{load.placement} does not wait for a batch to end")
    return replace(load, keeps_unfinished=True, in_flight=in_flight)


def _tail_cap(load: Workload, value: str, constants: Constants) -> Workload:
    tokens = np.concatenate([batch.tokens for batch in load.batches])
    if value.startswith("p"):
        percent = _number("tail_cap", value[1:])
        _check(0 < percent < 100, "tail_cap", value, "tokens, or a quantile like p95")
        cap = float(np.quantile(tokens, percent / 100))
    else:
        cap = _number("tail_cap", value)
        _check(cap > 0, "tail_cap", value, "tokens, or a quantile like p95")
        _needs(float(tokens.max()) > 1.5, "token counts are not known: give a quantile, like p95")
    _needs(cap < float(tokens.max()), "no response is longer")
    batches = tuple(replace(b, tokens=np.minimum(b.tokens, cap)) for b in load.batches)
    kept = float(np.minimum(tokens, cap).sum() / tokens.sum())
    note = f"the cap cuts {100 * (1 - kept):.0f} % of the tokens: whether rewards suffer is unknown"
    useful = load.useful_share * kept
    return replace(load, batches=batches, useful_share=useful, rests_on=(*load.rests_on, note))


def _repack(load: Workload, value: str, constants: Constants) -> Workload:
    engine = load.engine
    _needs(not engine.pooled and engine.workers > 1, "it is not known which worker ran what")
    return replace(
        load,
        engine=replace(engine, pooled=True),
        rest_s=load.rest_s + constants["migration_s"] * (load.placement != "async"),
    )


def _reward_parallel(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(_verdict_s(load) > 0, "verdicts take no time that was seen")
    size = round(_factor(value, load.reward_workers) * load.reward_workers)
    _check(size >= 1, "reward_parallel", value, "1 or more")
    return replace(load, reward_workers=size)


def _reward_cache(load: Workload, value: str, constants: Constants) -> Workload:
    share = _number("reward_cache", value)
    _check(0 <= share <= 1, "reward_cache", value, "a part of the verdicts, 0 to 1")
    _needs(_verdict_s(load) > 0, "verdicts take no time that was seen")
    batches = []
    for batch in load.batches:
        place = np.arange(len(batch.verdict_s))
        hit = np.floor((place + 1) * share) > np.floor(place * share)
        batches.append(replace(batch, verdict_s=np.where(hit, 0.0, batch.verdict_s)))
    return replace(load, batches=tuple(batches))


def _reward_async(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(_verdict_s(load) > 0, "verdicts take no time that was seen")
    _needs(load.scoring != "sample", "verdicts begin as each sample ends already")
    return replace(load, scoring="sample")


def _reward_latency(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(_verdict_s(load) > 0, "verdicts take no time that was seen")
    factor = _number("reward_latency", value)
    _check(factor >= 0, "reward_latency", value, "a factor, 0 or more")
    batches = tuple(replace(b, verdict_s=b.verdict_s * factor) for b in load.batches)
    return replace(load, batches=batches)


def _env_latency(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(any(batch.env_s.any() for batch in load.batches), "no time of tools was seen")
    factor = _number("env_latency", value)
    _check(factor >= 0, "env_latency", value, "a factor, 0 or more")
    return replace(load, batches=tuple(replace(b, env_s=b.env_s * factor) for b in load.batches))


def _env_failures(load: Workload, value: str, constants: Constants) -> Workload:
    left = _number("env_failures", value)
    _check(0 <= left < 1, "env_failures", value, "the share of samples that still fail, 0 to 1")
    _needs(load.failed_share > left, "fewer samples fail already")
    useful = load.useful_share * (1 - left) / (1 - load.failed_share)
    note = "samples that fail are taken to be as long as the others"
    return replace(load, useful_share=useful, failed_share=left, rests_on=(*load.rests_on, note))


def _sync(load: Workload, value: str, constants: Constants) -> Workload:
    mechanism, _, overlap = value.partition(":")
    _check(mechanism in MECHANISMS, "sync", value, "one of " + ", ".join(MECHANISMS))
    part = _number("sync", overlap) if overlap else load.sync.overlap
    _check(0 <= part <= 1, "sync", value, "a mechanism and the part that is hidden, 0 to 1")
    _needs(load.sync.seconds > 0, "weights take no time that was seen")
    bytes = load.sync.bytes
    _needs(not math.isnan(bytes), "the size of the weights is not known")
    seconds = transfer_s(mechanism, bytes, constants, load.sync.fixed_s)
    seconds = min(seconds, load.sync.seconds)
    return replace(load, sync=Sync(seconds, part, bytes, mechanism, load.sync.fixed_s))


def _sync_speed(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(load.sync.seconds > 0, "weights take no time that was seen")
    factor = _number("sync_speed", value)
    _check(factor > 0, "sync_speed", value, "a factor above 0")
    return replace(load, sync=replace(load.sync, seconds=load.sync.seconds / factor))


def _train_speed(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(Stage.TRAIN in load.serial_s, "the training stage was not seen")
    factor = _number("train_speed", value)
    _check(factor > 0, "train_speed", value, "a factor above 0")
    faster = tuple(seconds / factor for seconds in load.serial_s[Stage.TRAIN])
    serial = dict(load.serial_s)
    serial[Stage.TRAIN] = faster
    return replace(load, serial_s=serial)


def _drop_logprob(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(load.mean_s(Stage.LOGPROB) > 0, "no log-prob pass was seen")
    left = dict(load.serial_s)
    del left[Stage.LOGPROB]
    return replace(load, serial_s=left)


def _drop_reference(load: Workload, value: str, constants: Constants) -> Workload:
    seen = load.mean_s(Stage.REFERENCE) > 0 or load.reference_s > 0
    _needs(seen, "no reference pass was seen")
    left = dict(load.serial_s)
    left.pop(Stage.REFERENCE, None)
    return replace(load, serial_s=left, reference_s=0.0)


def _reference_side(load: Workload, value: str, constants: Constants) -> Workload:
    _check(value == "actor", "reference_side", value, "actor")
    _needs(load.mean_s(Stage.REFERENCE) > 0, "no reference pass was seen on the learner's side")
    _needs(load.placement != "colocated", "all stages take turns")
    moved = load.reference_s + load.mean_s(Stage.REFERENCE)
    left = dict(load.serial_s)
    left.pop(Stage.REFERENCE, None)
    return replace(load, serial_s=left, reference_s=moved)


def _no_switch(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(load.switch_s > 0, "no sleep, wake or offload was seen")
    return replace(load, switch_s=0.0)


def _speculative(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(load.engine.stands_for > 0, "how many sequences run at once is not known")
    note = "drafts are taken to be accepted as in the published case"
    engine = replace(load.engine, drafting=constants["draft_gain"])
    return replace(load, engine=engine, rests_on=(*load.rests_on, note))


def _lag_bound(load: Workload, value: str, constants: Constants) -> Workload:
    bound = _number("lag_bound", value)
    _check(bound >= 0, "lag_bound", value, "versions, 0 or more")
    _needs(load.placement == "async", f"{load.placement} has no bound to move")
    return replace(load, lag_bound=bound)


def _chunks(load: Workload, value: str, constants: Constants) -> Workload:
    chunks = _number("chunks", value)
    _check(chunks >= 1 and chunks == round(chunks), "chunks", value, "a number of parts, 1 or more")
    streams = load.placement in ("disaggregated", "async")
    _needs(streams, f"in {load.placement} the learner takes whole batches")
    return replace(load, chunks=int(chunks))


def _slots(load: Workload, value: str, constants: Constants) -> Workload:
    _needs(math.isfinite(load.engine.slots), "no limit of sequences at once was seen")
    factor = _factor(value, load.engine.slots)
    slots = max(1.0, load.engine.slots * factor)
    return replace(load, engine=replace(load.engine, slots=slots))


_NAMED = (
    Lever("placement", "who runs when", _placement, PLACEMENTS, 0),
    Lever("split", "devices of rollout : training, at the same total", _split, (), 0),
    Lever("devices", "all devices, a number or a factor like x2", _devices, ("x2",)),
    Lever("rollout_workers", "rollout workers (devices), a number or a factor like x2",
          _rollout_workers, ("x2",)),
    Lever("learner_workers", "training devices, a number or a factor like x2",
          _learner_workers, ("x2",)),
    Lever("slots", "sequences that a worker runs at once", _slots, ("x2",)),
    Lever("chunks", "parts in which the learner takes a batch as it comes", _chunks, ("4",)),
    Lever("no_barrier", "generation never waits for its longest sample", _no_barrier, ON),
    Lever("tail_cap", "responses are cut at so many tokens, or at a quantile like p95",
          _tail_cap, ("p95",)),
    Lever("repack", "the last sequences of a batch are moved together", _repack, ON),
    Lever("partial_rollout", "groups begun for each one needed; unfinished ones are kept",
          _partial_rollout, ("1.5",)),
    Lever("reward_parallel", "workers that judge, a number or a factor", _reward_parallel, ("x4",)),
    Lever("reward_cache", "part of the verdicts that a cache gives", _reward_cache, ("0.5",)),
    Lever("reward_async", "a verdict begins as its sample ends", _reward_async, ON),
    Lever("reward_latency", "factor on the time of a verdict", _reward_latency, ("0.5",)),
    Lever("env_latency", "factor on the time of tools", _env_latency, ("0.5",)),
    Lever("env_failures", "share of samples that still fail", _env_failures, ("0",)),
    Lever("sync", "how weights travel: " + ", ".join(MECHANISMS) + ", then :part hidden",
          _sync, ("bucketed", "relay", "delta", "direct")),
    Lever("sync_speed", "how many times faster weights travel", _sync_speed, ()),
    Lever("train_speed", "how many times faster the training stage is", _train_speed, ("1.5",)),
    Lever("drop_logprob", "rollout's own log-probs, not a pass of their own", _drop_logprob, ON),
    Lever("drop_reference", "no reference pass", _drop_reference, ON),
    Lever("reference_side", "the reference pass in the actors' chain", _reference_side,
          ("actor",)),
    Lever("no_switch", "no sleep, wake and offload", _no_switch, ON),
    Lever("speculative", "speculative decoding, by how many sequences run", _speculative, ON),
    Lever("lag_bound", "versions that a sample may be late", _lag_bound, ("0", "1", "2", "4")),
)  # fmt: skip

LEVERS: Mapping[str, Lever] = {lever.name: lever for lever in _NAMED}
"""All levers by the name that they have on the command line."""


def lever(name: str) -> Lever:
    """The lever of that name. Errors: `RltraceError` with the names there are."""
    if name not in LEVERS:
        raise RltraceError(
            f"there is no lever {name!r}; there are {', '.join(LEVERS)}", WRONG_USAGE
        )
    return LEVERS[name]


def moves(words: Sequence[str]) -> list[tuple[str, str]]:
    """Levers and values of words like `placement=async`. Errors: `RltraceError` for a word that is
    no lever with its value, and for a lever that is there twice."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name in LEVERS and LEVERS[name].tries != ON:
            raise RltraceError(f"--lever {word!r} must be {name}=VALUE", WRONG_USAGE)
        lever(name)
        if name in found:
            raise RltraceError(f"--lever {name} is there twice: give one value", WRONG_USAGE)
        found[name] = value
    return list(found.items())


def _verdict_s(load: Workload) -> float:
    return float(sum(batch.verdict_s.sum() for batch in load.batches))


def _factor(value: str, now: float) -> float:
    """`x2` is a factor, `4` a number of what there is now."""
    factor = _number("the value", value[1:]) if value.startswith("x") else 0.0
    factor = factor or _number("the value", value.removeprefix("x")) / now
    _check(factor > 0, "the value", value, "above 0")
    return factor


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    _check(math.isfinite(value), name, text, "a number")
    return value


def _check(holds: bool, name: str, value: str, rule: str) -> None:
    if not holds:
        raise RltraceError(f"{name} must be {rule}, not {value!r}", WRONG_USAGE)


def _needs(holds: bool, why: str) -> None:
    if not holds:
        raise NotApplicable(why)
