"""What each lever makes of a workload, and how its value is read.

A function has the name of its lever (`levers`): a workload, a value and constants in, a workload
out. Errors: `NotApplicable`, and `RltraceError` for a value that makes no sense.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rltrace.analysis.whatif.constants import MECHANISMS, Constants, transfer_s
from rltrace.analysis.whatif.pools import grown, resplit, scaled_learner, scaled_rollout
from rltrace.analysis.whatif.workload import OVERLAPPING, PLACEMENTS, Batch, Workload
from rltrace.trace.errors import WrongUsage
from rltrace.trace.vocabulary import Stage

_MOST_TIMES = 10_000
"""More of anything is a slip of the pen, and would be replayed for ever."""

_UNTOLD = "which sequences run, and which wait after their tools, was not seen"
_SHARE = "generation and training share their devices: use split or placement"
_NO_DEVICES = "the devices are not known"
_NO_VERDICTS = "verdicts take no time that was seen"
_NO_TAIL_SEEN = "no trajectory was recorded: how unequal lengths are was not seen"
_NO_BARRIER_SEEN = "generation goes on beside training already, and no trajectory was recorded"
_KEPT = "generation and training go on to take turns on the same devices (partial_rollout=1.5)"


class NotApplicable(Exception):
    """The lever moves nothing that this workload has; the message says what is missing."""


def factor_of(name: str, value: str, now: float) -> float:
    """`x2` is a factor, `4` a number of what there is now."""
    factor = number(name, value.removeprefix("x")) / (1.0 if value.startswith("x") else now)
    check(factor > 0, name, value, "above 0")
    check(factor <= _MOST_TIMES, name, value, f"at most {_MOST_TIMES:,} times what there is")
    return factor


def number(
    name: str, text: str, rule: str = "", holds: Callable[[float], bool] = math.isfinite
) -> float:
    """The number that a lever's value stands for. Errors: `RltraceError` for anything else, and for
    one that breaks the rule."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    check(math.isfinite(value), name, text, "a number")
    check(holds(value), name, text, rule)
    return value


def check(holds: bool, name: str, value: str, rule: str) -> None:
    """Errors: `RltraceError` for a value that breaks the rule."""
    if not holds:
        raise WrongUsage(f"{name} must be {rule}, not {value!r}")


def needs(holds: bool, why: str) -> None:
    """Errors: `NotApplicable` where the workload lacks what the lever moves."""
    if not holds:
        raise NotApplicable(why)


# --- who runs when, and on how many devices


def rollout_workers(load: Workload, value: str, constants: Constants) -> Workload:
    needs(not load.shared, _SHARE)
    needs(load.places_told, _UNTOLD)
    factor = factor_of("rollout_workers", value, load.engine.workers)
    if not load.engine.pooled:
        check(round(factor * load.engine.workers) >= 1, "rollout_workers", value, "1 or more")
    return scaled_rollout(load, factor, constants)


def learner_workers(load: Workload, value: str, constants: Constants) -> Workload:
    needs(not load.shared, _SHARE)
    needs(bool(load.serial_s), "no stage of the learner is known")
    factor = factor_of("learner_workers", value, load.devices.get("train", 1.0))
    return scaled_learner(load, factor, constants)


def devices(load: Workload, value: str, constants: Constants) -> Workload:
    needs(bool(load.devices), _NO_DEVICES)
    return grown(load, factor_of("devices", value, load.total_devices), constants)


def split(load: Workload, value: str, constants: Constants) -> Workload:
    needs(bool(load.devices), _NO_DEVICES)
    total = load.total_devices
    if ":" in value:
        left, _, right = value.partition(":")
        rollout, train = number("split", left), number("split", right)
        fits = math.isclose(rollout + train, total, rel_tol=1e-3)
        check(fits, "split", value, f"counts that add up to {total:g} devices")
    else:
        rule = "a part between 0 and 1, or counts like 16:16"
        rollout = number("split", value, rule, lambda part: 0 < part < 1) * total
        train = total - rollout
    check(rollout > 0 and train > 0, "split", value, "devices on both sides")
    if load.shared and load.placement == "colocated":
        load = replace(load, placement="one-step-off")
    return resplit(load, rollout, train, constants)


def placement(load: Workload, value: str, constants: Constants) -> Workload:
    check(value in PLACEMENTS, "placement", value, "one of " + ", ".join(PLACEMENTS))
    needs(value != load.placement, f"it is {value} already")
    beside = value in OVERLAPPING and load.placement in OVERLAPPING
    needs(not (beside and load.without_samples), _NO_BARRIER_SEEN)
    scoring = "group" if load.scoring == "batch" and value != "colocated" else load.scoring
    return replace(load, placement=value, scoring=scoring, keeps_unfinished=False, in_batches=False)


