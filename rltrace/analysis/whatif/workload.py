"""What a step is made of: the input of a replay; constants.

Seconds are wall-clock of one stage in one step. A placement composes the same work in its way, so
barrier time (the longest of a batch) and throughput time (work over rate) both follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from rltrace.analysis.timeline.intervals import Floats
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Stage

PLACEMENTS = ("colocated", "disaggregated", "one-step-off", "async")
OVERLAPPING = ("one-step-off", "async")  # placements in which actors and learner work at once

GOES_ON, AT_ONCE = "goes on", "stands still"  # what generation does while weights travel


_DRAFT_ALONE, _DRAFT_LIMIT, _DRAFT_AT_LIMIT = 3.62, 32.0, 1.70
# Speculative decoding by running sequences: TLT (arXiv 2511.16665), as reported by others.


@dataclass(frozen=True, eq=False)
class SampleBatch:
    """The samples of a step, in the order in which they are asked for: tokens generated, seconds of
    tools in between, seconds of the verdict, and the group (0, 1, ...) of each."""

    tokens: Floats
    env_s: Floats
    verdict_s: Floats
    group: tuple[int, ...]


@dataclass(frozen=True)
class EngineModel:
    """Rollout: `workers` that each run up to `slots` sequences at once. With n of them a token of
    each takes `token_s + shared_token_s * n` seconds: the first part is what a lone sequence would
    take (weights are read), the second what each more of them adds (caches, arithmetic)."""

    workers: float
    slots: float
    token_s: float
    shared_token_s: float
    pooled: bool = False  # sequences are spread evenly at all times, so workers may be a fraction
    stands_for: float = 1.0  # sequences on one real engine for each that is played
    drafting: float = 0.0  # part of the published gain of speculative decoding
    tools_hold: bool = False  # else a sequence takes no slot while its tools work
    evaluates: float = 0.0  # as a part of the time in which it generates: it waits then
    seen_at_once: float = math.inf  # of a stream without a limit, the most that a worker ever had
    room: float = math.inf  # of a worker whose slots nobody stated: more than these wait

    @property
    def widths(self) -> list[float]:
        """For how many workers each that is played stands."""
        return [self.workers] if self.pooled else [1.0] * round(self.workers)

    def slots_of(self, width: float) -> float:
        return max(1.0, min(self.slots, self.room) * width)

    def pace_s(self, running: float) -> float:
        """Seconds for a token of each of so many sequences."""
        pace_s = self.token_s + self.shared_token_s * running
        if not self.drafting:
            return pace_s
        return pace_s / draft_speed(running * self.stands_for, self.drafting)

    def paced(self, factor: float) -> EngineModel:
        """The same, on which a token takes so many times as long."""
        token_s, shared_s = self.token_s * factor, self.shared_token_s * factor
        return replace(self, token_s=token_s, shared_token_s=shared_s)


def draft_speed(running: float, part: float) -> float:
    """How many times faster speculative decoding is with so many running sequences; `part` of the
    published gain comes. Beyond the limit the arithmetic of the drafts costs what they save."""
    if not part or running > _DRAFT_LIMIT:
        return 1.0
    at = math.log2(max(running, 1.0)) / math.log2(_DRAFT_LIMIT)
    return 1 + part * (_DRAFT_ALONE + at * (_DRAFT_AT_LIMIT - _DRAFT_ALONE) - 1)


@dataclass(frozen=True)
class SyncModel:
    """Weight sync: `seconds` an update, of which `overlap` (0 to 1) is hidden behind other
    work in placements that allow it. Bytes are those of one copy; NaN: unknown. `fixed_s` is what
    an update takes beside its transfer; infinite: unknown; `changed_share` the part of the bytes
    that a step changes."""

    seconds: float = 0.0
    overlap: float = 0.0
    bytes: float = math.nan
    fixed_s: float = math.inf
    changed_share: float = math.nan


@dataclass(frozen=True)
class StepWorkload:
    """A job's step; equal ones are played alike. `serial_s` are the learner's stages, seconds by
    step; `reference_s` is a pass on the actors' side. `scoring` says what is generated before a
    verdict begins: the batch, its group, or the sample. `chunks` is in how many parts the learner
    takes a batch. `devices` counts by pool ("rollout", "train"; or "shared"; empty: unknown),
    `rests_on` is what is not from the trace or the user's figures, in sentences."""

    placement: str
    batches: tuple[SampleBatch, ...]
    engine: EngineModel
    serial_s: Mapping[Stage, tuple[float, ...]] = field(hash=False)
    rest_s: float = 0.0
    switch_s: float = 0.0
    reference_s: float = 0.0
    referred_share: float = field(default=1.0, compare=False)  # of samples, by a learner's pass
    reward_workers: int = 1
    judged_in_turn: bool = False  # a worker judges all samples of a group
    scoring: str = "batch"
    spread: bool = False  # the samples of a group run on whichever worker has the least to do
    chunks: int = 1
    sync: SyncModel = SyncModel()
    lag_bound: float = 1.0
    bound_stated: bool = field(default=True, compare=False)  # else it is the largest lag that came
    drops_stale: bool | None = None  # what is older than the bound; None: nobody knows
    in_flight: float = 1.0  # groups begun for each one needed, where unfinished ones are kept
    keeps_unfinished: bool = False  # a batch is full with the first groups that end
    in_batches: bool = False  # async: a batch begins once the one before it is done
    weights_stop: str = GOES_ON  # async: what generation does while weights travel
    devices: Mapping[str, float] = field(default_factory=dict, compare=False)
    device_kind: str = field(default="GPU", compare=False)
    devices_told: bool = field(default=True, compare=False)  # else they are parts of a pool
    cores: float = math.inf  # of its nodes, without GPUs
    busy_cores: float = 1.0  # that a process computes on while it works, on average
    useful_tokens: float = field(default=math.nan, compare=False)
    useful_share: float = field(default=1.0, compare=False)  # of them, after a change
    usd_per_device_hour: float = field(default=math.nan, compare=False)
    measured_step_s: float = field(default=math.nan, compare=False)
    steps: int = field(default=0, compare=False)  # that were measured; 0: stated
    step_deviation: float = field(default=math.nan, compare=False)  # standard, over their mean
    # Logarithm of replayed over measured step, before any fit. NaN: it is made of stage seconds.
    model_error: float = field(default=math.nan, compare=False)
    rests_on: tuple[str, ...] = field(default=(), compare=False)
    tail_told: bool = field(default=True, compare=False)  # else a constant stands for it
    untold: str = field(default="", compare=False)  # without it nothing can be predicted

    @property
    def without_samples(self) -> bool:
        """Whether it is a run of which only the stage seconds are known, and no lengths."""
        told = self.tail_told and self.placement != "async"
        return self.steps > 0 and math.isnan(self.model_error) and not told

    @property
    def places_told(self) -> bool:
        """Whether it is known of samples that call tools how many of them a worker runs."""
        in_tools = any(batch.env_s.any() for batch in self.batches)
        return self.engine.tools_hold or not in_tools or not self.steps

    @property
    def streams(self) -> bool:
        """Whether groups are begun one by one, and not in batches."""
        return self.placement == "async" or self.keeps_unfinished

    @property
    def shared(self) -> bool:
        return "shared" in self.devices

    @property
    def shares_cores(self) -> bool:
        """Whether there are no GPUs, and no more cores than workers."""
        return self.cores <= sum(self.devices.values())

    @property
    def computes(self) -> float:
        """The part of their time that processes that share cores compute, 0 to 1; the rest is a
        wait, which takes as long in any company."""
        return min(1.0, self.busy_cores) * self.shares_cores

    @property
    def total_devices(self) -> float:
        """All devices; NaN where unknown."""
        return sum(self.devices.values()) if self.devices else math.nan

    def learner_s(self, step: int) -> dict[Stage, float]:
        """Seconds of the learner's stages in a step; measured steps come again in turn."""
        return {stage: one[step % len(one)] for stage, one in self.serial_s.items() if one}

    def paced(self, factor: Callable[[Stage], float]) -> StepWorkload:
        """The same, whose learner takes so many times as long for each of its stages."""
        paced = {s: tuple(x * factor(s) for x in series) for s, series in self.serial_s.items()}
        return replace(self, serial_s=paced)

    def with_batches(self, change: Callable[[SampleBatch], SampleBatch]) -> StepWorkload:
        return replace(self, batches=tuple(map(change, self.batches)))

    def noted(self, note: str) -> StepWorkload:
        return replace(self, rests_on=(*self.rests_on, note))

    def without(self, stage: Stage) -> StepWorkload:
        return replace(self, serial_s={s: one for s, one in self.serial_s.items() if s != stage})

    @property
    def chain_s(self) -> float:
        """Seconds of the learner's stages, or of full engines' work without drafts: the more."""
        tokens = sum(float(batch.tokens.sum()) for batch in self.batches) / len(self.batches)
        engine, learner_s = self.engine, sum(map(self.mean_s, self.serial_s))
        work_s = tokens * engine.shared_token_s / engine.workers * (not engine.drafting)
        return max(learner_s, work_s, 1e-9)

    def efforts(self) -> tuple[float, ...]:
        """What makes a step longer, if anything: a workload of which none is more is no slower."""
        engine, soon = self.engine, ("batch", "group", "sample").index(self.scoring)
        more = (engine.workers, engine.slots, engine.drafting, self.reward_workers, self.lag_bound,
                self.chunks, soon)  # fmt: skip
        each = ((b.tokens.sum(), b.env_s.sum(), b.verdict_s.sum()) for b in self.batches)
        return (*map(sum, zip(*each, strict=True)), *map(self.mean_s, Stage), self.rest_s,
                self.switch_s, self.reference_s, self.sync.seconds, engine.token_s,
                engine.shared_token_s, *(-one for one in more))  # fmt: skip

    def mean_s(self, stage: Stage) -> float:
        """Mean seconds a step of one of the learner's stages."""
        series = self.serial_s.get(stage, ())
        return sum(series) / len(series) if series else 0.0


