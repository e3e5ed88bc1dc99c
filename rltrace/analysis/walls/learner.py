"""Training: everyone waits for updates and the passes beside them.

A log-prob pass that only stands in for log-probs which generation lost is not the learner's fault:
`observability` counts it.
"""

from __future__ import annotations

import math

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.walls.observability import stands_in
from rltrace.analysis.walls.stage_wall import exposed_figures, stage_wall
from rltrace.analysis.walls.wall import LEARNER, Figure, Wall, register
from rltrace.analysis.whatif.workload import PEAK_TFLOPS, train_mfu
from rltrace.trace.job_devices import held_devices
from rltrace.trace.vocabulary import Stage

_STAGES = (Stage.REFERENCE, Stage.LOGPROB, Stage.VALUE, Stage.TRAIN)


@register(LEARNER, *_STAGES)
def learner(analysis: RunAnalysis) -> Wall:
    lost = stands_in(analysis)
    stages = tuple(s for s in _STAGES if not (lost and s is Stage.LOGPROB))
    evidence, missing = exposed_figures(analysis, stages), []
    mfu, why = _learner_mfu(analysis)
    if math.isnan(mfu):
        missing.append(f"the learner's MFU needs {why}")
    else:
        evidence.append(Figure("MFU of training", mfu, "share", len(analysis.steady)))
    used = [(one.most_memory_bytes / one.memory_bytes, one.samples)
            for one in analysis.gpus if one.memory_bytes > 0 <= one.most_memory_bytes]  # fmt: skip
    if used:
        evidence.append(Figure("GPU memory used, the fullest", max(used)[0], "share", max(used)[1]))
    else:
        missing.append("memory pressure needs GPU samples (NVML on the learner's node)")
    symptom = "everyone waits for the learner and the passes beside it"
    return stage_wall(analysis, LEARNER, symptom, stages, evidence, missing)


def _learner_mfu(analysis: RunAnalysis) -> tuple[float, str]:
    """`(part of the learner's peak that training takes, "")`, or NaN and what is missing."""
    peak, parameters = _peak(analysis), _parameters(analysis)
    if math.isnan(peak):
        return math.nan, "a GPU whose peak is known"
    if math.isnan(parameters):
        return math.nan, "the number of parameters"
    found = analysis.goodput
    train_s = float(analysis.breakdown.tau_s[analysis.steady, Stage.TRAIN].sum())
    if found is None or not found.trained.tokens or not train_s:
        return math.nan, "the tokens that were trained on"
    rows = analysis.run.ask(f"select process from span_stages where stage = {int(Stage.TRAIN)}")
    held = held_devices(analysis.run.processes)
    devices = {device for (process,) in rows for device in held.get(process, ())}
    if not devices:
        return math.nan, "the devices of the learner"
    return train_mfu(parameters, found.trained.tokens, train_s, len(devices), peak), ""


def _parameters(analysis: RunAnalysis) -> float:
    """Parameters of the policy as its processes state them; NaN: unknown."""
    stated = [process.facts.get("parameters") for process in analysis.run.processes]
    known = [float(n) for n in stated if isinstance(n, int | float) and n > 0]
    return max(known, default=math.nan)


def _peak(analysis: RunAnalysis) -> float:
    """TFLOP/s of its GPU; NaN: unknown."""
    name = analysis.devices.name.upper() if analysis.devices.kind == "GPU" else ""
    return next((peak for device, peak in PEAK_TFLOPS.items() if device in name), math.nan)