def no_barrier(load: Workload, value: str, constants: Constants) -> Workload:
    if load.in_batches:
        return replace(load, in_batches=False)
    needs(load.placement != "async", "there is no barrier in async")
    needs(not load.without_samples, _NO_TAIL_SEEN)
    if load.shared:
        return partial_rollout(load, "1.5", constants).noted(_KEPT)
    bound = max(1.0, load.lag_bound)
    note = (
        "generation goes on beside training, each on its devices, with samples that lag by up to "
        f"{bound:g} version{'s' * (bound != 1)} (placement=async)"
    )
    return replace(load.noted(note), placement="async", lag_bound=bound)


def partial_rollout(load: Workload, value: str, constants: Constants) -> Workload:
    rule = "groups begun for each one needed, 1 or more"
    in_flight = number("partial_rollout", value, rule, lambda groups: groups >= 1)
    turns = load.placement in ("colocated", "disaggregated")
    needs(turns, f"{load.placement} does not wait for a batch to end")
    needs(not load.without_samples, _NO_TAIL_SEEN)
    return replace(load, keeps_unfinished=True, in_flight=in_flight)


def lag_bound(load: Workload, value: str, constants: Constants) -> Workload:
    bound = number("lag_bound", value, "versions, 0 or more", lambda versions: versions >= 0)
    needs(load.placement == "async", f"{load.placement} has no bound to move")
    return replace(load, lag_bound=bound)


def chunks(load: Workload, value: str, constants: Constants) -> Workload:
    rule = "a number of parts, 1 or more"
    chunks = number("chunks", value, rule, lambda parts: parts >= 1 and parts == round(parts))
    streams = load.placement in ("disaggregated", "async")
    needs(streams, f"in {load.placement} the learner takes whole batches")
    return replace(load, chunks=int(chunks))


# --- how samples are generated, judged and served by tools


def slots(load: Workload, value: str, constants: Constants) -> Workload:
    needs(math.isfinite(load.engine.slots), "no limit of sequences at once was seen")
    needs(load.places_told, _UNTOLD)
    factor = factor_of("slots", value, load.engine.slots)
    slots = max(1.0, load.engine.slots * factor)
    return replace(load, engine=replace(load.engine, slots=slots))


def speculative(load: Workload, value: str, constants: Constants) -> Workload:
    needs(load.engine.stands_for > 0, "how many sequences run at once is not known")
    note = "drafts are taken to be accepted as in the published case"
    engine = replace(load.engine, drafting=constants["draft_gain"])
    return replace(load.noted(note), engine=engine)


def tail_cap(load: Workload, value: str, constants: Constants) -> Workload:
    needs(not load.without_samples, _NO_TAIL_SEEN)
    tokens = np.concatenate([batch.tokens for batch in load.batches])
    if value.startswith("p"):
        percent = number("tail_cap", value[1:])
        check(0 < percent < 100, "tail_cap", value, "tokens, or a quantile like p95")
        cap = float(np.quantile(tokens, percent / 100))
    else:
        cap = number("tail_cap", value, "tokens, or a quantile like p95", lambda cap: cap > 0)
        needs(float(tokens.max()) > 1.5, "token counts are not known: give a quantile, like p95")
    needs(cap < float(tokens.max()), "no response is longer")
    kept = float(np.minimum(tokens, cap).sum() / tokens.sum())
    note = f"the cap cuts {100 * (1 - kept):.0f} % of the tokens: whether rewards suffer is unknown"
    capped = load.with_batches(lambda b: replace(b, tokens=np.minimum(b.tokens, cap)))
    return replace(capped.noted(note), useful_share=load.useful_share * kept)


def samples(load: Workload, value: str, constants: Constants) -> Workload:
    sizes = [len(b.group) / len(set(b.group)) for b in load.batches if b.group]
    needs(bool(sizes), "the samples of a prompt are not known")
    mean = sum(sizes) / len(sizes)
    factor = max(1, round(mean * factor_of("samples", value, mean))) / mean
    note = "more samples of a prompt are like those there are; the learner's time grows with them"
    return replace(
        load.with_batches(lambda batch: _resized(batch, factor)).paced(lambda stage: factor),
        reference_s=load.reference_s * factor,
        useful_share=load.useful_share * factor,
    ).noted(note)


def _resized(batch: Batch, factor: float) -> Batch:
    """The batch with `factor` times the samples in each group, the same ones again in turn."""
    group = np.array(batch.group)
    members = [np.flatnonzero(group == one) for one in dict.fromkeys(batch.group)]
    places = np.concatenate([np.resize(m, max(1, round(factor * len(m)))) for m in members])
    return Batch(
        batch.tokens[places],
        batch.env_s[places],
        batch.verdict_s[places],
        tuple(group[places].tolist()),
    )