@dataclass(frozen=True)
class Constant:
    """A constant; `meaning` says its unit, `source` where it is from."""

    name: str
    low: float
    middle: float
    high: float
    meaning: str
    source: str

    def sentence(self) -> str:
        return f"{self.name} = {self.middle:g} ({self.low:g} to {self.high:g}): {self.meaning}"


def constants_in(tables: dict[str, Any]) -> dict[str, Constant]:
    return {name: Constant(name, **one) for name, one in tables.items() if isinstance(one, dict)}


@cache
def table() -> dict[str, Constant]:
    return constants_in(packaged_toml("analysis/data/whatif.toml"))


@dataclass
class Constants:
    """The middle of each constant of `table`, but for those in `moved`; `used` are those that were
    read: a prediction moves exactly these over their range, and names them."""

    moved: dict[str, float] = field(default_factory=dict)
    used: dict[str, None] = field(default_factory=dict)

    _known = staticmethod(table)

    def __getitem__(self, name: str) -> float:
        self.used[name] = None
        return self.moved.get(name, self._known()[name].middle)


def number_of(text: str) -> float:
    """NaN for what is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


PEAK_TFLOPS = {"A100": 312.0, "H100": 989.0, "H200": 989.0, "H800": 989.0, "H20": 148.0}
"""Dense bf16 peak by device name: the vendors' data sheets."""


