"""Training: everyone waits for updates and the passes beside them.

A log-prob pass that stands in for log-probs which generation lost is counted by `observability`.
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
        share, n = max(used)
        evidence.append(Figure("GPU memory used, the fullest", share, "share", n))
    else:
        missing.append("memory pressure needs GPU samples (NVML on the learner's node)")
    symptom = "everyone waits for the learner and the passes beside it"
    return stage_wall(analysis, LEARNER, symptom, stages, evidence, missing)


def _learner_mfu(analysis: RunAnalysis) -> tuple[float, str]:
    """`(part of the learner's peak that training takes, "")`, or NaN and what is missing."""
    name = analysis.devices.name.upper() if analysis.devices.kind == "GPU" else ""
    peak = next((peak for device, peak in PEAK_TFLOPS.items() if device in name), None)
    if peak is None:
        return math.nan, "a GPU whose peak is known"
    stated = [process.facts.get("parameters") for process in analysis.run.processes]
    parameters = [float(n) for n in stated if isinstance(n, int | float) and n > 0]
    if not parameters:
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
    return train_mfu(max(parameters), found.trained.tokens, train_s, len(devices), peak), ""
