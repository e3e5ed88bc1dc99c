"""A run as the measure of a plan: its lengths, tools, verdicts and batch, and how its stages
compare with what the same cost models say of its own devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from rltrace.analysis.order_statistics import variation
from rltrace.analysis.plan.constants import PlanConstants
from rltrace.analysis.plan.generation import rollout
from rltrace.analysis.plan.hardware import Gpu, of_driver
from rltrace.analysis.plan.learner import learner
from rltrace.analysis.plan.reading import Tables
from rltrace.analysis.plan.spec import Spec
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.whatif.constants import Constants
from rltrace.analysis.whatif.of_run import workload_of
from rltrace.analysis.whatif.replay import replay
from rltrace.trace.errors import CANNOT_TELL, RltraceError
from rltrace.trace.vocabulary import Stage, word

_ABOVE = 1.001
"""The longest response of a run is no cap: one just above it is taken."""


@dataclass(frozen=True)
class Measured:
    """What a run tells: the tables of a workload file, seconds a step of generation and of the
    learner's stages, its placement and devices by pool; `gpu` is None where it ran on none that is
    known."""

    tables: Tables
    stages_s: Mapping[Stage, float]
    placement: str
    devices: Mapping[str, float]
    gpu: Gpu | None
    steps: int


def measure(analysis: RunAnalysis) -> Measured:
    """What the steps of a run tell. Errors: `RltraceError` where it has none, or no trajectory with
    a length."""
    load = workload_of(analysis)(Constants())
    tokens, verdicts, env = (
        np.concatenate([getattr(batch, what) for batch in load.batches])
        for what in ("tokens", "verdict_s", "env_s")
    )
    if not load.steps or float(tokens.max()) <= 1.5:
        raise RltraceError(
            "no lengths of responses were recorded: state them, and the run's stage seconds with "
            "`rltrace whatif`",
            CANNOT_TELL,
        )
    per_step = len(load.batches[0].tokens) * load.engine.stands_for
    in_group = len(tokens) / sum(len(set(batch.group)) for batch in load.batches)
    learns = {stage: load.mean_s(stage) for stage in load.serial_s}
    tables: Tables = {
        "batch": {
            "prompts": max(1, round(per_step / in_group)),
            "group": max(1, round(in_group)),
        },
        "lengths": {
            "mean_tokens": float(tokens.mean()),
            "cap_tokens": _ABOVE * float(tokens.max()),
            "variation": variation(float(np.log(tokens[tokens > 0]).std())),
        },
        "passes": {
            "reference": Stage.REFERENCE in learns or load.reference_s > 0,
            "logprob": Stage.LOGPROB in learns,
            "critic": Stage.VALUE in learns,
        },
    }
    if env.mean() > 0:
        tables["environment"] = {"latency_s": float(env.mean()), "calls": 1}
    if verdicts.mean() > 0:
        judges = load.reward_workers
        tables["reward"] = {"latency_s": float(verdicts.mean()), "workers": judges}
    gpu = of_driver(analysis.devices.name)
    if gpu is not None and load.devices:
        tables["gpus"] = {"kind": f"{round(sum(load.devices.values()))}x{gpu.name}"}
    return Measured(
        tables=tables,
        stages_s={Stage.ROLLOUT: replay(load).stages_s.get(Stage.ROLLOUT, math.nan), **learns},
        placement=load.placement,
        devices=dict(load.devices),
        gpu=gpu,
        steps=load.steps,
    )


def calibrated(spec: Spec, found: Measured) -> Spec:
    """The workload with the cost models scaled to what they said of the run's own devices and what
    these then took. Where those are no GPUs that are known, only its lengths and latencies count,
    which is said."""
    steps = f"{found.steps} measured step{'s' * (found.steps != 1)}"
    if found.gpu is None or not found.devices:
        note = f"lengths and latencies are those of {steps}; its devices are no known GPUs, so the "
        return replace(spec, assumed=(*spec.assumed, f"{note}pace of stages is not calibrated"))
    batch, lengths = found.tables["batch"], found.tables["lengths"]
    own = replace(spec, gpu=found.gpu, **batch, **lengths)
    generating = found.devices.get("rollout", found.devices.get("shared", 1.0))
    training = found.devices.get("train", found.devices.get("shared", 1.0))
    constants = PlanConstants()
    made = rollout(own, max(1, round(generating)), constants)
    said = {
        Stage.ROLLOUT: made.throughput_s if found.placement == "async" else made.barrier_s,
        **learner(own, training, constants).serial_s,
    }
    scales = {
        word(stage): found.stages_s[stage] / said[stage]
        for stage in (Stage.ROLLOUT, Stage.TRAIN, Stage.LOGPROB)
        if stage in said and found.stages_s.get(stage, 0.0) > 0
    }
    says = ", ".join(f"{name} × {scale:.2f}" for name, scale in scales.items())
    note = f"calibrated with {steps} on {found.gpu.name}: {says} of what the cost models say"
    return replace(spec, calibrated=scales, assumed=(*spec.assumed, note))
