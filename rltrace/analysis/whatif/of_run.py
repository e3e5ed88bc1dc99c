"""The workload of a run: what its steps are made of, from the trace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rltrace.analysis.chains import Chain
from rltrace.analysis.composition import stated_placement
from rltrace.analysis.cut_short import whole_steps
from rltrace.analysis.devices import AGENT, count_devices
from rltrace.analysis.intervals import Ints
from rltrace.analysis.order_statistics import Floats
from rltrace.analysis.stages import Breakdown
from rltrace.analysis.stopped import Sends
from rltrace.analysis.whatif.constants import Constants
from rltrace.analysis.whatif.engine_fit import Sequences, fit_engine
from rltrace.analysis.whatif.fitting import fitted
from rltrace.analysis.whatif.other_work import one_more
from rltrace.analysis.whatif.parts import Parts, mean_step_s, parts_of, starts_s
from rltrace.analysis.whatif.predict import Source
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.run_samples import (
    Samples,
    batches_of,
    judged_at_once,
    samples_of,
    scoring_of,
)
from rltrace.analysis.whatif.stated import stated
from rltrace.analysis.whatif.stopping import sends_in, stopping
from rltrace.analysis.whatif.trust import is_off
from rltrace.analysis.whatif.turns import turns_of
from rltrace.analysis.whatif.workload import (
    AT_ONCE,
    GOES_ON,
    PLACEMENTS,
    Batch,
    Engine,
    Sync,
    Workload,
)
from rltrace.trace.errors import CANNOT_TELL, RltraceError
from rltrace.trace.sampled import only_some
from rltrace.trace.vocabulary import Phase, Stage, word

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_MOST_CHUNKS = 16
_TOLD = 0.5  # of the reward stage's time that verdicts of known length explain
_WORKER = "worker"  # a process that stands for a device
_SLIGHT = 0.02  # of the step; weights that travel for less make no difference to generation
_MOSTLY = 0.8  # chains of which the shorter runs for so much of its time under the other overlap
_NOT_WORK = (Stage.OTHER, Stage.STEP, Stage.WAIT)


def workload_of(run: Run, parts: Parts | None = None) -> Source:
    """The workload of `run` under given constants. Where no trajectory was recorded it is stated by
    its stage seconds, and what they do not tell are constants.

    Errors: `RltraceError` where the run has no steps, no generation, not all samples or no
    placement that is known.
    """
    run = whole_steps(run)
    if some := only_some(run.meta):
        raise RltraceError(f"{some}: nothing can be replayed", CANNOT_TELL)
    parts = parts or parts_of(run)
    steady = list(parts.steps.steady)
    if parts.steps.whole_run or not steady:
        raise RltraceError("no complete step was recorded: nothing can be replayed", CANNOT_TELL)
    composition = parts.composition
    if composition is None or composition.placement not in PLACEMENTS:
        why = composition.placement_source if composition else "no stage was seen in the steps"
        raise RltraceError(
            f"the placement is not known ({why}); state it with the stage seconds in a file for "
            "--stages",
            CANNOT_TELL,
        )
    tau_s = parts.breakdown.tau_s[steady].mean(axis=0)
    if not tau_s[Stage.ROLLOUT] > 0:
        raise RltraceError("no generation was seen: nothing can be replayed", CANNOT_TELL)
    samples = samples_of(run, parts.steps, composition.placement)
    if samples is None:
        return _from_stages(run, parts, composition.placement)
    placement = composition.placement
    if _runs_ahead(run, parts, placement, samples):
        placement = "async"
        samples = samples_of(run, parts.steps, placement) or samples
    made = _measured(run, parts, placement, samples)
    return lambda constants: made


def _runs_ahead(run: Run, parts: Parts, placement: str, samples: Samples) -> bool:
    """Whether a job that is taken to be on policy, as nobody tells a version, trains on what was
    begun in earlier steps."""
    told = stated_placement(run) or any(b.lag is not None for b in parts.staleness.by_first_token)
    return placement == "disaggregated" and not told and samples.used_later(starts_s(parts))


def _from_stages(run: Run, parts: Parts, placement: str) -> Source:
    """A run whose log tells stage seconds only.

    Errors: `RltraceError` where nobody says who waits for whom, and its chains overlap in part."""
    steady = list(parts.steps.steady)
    tau_s = parts.breakdown.tau_s[steady].mean(axis=0)
    if placement == "disaggregated" and not stated_placement(run):
        placement = _overlapping(parts)
    if placement == "one-step-off":  # what a chain hides of an update holds nobody up
        tau_s[Stage.SYNC] = parts.breakdown.exposed_s[steady, Stage.SYNC].mean()
    seconds = {word(s): float(tau_s[s]) for s in Stage if s not in _NOT_WORK and tau_s[s] > 0}
    more = _common(run, parts)
    tables = {
        "placement": placement,
        "step_s": float(parts.breakdown.steps_s[steady].mean()),
        "stages": seconds,
        "devices": more["devices"],
    }
    source = stated(tables, "the run").workload
    idle_s = float(parts.breakdown.unattributed_s[steady].mean())

    def made(constants: Constants) -> Workload:
        load = replace(source(constants), **more)
        return _held_against_its_steps(load, idle_s) if placement == "one-step-off" else load

    return made


def _overlapping(parts: Parts) -> str:
    """The placement of a run whose chains overlap, of whose samples and versions nobody tells."""
    composition = parts.composition
    share = composition.overlap_share if composition else 0.0
    if share >= _MOSTLY:
        return "one-step-off"
    raise RltraceError(
        f"generation and training overlap in part ({100 * share:.0f} % of the shorter), and no "
        "trajectory tells who waits for whom: nothing can be replayed",
        CANNOT_TELL,
    )


def _held_against_its_steps(load: Workload, idle_s: float) -> Workload:
    """The workload with the error of its replay where that is off: stage seconds of chains that
    overlap need not add up to the steps."""
    unexplained_s = max(0.0, load.rest_s - idle_s)
    error = math.log((replay(load).step_s - unexplained_s) / load.measured_step_s)
    off = replace(load, model_error=error)
    return off if is_off(off) else load


def _common(run: Run, parts: Parts) -> dict[str, Any]:
    """What does not depend on trajectories."""
    steps_s = parts.breakdown.steps_s[list(parts.steps.steady)]
    found = parts.goodput
    devices, kind = _devices(run)
    n = len(steps_s)
    shares_cores = kind == _WORKER and 0 < count_devices(run).count <= sum(devices.values())
    return {
        "measured_step_s": float(steps_s.mean()),
        "steps": n,
        "devices": devices,
        "step_deviation": float(steps_s.std(ddof=1) / steps_s.mean()) if n > 1 else math.nan,
        "device_kind": kind,
        "shares_cores": shares_cores,
        "one_more": one_more(run, parts) if shares_cores else 1.0,
        "useful_tokens": found.trained.useful_tokens / found.steps
        if found and found.steps and found.trained.useful_tokens
        else math.nan,
        "usd_per_device_hour": found.price.usd_per_hour if found and found.price else math.nan,
    }


def _measured(run: Run, parts: Parts, placement: str, samples: Samples) -> Workload:
    """The workload of samples; another one `instead` where nobody tells whether generation stood
    still while weights travelled."""
    sends = sends_in(run) if placement == "async" else None
    if sends is None or _sync(parts, placement).seconds < _SLIGHT * mean_step_s(parts):
        return _played(run, parts, placement, samples, GOES_ON, None)
    loads = [_played(run, parts, placement, samples, how, sends) for how in stopping(run, sends)]
    return replace(loads[0], instead=loads[1]) if len(loads) > 1 else loads[0]


def _played(
    run: Run, parts: Parts, placement: str, samples: Samples, stops: str, sends: Sends | None
) -> Workload:
    """The workload if generation does this while weights are sent."""
    steady = list(parts.steps.steady)
    breakdown = parts.breakdown
    decoded = samples.tokens - samples.first  # the first token ends the prefill
    start_s, end_s = samples.start_s, samples.end_s
    if stops == AT_ONCE and sends is not None:  # what is generated then is generated in no time
        origin = parts.steps.windows[steady[0]].start_ns
        start_s, end_s = (_without(sends, origin, moment_s) for moment_s in (start_s, end_s))
    sequences = Sequences(samples.worker, samples.batch, start_s, end_s, decoded, samples.env_s)
    engine, notes = fit_engine(sequences, stream=placement == "async")
    engine, notes = _of_turns(run, parts, samples, engine, notes)
    batches, thin = batches_of(samples, len(steady), placement)
    at_once = judged_at_once(samples)
    judges = max(1, round(at_once / thin))
    slower = judges * thin / at_once  # so many fewer judges and verdicts, and the same rate
    batches = tuple(replace(batch, verdict_s=batch.verdict_s * slower) for batch in batches)
    reward_s = float(breakdown.tau_s[steady, Stage.REWARD].mean())
    told_s = float(np.mean([batch.verdict_s.sum() for batch in batches])) / judges
    if told_s < _TOLD * reward_s:  # a stage around verdicts that have no length of their own
        judges = 1
        batches = tuple(_judged_in(batch, reward_s) for batch in batches)
    engine = replace(
        engine,
        slots=engine.slots / thin,
        # What keeps to a stated bound on the lag was held up by that.
        seen_at_once=engine.seen_at_once / thin if not stated_bounds(run) else math.inf,
        shared_token_s=engine.shared_token_s * thin,
        stands_for=thin,
    )
    tau_s = breakdown.tau_s[steady]
    chain_of = breakdown.chain_of
    learner = [s for s, c in chain_of.items() if c is Chain.LEARNER and s not in _NOT_WORK]
    serial = {s: tuple(tau_s[:, s].tolist()) for s in learner if tau_s[:, s].any()}
    on_actors = [s for s in (Stage.REFERENCE, Stage.LOGPROB) if chain_of.get(s) is Chain.ACTORS]
    waiting = _steps_with_samples_waiting(samples, parts)
    in_batches = placement == "async" and not waiting.size and samples.in_batches()
    made = Workload(
        placement=placement,
        batches=batches,
        engine=engine,
        serial_s=serial,
        rest_s=_standing_s(parts, waiting) if placement == "async" else 0.0,
        switch_s=float(breakdown.exposed_s[steady, Stage.SWITCH].mean()),
        reference_s=float(tau_s[:, on_actors].sum(axis=1).mean()) if on_actors else 0.0,
        reward_workers=judges,
        scoring=scoring_of(samples, placement, in_batches),
        spread=samples.spread,
        in_batches=in_batches,
        weights_stop=stops,
        chunks=_chunks(breakdown, steady, placement),
        sync=_sync(parts, placement),
        lag_bound=lag_bound(run, parts, placement, samples),
        bound_stated=bool(stated_bounds(run)),
        drops_stale=drops_stale(run, parts, placement),
        failed_share=float(samples.failed.mean()),
        rests_on=notes,
        **_common(run, parts),
    )
    if not engine.turn_tokens or engine.tools_hold:
        return fitted(made, parts)
    first = replace(made, engine=replace(engine, returns_first=True))
    return min(
        (fitted(one, parts) for one in (made, first)), key=lambda load: abs(load.model_error)
    )


def _of_turns(
    run: Run, parts: Parts, samples: Samples, engine: Engine, notes: tuple[str, ...]
) -> tuple[Engine, tuple[str, ...]]:
    """The engine, as the turns of its samples tell it where they wait within their own time."""
    if not samples.env_s.any():
        return engine, notes
    steady = [parts.steps.windows[i] for i in parts.steps.steady]
    turns = turns_of(run, steady[0].start_ns, steady[-1].end_ns)
    if turns is None:
        return engine, notes
    kept = (
        "keep their places while their tools work" if turns.tools_hold else "leave them to others"
    )
    note = f"a worker runs {turns.places:g} turns at once; samples wait for one, and {kept}"
    return replace(
        engine, token_s=turns.token_s, shared_token_s=0.0, slots=turns.places,
        tools_hold=turns.tools_hold, turn_tokens=turns.tokens, sure=turns.sure,
    ), (note,)  # fmt: skip


def _without(sends: Sends, origin_ns: int, moment_s: Floats) -> Floats:
    """Seconds since the same origin on a clock that stands still while weights are sent."""
    moment_ns = (1e9 * moment_s).astype(np.int64) + origin_ns
    sent = sends.until(moment_ns) - sends.until(np.array([origin_ns]))
    return moment_s - sent / 1e9


def _steps_with_samples_waiting(samples: Samples, parts: Parts) -> Ints:
    """The steady steps whose samples were all judged before the step before began, by their place
    among the steady ones; none where most steps are not so."""
    begun_s = starts_s(parts)
    waiting = np.flatnonzero(samples.last_ready_s(begun_s)[1:] <= begun_s[:-1]) + 1
    return waiting if len(waiting) >= len(begun_s) / 2 else waiting[:0]


def _standing_s(parts: Parts, waiting: Ints) -> float:
    """Seconds a step for which the learner of a job that runs ahead stood still though its samples
    were there, as in these steps: what hands them over to it."""
    if not waiting.size:
        return 0.0
    breakdown, steady = parts.breakdown, list(parts.steps.steady)
    works_s = breakdown.chain_s[steady, Chain.LEARNER] + breakdown.tau_s[steady, Stage.SYNC]
    stands_s = breakdown.steps_s[steady] - works_s + breakdown.learner_beside_weights_s[steady]
    return max(0.0, float(stands_s[waiting].mean()))


def _judged_in(batch: Batch, seconds: float) -> Batch:
    """The batch, judged one sample after the other in so many seconds."""
    each_s = np.full(len(batch.tokens), seconds / len(batch.tokens))
    return replace(batch, verdict_s=each_s)


def _chunks(breakdown: Breakdown, steady: list[int], placement: str) -> int:
    """In how many parts the learner took a batch, from how much of its chain ran under the actors':
    with n parts all but the last may."""
    learner_s = float(breakdown.chain_s[steady, Chain.LEARNER].sum())
    if placement != "disaggregated" or not learner_s:
        return 1
    under = float(breakdown.overlap_s[steady].sum()) / learner_s
    return max(1, min(_MOST_CHUNKS, round(1 / max(1e-9, 1 - under))))


def _sync(parts: Parts, placement: str) -> Sync:
    steady = list(parts.steps.steady)
    tau_s = float(parts.breakdown.tau_s[steady, Stage.SYNC].mean())
    exposed_s = float(parts.breakdown.exposed_s[steady, Stage.SYNC].mean())
    found = parts.syncs
    bytes = found.bytes_per_update.mean if found else math.nan
    transfer = dict(found.phases).get(word(Phase.TRANSFER)) if found else None
    fixed_s = max(0.0, found.update_s.mean - transfer.mean) if found and transfer else math.inf
    if placement == "async":
        # What the learner does not work through it stands still for, or nobody asks for it then.
        beside_s = float(parts.breakdown.learner_beside_weights_s[steady].mean())
        overlap = min(1.0, beside_s / tau_s) if tau_s else 0.0
        return Sync(tau_s, overlap, bytes, fixed_s=fixed_s)
    by_role = {p.role: p.seconds.mean for p in found.participants} if found else {}
    sent, taken = by_role.get("source", 0.0), by_role.get("sink", 0.0)
    overlap = taken / (sent + taken) if sent + taken > 0 else 0.0
    seconds = exposed_s if placement == "one-step-off" else tau_s
    return Sync(seconds, overlap, bytes, fixed_s=fixed_s)


def _devices(run: Run) -> tuple[Mapping[str, float], str]:
    """Devices by pool, and what they are. Without GPUs each process counts as one device."""
    held: dict[str, set[tuple[str, str]]] = {"rollout": set(), "train": set()}
    processes: dict[str, set[int]] = {"rollout": set(), "train": set()}
    stages = {Stage.ROLLOUT: "rollout", Stage.TRAIN: "train"}
    query = (
        f"select process, stage from span_stages where stage in "
        f"({int(Stage.ROLLOUT)}, {int(Stage.TRAIN)}) "
        f"union select distinct process, {int(Stage.ROLLOUT)} from raw_trajectories "
        f"where start_ns > 0"
    )
    known = {process.number: process for process in run.processes if process.role != AGENT}
    for number, stage in run.ask(query):
        pool = stages[Stage(stage)]
        processes[pool].add(number)
        if number in known:
            listed = known[number].facts.get("devices")
            devices = listed if isinstance(listed, list) else []
            held[pool] |= {(known[number].node, str(device)) for device in devices}
    if held["rollout"] & held["train"]:
        return {"shared": float(len(held["rollout"] | held["train"]))}, "GPU"
    if held["rollout"] and held["train"]:
        return {pool: float(len(devices)) for pool, devices in held.items()}, "GPU"
    kind = count_devices(run).kind
    if kind != "core" or not all(processes.values()):
        return {}, kind
    rollout, train = processes["rollout"], processes["train"]
    if rollout <= train or train <= rollout:  # nobody works for one of them only
        return {"shared": float(len(rollout | train))}, _WORKER
    return {pool: float(len(members)) for pool, members in processes.items()}, _WORKER


# --- how old samples may become in a run, and what is done with those that are older


def lag_bound(run: Run, parts: Parts, placement: str, samples: Samples) -> float:
    """The bound in versions that a process states, else the largest lag that came: where nobody
    tells a version, the most steps from the beginning of a sample to its use. A bound that nothing
    keeps to, as no samples lag in this placement, is none: a job that becomes asynchronous gets
    1."""
    bounds = [1.0, float(parts.staleness.largest_lag)]
    if placement == "async" and not parts.staleness.known:
        bounds.append(float(samples.steps_until_used(starts_s(parts)).max(initial=0)))
    return max(bounds + (stated_bounds(run) if placement == "async" else []))


def stated_bounds(run: Run) -> list[float]:
    """The bounds that processes state, in versions."""
    settings = [process.facts.get("settings") for process in run.processes]
    found = [one.get("max_lag") for one in settings if isinstance(one, dict)]
    return [float(x) for x in found if isinstance(x, int | float) and math.isfinite(x)]


def drops_stale(run: Run, parts: Parts, placement: str) -> bool | None:
    """Whether samples older than the bound are dropped: where the trainer states it, where some
    were, and where none were though they could have been."""
    for process in run.processes:
        stated = process.facts.get("drops_stale")
        if isinstance(stated, bool):
            return stated
    if parts.goodput is not None and any(x.reason == "stale" for x in parts.goodput.losses):
        return True
    return False if placement == "async" else None
