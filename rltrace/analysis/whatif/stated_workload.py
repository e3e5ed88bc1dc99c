"""A workload from stated stage seconds, without a trace (docs/reference/levers.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from rltrace.analysis.stats.confidence_interval import (
    lognormal_values,
    longest_of_lognormal,
    makespan,
)
from rltrace.analysis.timeline.intervals import Floats
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.workload import (
    AT_ONCE,
    GOES_ON,
    PEAK_TFLOPS,
    PLACEMENTS,
    Constants,
    EngineModel,
    SampleBatch,
    StepWorkload,
    SyncModel,
    train_mfu,
    weight_bytes,
)
from rltrace.trace.read.stated_tables import checked, refuse
from rltrace.trace.untrusted_files import packaged_toml, toml_given
from rltrace.trace.vocabulary import Stage

Tables = dict[str, dict[str, Any]]

_SAMPLES, _GROUP = 96, 4  # that are played for a batch of any size, and of each group
_HOLDS_BYTES = 48e9  # of weights on a device of 80 GB; the rest is for caches
_BATCHES = 6  # orders in which the same lengths come
_Z95, _7B, _ROUNDS = 1.645, 7.6e9, 8  # rounds until cut lengths have the stated mean

_KNOWN = packaged_toml("analysis/data/stages_file.toml")
_NOT_THE_LEARNERS = ("rollout", "env", "reward", "sync", "switch")


@dataclass(frozen=True)
class Stated:
    """A stages file: its tables as they stand, checked. `workload` completes them."""

    placement: str
    tables: Mapping[str, Mapping[str, Any]] = field(repr=False)

    def number(self, table: str, key: str, otherwise: float = math.nan) -> float:
        return float(self.tables.get(table, {}).get(key, otherwise))

    def workload(self, constants: Constants) -> StepWorkload:
        """The workload: where the file says nothing, a constant does, and is named."""
        stage_s = {stage: self.number("stages", stage, 0.0) for stage in _KNOWN["stages"]}
        rests: list[str] = []
        lengths = self._lengths(constants)
        tail_s, work_s = self._tail(stage_s["rollout"], lengths, constants, rests)
        useful, order = self.useful_tokens, np.random.default_rng(0)
        env_s = np.full(_SAMPLES, stage_s["env"])
        verdict_s = np.full(_SAMPLES, stage_s["reward"] / _SAMPLES)
        group = tuple(i // _GROUP for i in range(_SAMPLES))
        orders = [order.permutation(lengths) for _ in range(_BATCHES)]
        learner = {s: (seconds,) for s, seconds in stage_s.items() if s not in _NOT_THE_LEARNERS}
        copy_bytes = weight_bytes(self.number("model", "parameters"))
        told = {"throughput_s", "tail_s", "cap_tokens", "mean_tokens"} & self.tables.get(
            "rollout", {}
        ).keys()
        counts = {pool: self.number("devices", pool) for pool in ("shared", "rollout", "train")}
        devices = {pool: count for pool, count in counts.items() if count > 0}
        if untold := not devices and self.placement == "colocated":
            devices = {"shared": 1.0}
            useful = math.nan
            rests.append("devices are not stated: they are one pool, of which parts are given away")
        # Where engines are not stated, one is as few devices as hold the weights.
        held_by = 2.0 ** math.ceil(math.log2(max(1.0, copy_bytes / _HOLDS_BYTES)))
        engines = math.nan if untold else devices.get("rollout", devices.get("shared", math.nan))
        engines = self.number("rollout", "engines", max(engines / held_by, 1.0))
        stands_for = self.samples / _SAMPLES / engines
        slots = self.number("rollout", "slots", math.inf) / stands_for
        slots = slots if slots > 0 else math.inf
        at_once = round(max(1.0, min(slots, _SAMPLES)))
        chain = float(np.mean([makespan(lengths.tolist(), at_once) for lengths in orders]))
        in_async, overlap = self.placement == "async", self.number("sync", "overlap", 0.0)
        chunks = self.number("", "chunks", constants["minibatches"] if in_async else 1.0)
        room = _SAMPLES * (1 / _GROUP if in_async else constants["engine_room"])
        made = StepWorkload(
            placement=self.placement,
            batches=tuple(SampleBatch(tokens, env_s, verdict_s, group) for tokens in orders),
            engine=EngineModel(
                1.0, slots, tail_s / chain, work_s / float(lengths.sum()),
                pooled=True, stands_for=stands_for, room=room if math.isinf(slots) else math.inf,
            ),
            serial_s={Stage[stage.upper()]: one for stage, one in learner.items() if one[0]},
            switch_s=stage_s["switch"], reward_workers=1,
            scoring=str(self.tables.get("reward", {}).get("scoring", "batch")),
            chunks=int(chunks), weights_stop=GOES_ON if overlap else AT_ONCE,
            sync=SyncModel(stage_s["sync"], overlap, copy_bytes,
                           changed_share=self.number("sync", "changed_share")),
            lag_bound=self.number("", "lag_bound", 1.0),
            devices=devices, devices_told=not untold, useful_tokens=useful, rests_on=tuple(rests),
            usd_per_device_hour=self.number("devices", "usd_per_hour"),
            tail_told=bool(told) or self.placement == "async",
        )  # fmt: skip
        step_s = self.number("", "step_s")
        if math.isnan(step_s):
            return made
        # What the stages do not explain is there, too.
        return replace(made, measured_step_s=step_s, rest_s=max(0.0, step_s - replay(made).step_s))

    @property
    def samples(self) -> float:
        """Of a step; NaN where that is not stated."""
        return self.number("rollout", "prompts") * self.number("rollout", "samples", 1.0)

    @property
    def useful_tokens(self) -> float:
        """Of a step; NaN where that is not stated."""
        of_samples = self.samples * self.number("rollout", "mean_tokens")
        return self.number("", "useful_tokens", of_samples)

    def _lengths(self, constants: Constants) -> Floats:
        """Tokens of samples that stand for a step's, the longest last: a lognormal of the stated
        mean and 95th percentile, cut at the cap. Without a mean the longest is the cap, or 1."""
        mean, p95, cap = (self.number("rollout", f"{of}_tokens") for of in ("mean", "p95", "cap"))
        if math.isnan(mean) or math.isnan(p95):
            s = constants["log_deviation"]
        else:  # p95 / mean = exp(z s - s^2 / 2)
            s = max(0.0, _Z95 - math.sqrt(max(0.0, _Z95**2 - 2 * math.log(p95 / mean))))
        values: Floats = lognormal_values(_SAMPLES, 1.0, s)
        if math.isnan(mean):
            values *= np.nan_to_num(cap, nan=1.0) / values[-1]
            return values
        for _ in range(_ROUNDS):
            values = np.fmin(values * (mean / values.mean()), cap)
        count = int(np.nan_to_num(self.samples, nan=_SAMPLES))
        values[-1] = max(values[-1], np.fmin(mean * longest_of_lognormal(count, s), cap))
        return values

    def _tail(
        self, rollout_s: float, lengths: Floats, constants: Constants, rests: list[str]
    ) -> tuple[float, float]:
        """Seconds of generation that are the longest sample's, and shared work: as stated, else its
        tokens at the pace of a sequence alone, but no more than leaves time for the others'."""
        whole_s = rollout_s - self.number("rollout", "tail_s")
        stated = self.number("rollout", "throughput_s", whole_s)
        if not rollout_s or self.placement == "async":  # its seconds are those of the work alone
            return 0.0, rollout_s
        if not math.isnan(stated):
            return rollout_s - stated, stated
        longest = float(lengths[-1])
        if longest <= 1:
            rests.append("neither cap nor mean length is stated, which tell the tail of generation")
            return (share := constants["tail_share"]) * rollout_s, (1 - share) * rollout_s
        size = self.number("model", "parameters")
        alone = constants["alone_tokens_per_s" if math.isnan(size) else "alone_7b_tokens_per_s"]
        alone *= math.sqrt(_7B / np.nan_to_num(size, nan=_7B))
        work = constants["full_slowdown"] * float(lengths.mean()) / longest  # over the tail
        tail_s = min(longest / alone, rollout_s / (1 + work))
        of = f"{longest:,.0f} tokens of the longest response, {alone:.0f} tokens/s alone"
        rests.append(f"the tail is taken to be {tail_s:,.0f} s of {rollout_s:,.0f} s ({of})")
        return tail_s, rollout_s - tail_s