def reward_parallel(load: Workload, value: str, constants: Constants) -> Workload:
    needs(_verdict_s(load) > 0, _NO_VERDICTS)
    size = round(factor_of("reward_parallel", value, load.reward_workers) * load.reward_workers)
    check(size >= 1, "reward_parallel", value, "1 or more")
    return replace(load, reward_workers=size)


def reward_cache(load: Workload, value: str, constants: Constants) -> Workload:
    rule = "a part of the verdicts, 0 to 1"
    share = number("reward_cache", value, rule, lambda share: 0 <= share <= 1)
    needs(_verdict_s(load) > 0, _NO_VERDICTS)

    def cached(batch: Batch) -> Batch:
        hits = np.floor(np.arange(len(batch.verdict_s) + 1) * share)
        return replace(batch, verdict_s=np.where(np.diff(hits) > 0, 0.0, batch.verdict_s))

    return load.with_batches(cached)


def reward_async(load: Workload, value: str, constants: Constants) -> Workload:
    needs(_verdict_s(load) > 0, _NO_VERDICTS)
    needs(load.scoring != "sample", "verdicts begin as each sample ends already")
    return replace(load, scoring="sample")


def reward_latency(load: Workload, value: str, constants: Constants) -> Workload:
    needs(_verdict_s(load) > 0, _NO_VERDICTS)
    factor = number("reward_latency", value, "a factor, 0 or more", lambda factor: factor >= 0)
    return load.with_batches(lambda b: replace(b, verdict_s=b.verdict_s * factor))


def env_latency(load: Workload, value: str, constants: Constants) -> Workload:
    needs(any(batch.env_s.any() for batch in load.batches), "no time of tools was seen")
    factor = number("env_latency", value, "a factor, 0 or more", lambda factor: factor >= 0)
    return load.with_batches(lambda b: replace(b, env_s=b.env_s * factor))


def _verdict_s(load: Workload) -> float:
    return float(sum(batch.verdict_s.sum() for batch in load.batches))


# --- the learner's passes, and how its weights travel


def train_speed(load: Workload, value: str, constants: Constants) -> Workload:
    needs(Stage.TRAIN in load.serial_s, "the training stage was not seen")
    factor = number("train_speed", value, "a factor above 0", lambda factor: factor > 0)
    faster = tuple(seconds / factor for seconds in load.serial_s[Stage.TRAIN])
    return replace(load, serial_s={**load.serial_s, Stage.TRAIN: faster})


def drop_logprob(load: Workload, value: str, constants: Constants) -> Workload:
    needs(load.mean_s(Stage.LOGPROB) > 0, "no log-prob pass was seen")
    return load.without(Stage.LOGPROB)


def drop_reference(load: Workload, value: str, constants: Constants) -> Workload:
    needs(load.mean_s(Stage.REFERENCE) + load.reference_s > 0, "no reference pass was seen")
    return replace(load.without(Stage.REFERENCE), reference_s=0.0)


def reference_side(load: Workload, value: str, constants: Constants) -> Workload:
    check(value == "actor", "reference_side", value, "actor")
    needs(load.mean_s(Stage.REFERENCE) > 0, "no reference pass was seen on the learner's side")
    needs(load.placement != "colocated", "all stages take turns")
    moved_s = load.mean_s(Stage.REFERENCE)
    return replace(load.without(Stage.REFERENCE), reference_s=load.reference_s + moved_s)


def no_switch(load: Workload, value: str, constants: Constants) -> Workload:
    needs(load.switch_s > 0, "no sleep, wake or offload was seen")
    return replace(load, switch_s=0.0)


def sync(load: Workload, value: str, constants: Constants) -> Workload:
    mechanism, _, overlap = value.partition(":")
    check(mechanism in MECHANISMS, "sync", value, "one of " + ", ".join(MECHANISMS))
    part = number("sync", overlap) if overlap else load.sync.overlap
    check(0 <= part <= 1, "sync", value, "a mechanism and the part that is hidden, 0 to 1")
    needs(load.sync.seconds > 0, "weights take no time that was seen")
    bytes = load.sync.bytes
    needs(not math.isnan(bytes), "the size of the weights is not known")
    seconds = min(transfer_s(mechanism, bytes, constants, load.sync.fixed_s), load.sync.seconds)
    return replace(load, sync=replace(load.sync, seconds=seconds, overlap=part))


def sync_speed(load: Workload, value: str, constants: Constants) -> Workload:
    needs(load.sync.seconds > 0, "weights take no time that was seen")
    factor = number("sync_speed", value, "a factor above 0", lambda factor: factor > 0)
    return replace(load, sync=replace(load.sync, seconds=load.sync.seconds / factor))