def train_mfu(
    parameters: float, tokens: float, seconds: float, devices: float, peak_tflops: float
) -> float:
    """Part of the devices' peak that training on `tokens` tokens in `seconds` takes; of a mixture
    of experts the active parameters count. Attention is left out, so it is a lower bound."""
    flop = 6.0 * parameters * tokens  # forward 2, backward 4
    return flop / (seconds * devices * peak_tflops * 1e12)


MECHANISMS = ("naive", "bucketed", "relay", "delta", "direct")
"""Tensor by tensor; in buckets by NCCL; pipelined through relays; changes only; RDMA from shard to
sink. Published figures of one lie within a factor of a few, all over three orders of magnitude."""


def weight_bytes(parameters: float) -> float:
    """Bytes of one copy of the weights, in bf16; of a mixture of experts all parameters count."""
    return 2.0 * parameters


def transfer_s(mechanism: str, load: StepWorkload, constants: Constants) -> float:
    """Seconds of one update by another mechanism, however many receive it: it takes no more beside
    the transfer than the job's own do. To send changes the learner's devices compare all bytes."""
    sync, fixed_s = load.sync, min(constants["sync_latency_s"], load.sync.fixed_s)
    if mechanism != "delta":
        return fixed_s + sync.bytes / (1e9 * constants[f"{mechanism}_gb_per_s"])
    devices = load.devices.get("train", load.devices.get("shared", 8.0))  # a node's, if unsaid
    stated = sync.changed_share
    sent = sync.bytes * (constants["changed_share"] if math.isnan(stated) else stated)
    compared_s = sync.bytes / (1e9 * constants["compared_gb_per_s"] * max(1.0, devices))
    return fixed_s + compared_s + sent / (1e9 * constants["naive_gb_per_s"])


def packaged(name: str) -> dict[str, Any]:
    """One of the plan's data files, as its tables stand."""
    return packaged_toml(f"analysis/plan/data/{name}.toml")


def named(entries: list[dict[str, Any]], key: Callable[[str], str]) -> dict[str, dict[str, Any]]:
    """The entries of a data file by the keys of their name and of their other ones."""
    return {
        key(name): {what: value for what, value in entry.items() if what != "also"}
        for entry in entries
        for name in (entry["name"], *entry.get("also", ()))
    }


@cache
def plan_table() -> dict[str, Constant]:
    """Constants by name: those of the replay, and over them the plan's own."""
    return {**table(), **constants_in(packaged("constants"))}


class PlanConstants(Constants):
    _known = staticmethod(plan_table)
