"""The walls that one stage or a few are: decoding, tools and verdicts, learner, weights.

Weight movement has two parts: bytes over a link, and a call for each piece that is sent. Where
pieces are single parameters the second is the larger one (hundreds of calls for megabytes each), so
the number of pieces of an update and what each takes are named.
"""

from __future__ import annotations

import math

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.spread import Spread, spread_of
from rltrace.analysis.walls.cost import stages_of
from rltrace.analysis.walls.long_tail import drain
from rltrace.analysis.walls.observability import stands_in
from rltrace.analysis.walls.replayed import beside_tools
from rltrace.analysis.walls.stage_wall import exposed_figures, stage_wall, that_count
from rltrace.analysis.walls.wall import (
    ENV_REWARD,
    LEARNER,
    ROLLOUT,
    WEIGHTS,
    Figure,
    Wall,
    figure,
    proportion,
)
from rltrace.analysis.whatif.constants import PEAK_TFLOPS, train_mfu
from rltrace.trace.given import held_devices
from rltrace.trace.vocabulary import Stage

# Names of evidence.
TOOLS = "tools of a sample, p95"
UPDATE, UPDATE_BYTES, IN_PHASE = "an update", "bytes of an update", "in phase "

_FULL = 0.9  # of the slots in use
_WORTH_A_WORD = 0.01  # of generation
_OF_TAIL = "the time in which a batch drains, which is the long tail's"
_NO_TAIL = "the trajectories' begin and end, without which the tail of a batch counts as decoding"
_TAIL = 2.0  # times the median


# --- rollout decode: tokens come as fast as engines decode them, and the step waits


def rollout(analysis: RunAnalysis) -> Wall:
    """The test; time in which a batch drains is the tail's."""
    stages = stages_of(ROLLOUT)
    (of_tail, _), missing = drain(analysis), []
    if math.isnan(of_tail):
        of_tail, missing = 0.0, [_NO_TAIL]
    token_s = _token_s(analysis)
    evidence = [*exposed_figures(analysis, stages), *_of_engines(analysis, token_s)]
    slots = analysis.tail.slots
    full = slots is not None and slots.used_share.mean >= _FULL
    symptom = "the learner waits while engines generate"
    if full:
        symptom = "engines are busy and full, the learner waits for samples"
    return stage_wall(
        analysis, ROLLOUT, symptom, stages, evidence, missing,
        part=1 - of_tail, but=_OF_TAIL if of_tail >= _WORTH_A_WORD else "",
        part_within=(1 - of_tail, 1.0) if beside_tools(analysis) else None,
    )  # fmt: skip


def _token_s(analysis: RunAnalysis) -> Spread:
    """Seconds a token of a sequence, from its first token on and without its tools."""
    return spread_of(
        analysis.run,
        "(end_ns - first_token_ns - greatest(env_ns, 0)) / 1e9 / (response_tokens - 1)",
        "raw_trajectories where start_ns > 0 and end_ns > first_token_ns and first_token_ns > 0 "
        "and response_tokens > 1",
    )


def _of_engines(analysis: RunAnalysis, token_s: Spread) -> list[Figure]:
    found = []
    slots, tokens = analysis.tail.slots, analysis.tail.response_tokens
    rollout_s = float(analysis.breakdown.tau_s[analysis.steady, Stage.ROLLOUT].sum())
    if tokens.n and rollout_s:
        rate = tokens.mean * tokens.n / rollout_s
        found.append(Figure("tokens while generating", rate, "tokens/s", tokens.n))
    if token_s.n:
        found.append(Figure("a token of a sequence, median", token_s.p50, "s", token_s.n))
    if slots is not None:
        found.append(figure("slots used", slots.used_share, "share"))
    return found


# --- env/reward latency: samples wait for their tools or their verdicts, and the step for them


def env_reward(analysis: RunAnalysis) -> Wall:
    stages = stages_of(ENV_REWARD)
    evidence = [*exposed_figures(analysis, stages), *_of_tools(analysis)]
    names = {Stage.ENV: "tools", Stage.REWARD: "verdicts"}
    rows = that_count([row for row in analysis.stages if row.stage in names])
    slow = " and ".join(names[stage] for stage in names if stage in {row.stage for row in rows})
    verdict_s = analysis.tail.verdict_s
    in_tail = slow == "verdicts" and verdict_s.n and verdict_s.p95 > _TAIL * verdict_s.p50
    how = "are slow in their tail" if in_tail else "take long"
    symptom = f"{slow or 'tools and verdicts'} {how}, actors and learner wait for them"
    return stage_wall(analysis, ENV_REWARD, symptom, stages, evidence)


def _of_tools(analysis: RunAnalysis) -> list[Figure]:
    found = []
    tail = analysis.tail
    if tail.verdict_s.n:
        found.append(Figure("verdict latency, p95", tail.verdict_s.p95, "s", tail.verdict_s.n))
    timed = "raw_trajectories where start_ns > 0 and env_ns > 0"
    tools_s = spread_of(analysis.run, "env_ns / 1e9", timed)
    if tools_s.n:
        found.append(Figure(TOOLS, tools_s.p95, "s", tools_s.n))
    judged = tail.verdict_s.n + tail.verdicts_untimed
    if judged:
        failed = proportion(tail.verdict_failures / judged, judged)
        found.append(failed.as_figure("verdicts that failed"))
    return [one for one in found if not math.isnan(one.value)]


# --- learner FLOPs + memory: everyone waits for updates and the passes beside them


def learner(analysis: RunAnalysis) -> Wall:
    """The test. A log-prob pass that only stands in for log-probs which generation lost is not the
    learner's fault: it is counted by `observability`."""
    lost = stands_in(analysis)
    stages = tuple(s for s in stages_of(LEARNER) if not (lost and s is Stage.LOGPROB))
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


# --- weight movement: new weights travel, engines sleep and wake, and the step waits for it


def weights(analysis: RunAnalysis) -> Wall:
    stages = stages_of(WEIGHTS)
    evidence = [*exposed_figures(analysis, stages), *_of_updates(analysis)]
    missing = ["bytes and pieces of an update: a hook on the weight update"]
    symptom = "a large part of each step gathers, converts, sends and loads weights"
    return stage_wall(
        analysis, WEIGHTS, symptom, stages, evidence, [] if analysis.syncs else missing
    )


def _of_updates(analysis: RunAnalysis) -> list[Figure]:
    moved = analysis.syncs
    if moved is None or not moved.updates:
        return []
    found = [figure(UPDATE, moved.update_s, "s")]
    if moved.bytes_per_update.n:
        found.append(figure(UPDATE_BYTES, moved.bytes_per_update, "bytes"))
        found.append(Figure("moved at", moved.gb_per_s, "GB/s", moved.bytes_per_update.n))
    found += [figure(f"{IN_PHASE}{name}", spent, "s an update") for name, spent in moved.phases]
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


# --- what the devices could do: training against their FLOP/s


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
    if analysis.devices.kind != "GPU":
        return math.nan
    name = analysis.devices.name.upper()
    return next((peak for device, peak in PEAK_TFLOPS.items() if device in name), math.nan)
