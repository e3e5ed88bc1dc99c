"""The workload of a run: what its steps are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rltrace.analysis.figures.devices import CORE, GPU, is_laid_out
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.intervals import Floats
from rltrace.analysis.timeline.placement import stated_placement
from rltrace.analysis.timeline.stage_chains import Chain
from rltrace.analysis.timeline.stages import Breakdown
from rltrace.analysis.timeline.waits import Sends, sends_in, stopping
from rltrace.analysis.whatif import run_samples
from rltrace.analysis.whatif.predict import Source, is_off
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.workload import (
    AT_ONCE,
    GOES_ON,
    PLACEMENTS,
    Constants,
    StepWorkload,
    SyncModel,
)
from rltrace.trace.errors import CANNOT_TELL, RltraceError
from rltrace.trace.job_devices import held_devices
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Phase, Stage, word

_SQL = packaged_toml("analysis/data/queries.toml")
_NOT_WORK = (Stage.OTHER, Stage.STEP, Stage.WAIT)
_MOST_CHUNKS = 16
_TOLD = 0.5  # of the reward stage's time that verdicts of known length explain
_NOTHING = 1e-9  # of the step: what is rounded
_SLIGHT = 0.02  # of the step; weights that travel for less make no difference to generation
_STARVED = 0.1  # a learner that waits longer than this part of the step is not what binds
_MOST_SCALE = 2.0
_PLACES_UNTOLD = "whether a sample keeps its place at its worker while its tool works"
_STOPS_UNTOLD = (
    "whether generation stands still while weights are sent (`rltrace.weight_update(version, "
    'role="sink")` where they are taken would tell)'
)
_WORKER = "worker"  # a process that stands for a device
_MOSTLY = 0.8  # chains of which the shorter runs for so much of its time under the other overlap


def workload_of(analysis: RunAnalysis) -> Source:
    """The workload of the run under given constants. Where no trajectory was recorded it is stated
    by its stage seconds, and what they do not tell are constants. Errors: `RltraceError` where the
    run has no steps, no generation or no placement that is known."""
    run, steady = analysis.run, analysis.steady
    if not steady:
        raise RltraceError("no complete step was recorded: nothing can be replayed", CANNOT_TELL)
    if analysis.no_rollout:
        said = f"{analysis.no_rollout}, no rollout: there is nothing to predict"
        raise RltraceError(said, CANNOT_TELL)
    composition = analysis.composition
    if composition is None or composition.placement not in PLACEMENTS:
        why = composition.placement_source if composition else "no stage was seen in the steps"
        how = "state it (`rltrace import --placement`), or the stage seconds in a file for --stages"
        raise RltraceError(f"the placement is not known ({why}); {how}", CANNOT_TELL)
    if not analysis.breakdown.tau_s[steady, Stage.ROLLOUT].mean() > 0:
        raise RltraceError("no generation was seen: nothing can be replayed", CANNOT_TELL)
    placement = composition.placement
    samples = run_samples.samples_of(run, analysis.steps, placement)
    if samples is None:
        return _from_stages(analysis, placement)
    if _runs_ahead(analysis, placement, samples):
        placement = "async"
        samples = run_samples.samples_of(run, analysis.steps, placement) or samples
    made = _of_samples(analysis, placement, samples)
    return lambda constants: made


def _runs_ahead(analysis: RunAnalysis, placement: str, samples: run_samples.SteadySamples) -> bool:
    """Whether a job in which nobody tells a version trains on what was begun in earlier steps."""
    lags = [one.lag for one in analysis.staleness.by_first_token if one.lag is not None]
    told = stated_placement(analysis.run) or lags
    later = samples.steps_until_used(analysis.begins_s) > 0
    return placement == "disaggregated" and not told and bool(later.sum() > len(later) / 2)


def _from_stages(analysis: RunAnalysis, placement: str) -> Source:
    """A run whose log tells stage seconds only. Errors: `RltraceError` where nobody says who waits
    for whom, and its chains overlap in part."""
    from rltrace.analysis.walls.decode import tail_by_log
    from rltrace.analysis.whatif.stated_workload import stated

    steady = analysis.steady
    tau_s = analysis.breakdown.tau_s[steady].mean(axis=0)
    if placement == "disaggregated" and not stated_placement(analysis.run):
        share = analysis.composition.overlap_share if analysis.composition else 0.0
        if share < _MOSTLY:
            part = f"in part ({100 * share:.0f} % of the shorter)"
            why = "no trajectory tells who waits for whom: nothing can be replayed"
            raise RltraceError(f"generation and training overlap {part}, and {why}", CANNOT_TELL)
        placement = "one-step-off"
    if placement == "one-step-off":  # what a chain hides of an update holds nobody up
        tau_s[Stage.SYNC] = analysis.breakdown.exposed_s[steady, Stage.SYNC].mean()
    stages = {word(s): float(tau_s[s]) for s in Stage if s not in _NOT_WORK and tau_s[s] > 0}
    more = _common(analysis)
    tables: dict[str, Any] = {"placement": placement, "step_s": more["measured_step_s"]}
    tables |= {"stages": stages, "devices": more.pop("devices")}
    if told := tail_by_log(analysis):
        lengths = ("mean_tokens", "response_tokens"), ("cap_tokens", "longest_tokens")
        of = {key: analysis.logged[name].mean for key, name in lengths if name in analysis.logged}
        tables["rollout"] = {**of, "tail_s": told[1]}
    source = stated(tables, "the run").workload
    idle_s = float(analysis.breakdown.untraced_s[steady].mean())

    def made(constants: Constants) -> StepWorkload:
        load = replace(source(constants), **more)
        if placement != "one-step-off":
            return load
        # Stage seconds of chains that overlap need not add up to the steps.
        unexplained_s = max(0.0, load.rest_s - idle_s)
        error = math.log((replay(load).step_s - unexplained_s) / load.measured_step_s)
        off = replace(load, model_error=error)
        return off if is_off(off) else load

    return made


def _common(analysis: RunAnalysis) -> dict[str, Any]:
    """What does not depend on trajectories."""
    steps_s, found, deviation, useful = analysis.steps_s, analysis.goodput, math.nan, math.nan
    if len(steps_s) > 1:
        deviation = float(steps_s.std(ddof=1) / steps_s.mean())
    if found and found.steps and found.trained.useful_tokens:
        useful = found.trained.useful_tokens / found.steps
    devices, kind = _devices(analysis)
    return {
        "measured_step_s": float(steps_s.mean()),
        "steps": len(steps_s),
        "devices": devices,
        "step_deviation": deviation,
        "device_kind": kind,
        **(_cores(analysis, devices) if kind == _WORKER else {}),
        "useful_tokens": useful,
        "usd_per_device_hour": found.price.usd_per_hour if found and found.price else math.nan,
    }


def _cores(analysis: RunAnalysis, devices: Mapping[str, float]) -> dict[str, float]:
    """How many there are, and on how many of them a process computes while it works."""
    first, last = (analysis.steps.windows[analysis.steady[i]] for i in (0, -1))
    told = {"since": first.start_ns, "until": last.end_ns}
    busy = analysis.run.ask(_SQL["busy_cores"].format(**told))[0][0]
    works_s = 0.0
    for pool, chain in ("rollout", Chain.ACTORS), ("train", Chain.LEARNER):
        seconds = float(analysis.breakdown.chains_s(chain)[analysis.steady].mean())
        works_s += seconds * devices.get(pool, devices.get("shared", 0.0))
    found = {"cores": float(analysis.devices.count or math.inf)}
    return found | ({"busy_cores": busy * analysis.step_s / works_s} if busy and works_s else {})


def _devices(analysis: RunAnalysis) -> tuple[dict[str, float], str]:
    """Devices by pool, and what they are. Without GPUs each process counts as one device; a log
    tells neither."""
    if is_laid_out(analysis.run):
        return {}, GPU
    rows = analysis.run.ask(
        "select process, stage from span_stages union "
        f"select process, {int(Stage.ROLLOUT)} from event_rows where of_table = 'trajectories'"
    )
    given, kind = held_devices(analysis.run.processes, seen=False), analysis.devices.kind
    workers = [{n for n, stage in rows if stage == one} for one in (Stage.ROLLOUT, Stage.TRAIN)]
    held = [{device for n in own for device in given.get(n, ())} for own in workers]
    if held[0] and held[1]:
        (rollout, train), kind = held, GPU
        shared = bool(rollout & train)
    elif kind == CORE and all(workers):
        (rollout, train), kind = workers, _WORKER
        shared = rollout <= train or train <= rollout  # nobody works for one of them only
    else:
        return {}, kind
    pools = {"shared": rollout | train} if shared else {"rollout": rollout, "train": train}
    return {pool: float(len(devices)) for pool, devices in pools.items()}, kind


# --- the workload of a run's samples, made to take as long as its steps did


def _of_samples(
    analysis: RunAnalysis, placement: str, samples: run_samples.SteadySamples
) -> StepWorkload:
    run, steady, breakdown = analysis.run, analysis.steady, analysis.breakdown
    sync = _sync(analysis, placement)
    since_ns = analysis.steps.windows[steady[0]].start_ns
    runs_ahead = placement == "async" and sync.seconds >= _SLIGHT * analysis.step_s
    sends = sends_in(run) if runs_ahead else None
    stops, *others = stopping(run, sends) if sends else (GOES_ON,)
    sequences: run_samples.Sequences = samples
    if stops == AT_ONCE and sends is not None:  # what is generated then is generated in no time
        begin_s, end_s = (_without(sends, since_ns, s) for s in (samples.begin_s, samples.end_s))
        sequences = replace(sequences, begin_s=begin_s, end_s=end_s)
    engine, notes, sure = run_samples.fit_engine(sequences, stream=placement == "async")
    batches, thin = run_samples.batches_of(samples, len(steady), placement)
    at_once, one_s, in_turn = run_samples.judges_of(run, samples, since_ns)
    judges = max(1, round(at_once / thin))
    slower = judges * thin / at_once  # so many fewer judges and verdicts, and the same rate
    verdicts_s = [np.minimum(batch.verdict_s, one_s) * slower for batch in batches]
    tau_s = breakdown.tau_s[steady]
    reward_s = float(tau_s[:, Stage.REWARD].mean())
    told_s = float(np.mean([one.sum() for one in verdicts_s])) / judges
    if told_s < _TOLD * reward_s:  # a stage around verdicts that have no length of their own
        judges, verdicts_s = 1, [np.full(len(v), reward_s / len(v)) for v in verdicts_s]
    tools_s = 0.0
    if not runs_ahead and not samples.env_s.any():  # tools of no sample: all of them wait for these
        tools_s = float(breakdown.exposed_s[steady, Stage.ENV].mean())
    batches = tuple(
        replace(batch, verdict_s=its_s, env_s=batch.env_s + tools_s)
        for batch, its_s in zip(batches, verdicts_s, strict=True)
    )
    bounds = _stated_bounds(run)
    engine = replace(
        engine,
        slots=engine.slots / thin,
        # What keeps to a stated bound on the lag was held up by that.
        seen_at_once=math.inf if bounds else engine.seen_at_once / thin,
        shared_token_s=engine.shared_token_s * thin,
        stands_for=thin,
    )
    side_of = breakdown.side_of
    learner = [s for s, c in side_of.items() if c is Chain.LEARNER and s not in _NOT_WORK]
    on_actors = [s for s in (Stage.REFERENCE, Stage.LOGPROB) if side_of.get(s) is Chain.ACTORS]
    in_batches = placement == "async" and samples.in_batches()
    if side_of[Stage.EVAL] is Chain.ACTORS:  # while it evaluates, an engine generates nothing else
        eval_s = float(breakdown.runs_s((Stage.EVAL,), (Stage.ROLLOUT,))[steady].sum())
        evaluates = eval_s / float(tau_s[:, Stage.ROLLOUT].sum())
        engine = replace(engine.paced(1 + evaluates), evaluates=evaluates)
    # A learner may refer only what it trains on; on the actors' side all that is generated is.
    of_stage = f"raw_spans where stage = {int(Stage.REFERENCE)}"
    referred = run.ask(f"select sum(items) from {of_stage} and items > 0")[0][0]
    generated = len(samples.begin_s) / len(steady) * len(analysis.steps.windows)
    made = StepWorkload(
        placement=placement, batches=batches, engine=engine,
        referred_share=min(1.0, (referred or math.inf) / generated),
        serial_s={s: tuple(tau_s[:, s].tolist()) for s in learner if tau_s[:, s].any()},
        switch_s=float(breakdown.exposed_s[steady, Stage.SWITCH].mean()),
        reference_s=float(tau_s[:, on_actors].sum(axis=1).mean()),
        reward_workers=judges, judged_in_turn=in_turn,
        scoring=run_samples.scoring_of(samples, placement, in_batches),
        spread=samples.spread, in_batches=in_batches, weights_stop=stops, sync=sync,
        chunks=_chunks(breakdown, steady, placement),
        lag_bound=_lag_bound(analysis, placement, samples, bounds), bound_stated=bool(bounds),
        drops_stale=_drops_stale(analysis, placement), rests_on=notes,
        untold=_STOPS_UNTOLD if others else "" if sure else _PLACES_UNTOLD,
        **_common(analysis),
    )  # fmt: skip
    return _paced(made, analysis)


def _paced(made: StepWorkload, analysis: RunAnalysis) -> StepWorkload:
    """Decoding is scaled to the measured generation, where that begins and ends; the rest stays."""
    steady, breakdown, runs_ahead = analysis.steady, analysis.breakdown, made.placement == "async"
    played, measured_s = replay(made), made.measured_step_s
    idle_s = float(breakdown.untraced_s[steady].mean())
    error = math.log((played.step_s + (not runs_ahead) * idle_s) / measured_s)
    rollout_s = float(breakdown.tau_s[steady, Stage.ROLLOUT].mean())
    replayed_s = played.stages_s.get(Stage.ROLLOUT, 0.0)
    scale = rollout_s / replayed_s if replayed_s else 1.0
    if runs_ahead:
        scale = measured_s / played.step_s
    scale = min(max(scale, 1 / _MOST_SCALE), _MOST_SCALE)
    faster = replace(made, engine=made.engine.paced(scale))
    starved = runs_ahead and played.learner_waits_s > _STARVED * played.step_s
    # Verdicts or the lag bound may hold the samples up, and not decoding.
    left = abs(math.log(replay(faster).step_s / measured_s)) if starved else math.inf
    if not runs_ahead or left < abs(error) / 2:
        made = faster
    rest_s = measured_s - replay(made).step_s
    rest_s *= rest_s > _NOTHING * measured_s
    if starved:  # its learner has time to spare: more of its own would explain nothing
        rest_s = min(rest_s, idle_s)
    return replace(made, rest_s=rest_s, model_error=error)


def _without(sends: Sends, origin_ns: int, moment_s: Floats) -> Floats:
    """Seconds since the same origin on a clock that stands still while weights are sent."""
    moment_ns = (1e9 * moment_s).astype(np.int64) + origin_ns
    return moment_s - (sends.until(moment_ns) - sends.until(np.array([origin_ns]))) / 1e9


def _chunks(breakdown: Breakdown, steady: list[int], placement: str) -> int:
    """Parts in which the learner took a batch: all but the last may run beside the actors."""
    learner_s = float(breakdown.chains_s(Chain.LEARNER)[steady].sum())
    if placement != "disaggregated" or not learner_s:
        return 1
    both_s = breakdown.chains_s(Chain.ACTORS, Chain.LEARNER)[steady]
    return max(1, min(_MOST_CHUNKS, round(1 / max(1e-9, 1 - float(both_s.sum()) / learner_s))))


def _sync(analysis: RunAnalysis, placement: str) -> SyncModel:
    steady = analysis.steady
    tau_s = float(analysis.breakdown.tau_s[steady, Stage.SYNC].mean())
    exposed_s = float(analysis.breakdown.exposed_s[steady, Stage.SYNC].mean())
    found = analysis.syncs
    bytes = found.bytes_per_update.mean if found else math.nan
    transfer = dict(found.phases_s).get(word(Phase.TRANSFER)) if found else None
    fixed_s = max(0.0, found.update_s.mean - transfer.mean) if found and transfer else math.inf
    if placement == "async":
        # What the learner does not work through it stands still for, or nobody asks for it then.
        both_s = analysis.breakdown.chains_s(Chain.WEIGHTS, Chain.LEARNER)[steady]
        overlap = min(1.0, float(both_s.mean()) / tau_s) if tau_s else 0.0
    else:
        by_role = {p.role: p.update_s.mean for p in found.participants} if found else {}
        sent, taken = by_role.get("source", 0.0), by_role.get("sink", 0.0)
        overlap = taken / (sent + taken) if sent + taken > 0 else 0.0
    return SyncModel(exposed_s if placement == "one-step-off" else tau_s, overlap, bytes, fixed_s)


# --- how old samples may become in a run, and what is done with those that are older


def _lag_bound(
    analysis: RunAnalysis, placement: str, samples: run_samples.SteadySamples, stated: list[float]
) -> float:
    """In versions, at least 1: as stated, or the largest that came, or steps from begin to use."""
    bounds = [1.0, float(analysis.staleness.largest_lag)]
    if placement == "async":
        bounds += stated
        if not analysis.staleness.known_trajectories:
            bounds.append(float(samples.steps_until_used(analysis.begins_s).max(initial=0)))
    return max(bounds)


def _stated_bounds(run: OpenedRun) -> list[float]:
    settings = [process.facts.get("settings") for process in run.processes]
    found = [one.get("max_lag") for one in settings if isinstance(one, dict)]
    return [float(x) for x in found if isinstance(x, int | float) and math.isfinite(x)]


def _drops_stale(analysis: RunAnalysis, placement: str) -> bool | None:
    """Whether samples older than the bound are dropped: as stated, or as some were."""
    facts = (process.facts.get("drops_stale") for process in analysis.run.processes)
    if stated := [one for one in facts if isinstance(one, bool)]:
        return stated[0]
    if analysis.goodput is not None and any(x.reason == "stale" for x in analysis.goodput.losses):
        return True
    return False if placement == "async" else None
