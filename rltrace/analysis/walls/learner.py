"""Walls on the learner's side: training, and weights on their way.

A log-prob pass that stands in for log-probs which generation lost is counted by `observability`.
An update of weights takes bytes over a link, and a call for each piece that is sent. Where pieces
are single parameters the calls take longer, so the evidence has their number and what each takes.
"""

from __future__ import annotations

import math

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import spread_of
from rltrace.analysis.walls.attribute import exposed_figures, stage_wall
from rltrace.analysis.walls.observability import stands_in
from rltrace.analysis.walls.wall import LEARNER, WEIGHTS, Figure, Wall, figure, register
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


# --- weight sync: the step waits while new weights travel and engines sleep

# Names of evidence.
UPDATE, UPDATE_BYTES, IN_PHASE = "an update", "bytes of an update", "in phase "
_SYNC_STAGES = (Stage.SYNC, Stage.SWITCH)


@register(WEIGHTS, *_SYNC_STAGES)
def weights(analysis: RunAnalysis) -> Wall:
    evidence = [*exposed_figures(analysis, _SYNC_STAGES), *_of_updates(analysis)]
    missing = ["bytes and pieces of an update: a hook on the weight update"]
    symptom = "a large part of each step gathers, converts, sends and loads weights"
    missing = [] if analysis.syncs else missing
    return stage_wall(analysis, WEIGHTS, symptom, _SYNC_STAGES, evidence, missing)


def _of_updates(analysis: RunAnalysis) -> list[Figure]:
    moved = analysis.syncs
    if moved is None or not moved.updates:
        return []
    found = [figure(UPDATE, moved.update_s, "s")]
    if moved.bytes_per_update.n:
        found.append(figure(UPDATE_BYTES, moved.bytes_per_update, "bytes"))
        found.append(Figure("moved at", moved.bytes_per_s, "bytes/s", moved.bytes_per_update.n))
    found += [figure(f"{IN_PHASE}{name}", spent, "s an update") for name, spent in moved.phases_s]
    pieces = spread_of(
        analysis.run,
        "n",
        "(select max(buckets) as n from raw_syncs where start_ns > 0 and buckets > 0 "
        "group by case when version >= 0 then version else -start_ns end)",
    )
    if pieces.n:
        found.append(figure("pieces (RPCs) of an update", pieces, ""))
        each_s = moved.update_s.mean / pieces.mean
        found.append(Figure("for each piece (RPC)", each_s, "s", pieces.n))
        if moved.bytes_per_update.n:
            size = moved.bytes_per_update.mean / pieces.mean
            found.append(Figure("bytes of a piece", size, "bytes", pieces.n))
    return [one for one in found if not math.isnan(one.value)]
