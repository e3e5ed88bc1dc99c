"""Levers on who runs when, and on how many devices.

Each function is the change of the lever of its name (`levers`): a workload, a value and constants
in, a workload out. Errors: `NotApplicable` and `RltraceError`, as `lever` says.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rltrace.analysis.whatif.constants import Constants
from rltrace.analysis.whatif.lever import check, factor_of, needs, number
from rltrace.analysis.whatif.pools import grown, resplit, scaled_learner, scaled_rollout
from rltrace.analysis.whatif.workload import OVERLAPPING, PLACEMENTS, Workload

UNTOLD = "which sequences run, and which wait after their tools, was not seen"

_KEPT = (
    "generation and training take turns on the same devices, which they go on to do: half as many "
    "groups again are begun, and those that are not complete wait for the next step "
    "(partial_rollout=1.5)"
)
_NO_TAIL_SEEN = (
    "no trajectory was recorded: for how much of generation a batch waits for its longest sample "
    "was not seen"
)
_NO_BARRIER_SEEN = (
    "generation goes on beside training already; without trajectories nobody knows what it waits "
    "for"
)


def rollout_workers(load: Workload, value: str, constants: Constants) -> Workload:
    needs(not load.shared, "generation and training share their devices: use split or placement")
    needs(load.places_told, UNTOLD)
    factor = factor_of("rollout_workers", value, load.engine.workers)
    if not load.engine.pooled:
        check(round(factor * load.engine.workers) >= 1, "rollout_workers", value, "1 or more")
    return scaled_rollout(load, factor, constants)


def learner_workers(load: Workload, value: str, constants: Constants) -> Workload:
    needs(not load.shared, "generation and training share their devices: use split or placement")
    needs(bool(load.serial_s), "no stage of the learner is known")
    factor = factor_of("learner_workers", value, load.devices.get("train", 1.0))
    return scaled_learner(load, factor, constants)


def devices(load: Workload, value: str, constants: Constants) -> Workload:
    needs(bool(load.devices), "the devices are not known")
    return grown(load, factor_of("devices", value, load.total_devices), constants)


def split(load: Workload, value: str, constants: Constants) -> Workload:
    needs(bool(load.devices), "the devices are not known")
    total = load.total_devices
    if ":" in value:
        left, _, right = value.partition(":")
        rollout, train = number("split", left), number("split", right)
        fits = math.isclose(rollout + train, total, rel_tol=1e-3)
        check(fits, "split", value, f"counts that add up to {total:g} devices")
    else:
        part = number("split", value)
        check(0 < part < 1, "split", value, "a part between 0 and 1, or counts like 16:16")
        rollout = part * total
        train = total - rollout
    check(rollout > 0 and train > 0, "split", value, "devices on both sides")
    if load.shared and load.placement == "colocated":
        load = replace(load, placement="one-step-off")
    return resplit(load, rollout, train, constants)


def placement(load: Workload, value: str, constants: Constants) -> Workload:
    check(value in PLACEMENTS, "placement", value, "one of " + ", ".join(PLACEMENTS))
    needs(value != load.placement, f"it is {value} already")
    beside = value in OVERLAPPING and load.placement in OVERLAPPING
    needs(not (beside and load.without_samples), _NO_BARRIER_SEEN)
    scoring = "group" if load.scoring == "batch" and value != "colocated" else load.scoring
    return replace(load, placement=value, scoring=scoring, keeps_unfinished=False, in_batches=False)


def no_barrier(load: Workload, value: str, constants: Constants) -> Workload:
    if load.in_batches:
        scoring = "group" if load.scoring == "batch" else load.scoring
        return replace(load, in_batches=False, scoring=scoring)
    needs(load.placement != "async", "there is no barrier in async")
    needs(not load.without_samples, _NO_TAIL_SEEN)
    if load.shared:
        kept = partial_rollout(load, "1.5", constants)
        return replace(kept, rests_on=(*kept.rests_on, _KEPT))
    bound = max(1.0, load.lag_bound)
    note = (
        "generation is taken to go on beside training, each on the devices that it has now, with "
        f"samples that lag by up to {bound:g} version{'s' * (bound != 1)} (placement=async)"
    )
    rests_on = (*load.rests_on, note)
    return replace(load, placement="async", lag_bound=bound, rests_on=rests_on)


def partial_rollout(load: Workload, value: str, constants: Constants) -> Workload:
    in_flight = number("partial_rollout", value)
    check(in_flight >= 1, "partial_rollout", value, "groups begun for each one needed, 1 or more")
    turns = load.placement in ("colocated", "disaggregated")
    needs(turns, f"{load.placement} does not wait for a batch to end")
    needs(not load.without_samples, _NO_TAIL_SEEN)
    return replace(load, keeps_unfinished=True, in_flight=in_flight)


def lag_bound(load: Workload, value: str, constants: Constants) -> Workload:
    bound = number("lag_bound", value)
    check(bound >= 0, "lag_bound", value, "versions, 0 or more")
    needs(load.placement == "async", f"{load.placement} has no bound to move")
    return replace(load, lag_bound=bound)


def chunks(load: Workload, value: str, constants: Constants) -> Workload:
    chunks = number("chunks", value)
    check(chunks >= 1 and chunks == round(chunks), "chunks", value, "a number of parts, 1 or more")
    streams = load.placement in ("disaggregated", "async")
    needs(streams, f"in {load.placement} the learner takes whole batches")
    return replace(load, chunks=int(chunks))
