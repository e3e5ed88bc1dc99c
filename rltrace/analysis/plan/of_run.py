"""A run as the measure of a plan: its lengths, tools, verdicts and batch, and how its stages
compare with what the same cost models say of its own devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.order_statistics import Floats, split_log_variance, variation
from rltrace.analysis.plan.constants import PlanConstants, packaged
from rltrace.analysis.plan.generation import rollout
from rltrace.analysis.plan.hardware import Gpu, gpu
from rltrace.analysis.plan.learner import learner
from rltrace.analysis.plan.reading import Tables
from rltrace.analysis.plan.spec import Spec
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.whatif.constants import Constants
from rltrace.analysis.whatif.of_run import workload_of
from rltrace.analysis.whatif.replay import replay
from rltrace.trace.errors import CANNOT_TELL, RltraceError
from rltrace.trace.vocabulary import Stage, word

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_ABOVE = 1.001
"""The longest response of a run is no cap: one just above it is taken."""


@dataclass(frozen=True)
class Measured:
    """What a run tells: lengths in tokens, groups and samples of a step, seconds of tools and of a
    verdict, seconds a step of generation and of the learner's stages, its placement and devices by
    pool; `reference_s` is a reference pass on the actors' side, seconds a step; `gpu` is None where
    it ran on none that is known."""

    mean_tokens: float
    longest_tokens: float
    variation: float
    within_share: float
    prompts: int
    group: int
    env_s: float
    reward_s: float
    judges: int
    rollout_s: float
    learner_s: Mapping[Stage, float]
    placement: str
    devices: Mapping[str, float]
    gpu: Gpu | None
    steps: int
    reference_s: float = 0.0


def measure(run: Run) -> Measured:
    """What the steps of a run tell. Errors: `RltraceError` where it has none, or no trajectory with
    a length."""
    analysis = RunAnalysis(run)
    load = workload_of(analysis)(Constants())
    tokens, verdicts, env = (
        np.concatenate([getattr(batch, what) for batch in load.batches])
        for what in ("tokens", "verdict_s", "env_s")
    )
    groups = np.concatenate(
        [np.asarray(batch.group) + 1_000_000 * i for i, batch in enumerate(load.batches)]
    )
    if not load.steps or float(tokens.max()) <= 1.5:
        raise RltraceError(
            "no lengths of responses were recorded: state them, and the run's stage seconds with "
            "`rltrace whatif`",
            CANNOT_TELL,
        )
    between, within = split_log_variance(tokens, groups)
    deviation, share = _deviation(tokens, between, within)
    per_step = len(load.batches[0].tokens) * load.engine.stands_for
    in_group = len(tokens) / len(np.unique(groups))
    return Measured(
        mean_tokens=float(tokens.mean()),
        longest_tokens=float(tokens.max()),
        variation=variation(deviation),
        within_share=share,
        prompts=max(1, round(per_step / in_group)),
        group=max(1, round(in_group)),
        env_s=float(env.mean()),
        reward_s=float(verdicts.mean()),
        judges=load.reward_workers,
        rollout_s=replay(load).stages_s.get(Stage.ROLLOUT, math.nan),
        learner_s={stage: load.mean_s(stage) for stage in load.serial_s},
        placement=load.placement,
        devices=dict(load.devices),
        gpu=_gpu(analysis.devices.name),
        steps=load.steps,
        reference_s=load.reference_s,
    )


def measured_tables(found: Measured) -> Tables:
    """The run's figures as the tables of a workload file, which flags then override."""
    tables: Tables = {
        "batch": {"prompts": found.prompts, "group": found.group},
        "lengths": {
            "mean_tokens": found.mean_tokens,
            "cap_tokens": _ABOVE * found.longest_tokens,
            "variation": found.variation,
        },
        "passes": {
            "reference": Stage.REFERENCE in found.learner_s or found.reference_s > 0,
            "logprob": Stage.LOGPROB in found.learner_s,
            "critic": Stage.VALUE in found.learner_s,
        },
    }
    if not math.isnan(found.within_share):
        tables["lengths"]["within_share"] = found.within_share
    if found.env_s > 0:
        tables["environment"] = {"latency_s": found.env_s, "calls": 1}
    if found.reward_s > 0:
        tables["reward"] = {"latency_s": found.reward_s, "workers": found.judges}
    if found.gpu is not None and found.devices:
        tables["gpus"] = {"kind": f"{round(sum(found.devices.values()))}x{found.gpu.name}"}
    return tables


def calibrated(spec: Spec, found: Measured) -> Spec:
    """The workload with the cost models scaled to what they said of the run's own devices and what
    these then took. Where those are no GPUs that are known, only its lengths and latencies count,
    which is said."""
    steps = f"{found.steps} measured step{'s' * (found.steps != 1)}"
    if found.gpu is None or not found.devices:
        note = f"lengths and latencies are those of {steps}; its devices are no known GPUs, so the "
        return replace(spec, assumed=(*spec.assumed, f"{note}pace of stages is not calibrated"))
    own = replace(
        spec, gpu=found.gpu, prompts=found.prompts, group=found.group,
        mean_tokens=found.mean_tokens, cap_tokens=_ABOVE * found.longest_tokens,
    )  # fmt: skip
    generating = found.devices.get("rollout", found.devices.get("shared", 1.0))
    training = found.devices.get("train", found.devices.get("shared", 1.0))
    constants = PlanConstants()
    made = rollout(own, max(1, round(generating)), constants)
    said = made.throughput_s if found.placement == "async" else made.barrier_s
    learns = learner(own, training, constants).serial_s
    took = {Stage.ROLLOUT: found.rollout_s, **found.learner_s}
    model = {Stage.ROLLOUT: said, **learns}
    scales = {
        word(stage): took[stage] / model[stage]
        for stage in (Stage.ROLLOUT, Stage.TRAIN, Stage.LOGPROB)
        if stage in model and took.get(stage, 0.0) > 0
    }
    says = ", ".join(f"{name} x {scale:.2f}" for name, scale in scales.items())
    note = f"calibrated with {steps} on {found.gpu.name}: {says} of what the cost models say"
    return replace(spec, calibrated=scales, assumed=(*spec.assumed, note))


def _deviation(tokens: Floats, between: float, within: float) -> tuple[float, float]:
    """Log-deviation of lengths, and the part of its square within groups (NaN: not known)."""
    if not (math.isnan(between) or math.isnan(within)) and between + within > 0:
        whole = between**2 + within**2
        return math.sqrt(whole), max(1e-6, within**2 / whole)
    logs = np.log(tokens[tokens > 0])
    return float(logs.std()), math.nan


def _gpu(name: str) -> Gpu | None:
    """The GPU of the table that a driver's name means; None: none is known."""
    said = name.lower().replace(" ", "")
    names = sorted((one["name"] for one in packaged("hardware")["gpu"]), key=len, reverse=True)
    same = (one for one in names if one.lower().split("-")[0] in said)
    return next(map(gpu, same), None)
