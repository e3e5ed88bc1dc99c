"""The workload of a run: what its steps are made of, from the trace."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from rltrace.analysis.composition import stated_placement
from rltrace.analysis.devices import CORE, GPU
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.whatif.constants import Constants
from rltrace.analysis.whatif.of_samples import NOT_WORK, of_samples
from rltrace.analysis.whatif.predict import Source
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.run_samples import Samples, samples_of
from rltrace.analysis.whatif.stated import stated
from rltrace.analysis.whatif.trust import is_off
from rltrace.analysis.whatif.workload import PLACEMENTS, Workload
from rltrace.trace.errors import CANNOT_TELL, RltraceError
from rltrace.trace.given import held_devices
from rltrace.trace.vocabulary import Stage, word

_WORKER = "worker"  # a process that stands for a device
_MOSTLY = 0.8  # chains of which the shorter runs for so much of its time under the other overlap


def workload_of(analysis: RunAnalysis) -> Source:
    """The workload of the run under given constants. Where no trajectory was recorded it is stated
    by its stage seconds, and what they do not tell are constants.

    Errors: `RltraceError` where the run has no steps, no generation or no placement that
    is known.
    """
    run, steady = analysis.run, analysis.steady
    if not steady:
        raise RltraceError("no complete step was recorded: nothing can be replayed", CANNOT_TELL)
    composition = analysis.composition
    if composition is None or composition.placement not in PLACEMENTS:
        why = composition.placement_source if composition else "no stage was seen in the steps"
        raise RltraceError(
            f"the placement is not known ({why}); state it with the stage seconds in a file for "
            "--stages",
            CANNOT_TELL,
        )
    if not analysis.breakdown.tau_s[steady, Stage.ROLLOUT].mean() > 0:
        raise RltraceError("no generation was seen: nothing can be replayed", CANNOT_TELL)
    placement = composition.placement
    samples = samples_of(run, analysis.steps, placement)
    if samples is None:
        return _from_stages(analysis, placement)
    if _runs_ahead(analysis, placement, samples):
        placement = "async"
        samples = samples_of(run, analysis.steps, placement) or samples
    made = of_samples(analysis, placement, samples, _common(analysis))
    return lambda constants: made


def _runs_ahead(analysis: RunAnalysis, placement: str, samples: Samples) -> bool:
    """Whether a job that is taken to be on policy, as nobody tells a version, trains on what was
    begun in earlier steps."""
    told = stated_placement(analysis.run) or any(
        b.lag is not None for b in analysis.staleness.by_first_token
    )
    later = samples.steps_until_used(analysis.begins_s) > 0
    return placement == "disaggregated" and not told and bool(later.sum() > len(later) / 2)


def _from_stages(analysis: RunAnalysis, placement: str) -> Source:
    """A run whose log tells stage seconds only.

    Errors: `RltraceError` where nobody says who waits for whom, and its chains overlap in part."""
    steady = analysis.steady
    tau_s = analysis.breakdown.tau_s[steady].mean(axis=0)
    if placement == "disaggregated" and not stated_placement(analysis.run):
        share = analysis.composition.overlap_share if analysis.composition else 0.0
        if share < _MOSTLY:
            raise RltraceError(
                f"generation and training overlap in part ({100 * share:.0f} % of the shorter), "
                "and no trajectory tells who waits for whom: nothing can be replayed",
                CANNOT_TELL,
            )
        placement = "one-step-off"
    if placement == "one-step-off":  # what a chain hides of an update holds nobody up
        tau_s[Stage.SYNC] = analysis.breakdown.exposed_s[steady, Stage.SYNC].mean()
    seconds = {word(s): float(tau_s[s]) for s in Stage if s not in NOT_WORK and tau_s[s] > 0}
    more = _common(analysis)
    tables = {
        "placement": placement,
        "step_s": more["measured_step_s"],
        "stages": seconds,
        "devices": more["devices"],
    }
    source = stated(tables, "the run").workload
    idle_s = float(analysis.breakdown.unattributed_s[steady].mean())

    def made(constants: Constants) -> Workload:
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
    steps_s = analysis.steps_s
    found = analysis.goodput
    devices, kind = _devices(analysis)
    shares_cores = kind == _WORKER and 0 < analysis.devices.count <= sum(devices.values())
    return {
        "measured_step_s": float(steps_s.mean()),
        "steps": len(steps_s),
        "devices": devices,
        "step_deviation": float(steps_s.std(ddof=1) / steps_s.mean())
        if len(steps_s) > 1
        else math.nan,
        "device_kind": kind,
        "shares_cores": shares_cores,
        "useful_tokens": found.trained.useful_tokens / found.steps
        if found and found.steps and found.trained.useful_tokens
        else math.nan,
        "usd_per_device_hour": found.price.usd_per_hour if found and found.price else math.nan,
    }


def _devices(analysis: RunAnalysis) -> tuple[dict[str, float], str]:
    """Devices by pool, and what they are. Without GPUs each process counts as one device."""
    rows = analysis.run.ask(
        f"select process, stage from span_stages "
        f"union select distinct process, {int(Stage.ROLLOUT)} from raw_trajectories "
        f"where start_ns > 0"
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
    counts = {"rollout": len(rollout), "train": len(train)}
    if shared:
        counts = {"shared": len(rollout | train)}
    return {pool: float(count) for pool, count in counts.items()}, kind