def read_stages(path: Path) -> Stated:
    """Errors: `RltraceError`, one sentence, for what makes no sense."""
    return stated(toml_given(path), str(path))


def by_table(said: Mapping[str, Any]) -> Tables:
    """The tables of a TOML file; under "" what stands before all of them."""
    tables = {key: dict(value) for key, value in said.items() if isinstance(value, Mapping)}
    return {"": {key: said[key] for key in said if key not in tables}, **tables}


def stated(tables: Mapping[str, Any], where: str) -> Stated:
    """The same from tables that are read. `where` names them in errors."""
    # What was published of it is no input.
    said = {key: value for key, value in tables.items() if key != "published"}
    known = by_table(checked(_KNOWN, said, where))
    placement = str(known[""].get("placement", PLACEMENTS[0]))
    if sum(known.get("stages", {}).values()) < _KNOWN["step_s"][0]:
        refuse(where, "[stages] must name at least one stage that takes time")
    found = Stated(placement, known)
    _check_sense(found, where)
    return found


def _check_sense(found: Stated, where: str) -> None:
    lengths = [f"{of}_tokens" for of in ("mean", "p95", "cap")]
    for less, more in combinations(lengths, 2):
        if found.number("rollout", less) > found.number("rollout", more):
            refuse(where, f"rollout.{less} must not exceed rollout.{more}")
    pools = found.tables.get("devices", {}).keys() - {"name", "usd_per_hour"}
    known = found.tables.get("rollout", {})
    if "slots" in known and ("prompts" not in known or not ("engines" in known or pools)):
        refuse(where, "rollout.slots needs rollout.prompts, and rollout.engines or [devices]")
    if pools not in (set(), {"shared"}, {"rollout", "train"}):
        refuse(where, "[devices] are either shared or split into rollout and train")
    rollout_s = found.number("stages", "rollout", 0.0)
    for key in ("throughput_s", "tail_s"):
        if found.number("rollout", key) > rollout_s:
            refuse(where, f"rollout.{key} must not exceed the seconds of the stage")
    train_s = found.number("stages", "train", 0.0)
    if found.number("", "step_s") < max(rollout_s, train_s) * (found.placement != "async"):
        refuse(where, "step_s is shorter than one of its stages")
    parameters, tokens = found.number("model", "parameters"), found.useful_tokens
    devices = found.number("devices", "shared", found.number("devices", "train"))
    device = str(found.tables.get("devices", {}).get("name"))
    if device not in PEAK_TFLOPS or not train_s * devices:
        return
    mfu = train_mfu(parameters, tokens, train_s, devices, PEAK_TFLOPS[device])
    most = Constants()["highest_mfu"]
    if mfu > most:
        refuse(
            where,
            f"{tokens:,.0f} tokens through {parameters / 1e9:g}B parameters in {train_s:g} s on "
            f"{devices:g} {device} would be {100 * mfu:.0f} % MFU: training takes at least "
            f"{mfu * train_s / most:.1f} s",
        )
