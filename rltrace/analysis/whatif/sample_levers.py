"""Levers on samples: how they are generated, judged and served by tools.

Each function is the change of the lever of its name (`levers`): a workload, a value and constants
in, a workload out. Errors: `NotApplicable` and `RltraceError`, as `lever` says.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from rltrace.analysis.whatif.constants import Constants
from rltrace.analysis.whatif.lever import check, factor_of, needs, number
from rltrace.analysis.whatif.placement_levers import UNTOLD
from rltrace.analysis.whatif.workload import Batch, Workload


def slots(load: Workload, value: str, constants: Constants) -> Workload:
    needs(math.isfinite(load.engine.slots), "no limit of sequences at once was seen")
    needs(load.places_told, UNTOLD)
    factor = factor_of("slots", value, load.engine.slots)
    slots = max(1.0, load.engine.slots * factor)
    return replace(load, engine=replace(load.engine, slots=slots))


def speculative(load: Workload, value: str, constants: Constants) -> Workload:
    needs(load.engine.stands_for > 0, "how many sequences run at once is not known")
    note = "drafts are taken to be accepted as in the published case"
    engine = replace(load.engine, drafting=constants["draft_gain"])
    return replace(load, engine=engine, rests_on=(*load.rests_on, note))


def tail_cap(load: Workload, value: str, constants: Constants) -> Workload:
    needs(
        not load.without_samples, "no trajectory was recorded: how unequal lengths are is unknown"
    )
    tokens = np.concatenate([batch.tokens for batch in load.batches])
    if value.startswith("p"):
        percent = number("tail_cap", value[1:])
        check(0 < percent < 100, "tail_cap", value, "tokens, or a quantile like p95")
        cap = float(np.quantile(tokens, percent / 100))
    else:
        cap = number("tail_cap", value)
        check(cap > 0, "tail_cap", value, "tokens, or a quantile like p95")
        needs(float(tokens.max()) > 1.5, "token counts are not known: give a quantile, like p95")
    needs(cap < float(tokens.max()), "no response is longer")
    batches = tuple(replace(b, tokens=np.minimum(b.tokens, cap)) for b in load.batches)
    kept = float(np.minimum(tokens, cap).sum() / tokens.sum())
    note = f"the cap cuts {100 * (1 - kept):.0f} % of the tokens: whether rewards suffer is unknown"
    useful = load.useful_share * kept
    return replace(load, batches=batches, useful_share=useful, rests_on=(*load.rests_on, note))


def repack(load: Workload, value: str, constants: Constants) -> Workload:
    engine = load.engine
    needs(not engine.pooled and engine.workers > 1, "it is not known which worker ran what")
    return replace(
        load,
        engine=replace(engine, pooled=True),
        rest_s=load.rest_s + constants["migration_s"] * (load.placement != "async"),
    )


def samples(load: Workload, value: str, constants: Constants) -> Workload:
    sizes = [len(b.group) / len(set(b.group)) for b in load.batches if b.group]
    needs(bool(sizes), "the samples of a prompt are not known")
    mean = sum(sizes) / len(sizes)
    factor = max(1, round(mean * factor_of("samples", value, mean))) / mean
    note = "more samples of a prompt are like those there are; the learner's time grows with them"
    return replace(
        load,
        batches=tuple(_resized(batch, factor) for batch in load.batches),
        serial_s={s: tuple(x * factor for x in series) for s, series in load.serial_s.items()},
        reference_s=load.reference_s * factor,
        useful_share=load.useful_share * factor,
        rests_on=(*load.rests_on, note),
    )


def _resized(batch: Batch, factor: float) -> Batch:
    """The batch with `factor` times the samples in each group, the same ones again in turn."""
    places: list[int] = []
    members: dict[int, list[int]] = {}
    for place, group in enumerate(batch.group):
        members.setdefault(group, []).append(place)
    for own in members.values():
        places += [own[k % len(own)] for k in range(max(1, round(factor * len(own))))]
    return Batch(
        batch.tokens[places],
        batch.env_s[places],
        batch.verdict_s[places],
        tuple(batch.group[place] for place in places),
    )


def reward_parallel(load: Workload, value: str, constants: Constants) -> Workload:
    needs(_verdict_s(load) > 0, "verdicts take no time that was seen")
    size = round(factor_of("reward_parallel", value, load.reward_workers) * load.reward_workers)
    check(size >= 1, "reward_parallel", value, "1 or more")
    return replace(load, reward_workers=size)


def reward_cache(load: Workload, value: str, constants: Constants) -> Workload:
    share = number("reward_cache", value)
    check(0 <= share <= 1, "reward_cache", value, "a part of the verdicts, 0 to 1")
    needs(_verdict_s(load) > 0, "verdicts take no time that was seen")
    batches = []
    for batch in load.batches:
        place = np.arange(len(batch.verdict_s))
        hit = np.floor((place + 1) * share) > np.floor(place * share)
        batches.append(replace(batch, verdict_s=np.where(hit, 0.0, batch.verdict_s)))
    return replace(load, batches=tuple(batches))


def reward_async(load: Workload, value: str, constants: Constants) -> Workload:
    needs(_verdict_s(load) > 0, "verdicts take no time that was seen")
    needs(load.scoring != "sample", "verdicts begin as each sample ends already")
    return replace(load, scoring="sample")


def reward_latency(load: Workload, value: str, constants: Constants) -> Workload:
    needs(_verdict_s(load) > 0, "verdicts take no time that was seen")
    factor = number("reward_latency", value)
    check(factor >= 0, "reward_latency", value, "a factor, 0 or more")
    batches = tuple(replace(b, verdict_s=b.verdict_s * factor) for b in load.batches)
    return replace(load, batches=batches)


def env_latency(load: Workload, value: str, constants: Constants) -> Workload:
    needs(any(batch.env_s.any() for batch in load.batches), "no time of tools was seen")
    factor = number("env_latency", value)
    check(factor >= 0, "env_latency", value, "a factor, 0 or more")
    return replace(load, batches=tuple(replace(b, env_s=b.env_s * factor) for b in load.batches))


def env_failures(load: Workload, value: str, constants: Constants) -> Workload:
    left = number("env_failures", value)
    check(0 <= left < 1, "env_failures", value, "the share of samples that still fail, 0 to 1")
    needs(load.failed_share > left, "fewer samples fail already")
    useful = load.useful_share * (1 - left) / (1 - load.failed_share)
    note = "samples that fail are taken to be as long as the others"
    return replace(load, useful_share=useful, failed_share=left, rests_on=(*load.rests_on, note))


def _verdict_s(load: Workload) -> float:
    return float(sum(batch.verdict_s.sum() for batch in load.batches))
