"""How much of the devices' time does the work of a stage.

A device works while any process that holds it is in a stage whose work is a model's: generation, a
reward model, log-probs, values, training. Weights that move, an engine that sleeps or wakes, tools,
waits and what no span covers are none of that. Where no process that works holds a device (a job on
CPU, or GPUs that nobody was seen to be given), each process that works stands for one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.intervals import Intervals, Ints, run_before, union
from rltrace.analysis.timeline.process_intervals import Activity
from rltrace.analysis.timeline.stage_chains import Seconds
from rltrace.trace.job_devices import AGENT, held_devices
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.vocabulary import Stage

_PROCESS = (Stage.ROLLOUT, Stage.REFERENCE, Stage.LOGPROB, Stage.VALUE, Stage.TRAIN)
# Of a process that holds no device, verdicts are no work of a device.
_WORK = {"GPU": (*_PROCESS, Stage.REWARD), "process": _PROCESS}
_STAGES = len(Stage)

UNKNOWN_ROLE = "unknown"  # of a process that did not say what it is


@dataclass(frozen=True)
class DevicePool:
    """Devices that the same roles share, and the part of the steps' time that they worked."""

    roles: tuple[str, ...]
    devices: int
    busy_share: float


@dataclass(frozen=True)
class Busy:
    """Device-seconds of work by step (place in `Steps.windows`); `unit` is "GPU" or "process"."""

    unit: str
    count: int
    work_s: Seconds
    pools: tuple[DevicePool, ...]


def busy(analysis: RunAnalysis) -> Busy | None:
    """None where nobody was seen to work on a device, or there are no steps."""
    run, activity, steps = analysis.run, analysis.activity, analysis.steps
    if steps.whole_run:
        return None
    working = _workers(run, activity)
    workers = sorted({process for process, _ in working})
    held = held_devices(run.processes, seen=False)
    places = {process: devices for process, devices in held.items() if devices}
    unit = "GPU"
    if not set(places) & set(workers):
        unit = "process"
        places = {p: (f"process {p}",) for p in workers}
    names = sorted({device for devices in places.values() for device in devices})
    if not names or not steps.windows:
        return None
    number = {name: i for i, name in enumerate(names)}
    pairs = [(p, number[device]) for p, devices in places.items() for device in devices]
    pool_of, roles = _pools(run, pairs, len(names))
    work_s = np.zeros((len(roles), len(steps.windows)))
    edges = np.stack([steps.starts_ns, steps.ends_ns], axis=1)
    holder, device = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
    since, until = int(edges[0, 0]), int(edges[-1, 1])
    own = [process * _STAGES + stage for process, stage in working]
    for start, end, process, stages in activity.of_processes(since, until):
        works = np.isin(stages.group, _WORK[unit])
        if unit == "process":
            works &= np.isin(process * _STAGES + stages.group, own)
        of_device = _by_device(stages.take(works), process[works], holder, device)
        now = slice(*(int(np.searchsorted(edges[:, i], t)) for i, t in ((1, start), (0, end))))
        for pool in range(len(roles)):
            mine = of_device.take(pool_of[of_device.group] == pool)
            work_s[pool, now] += _within(mine, edges[now].clip(start, end))
    steps_s = float((edges[:, 1] - edges[:, 0]).sum()) / 1e9
    sizes = np.bincount(pool_of, minlength=len(roles))
    pools = tuple(
        DevicePool(of, int(n), float(work.sum()) / (int(n) * steps_s) if steps_s else math.nan)
        for of, n, work in zip(roles, sizes, work_s, strict=True)
    )
    return Busy(unit, len(names), work_s.sum(axis=0), pools)


def _workers(run: OpenedRun, activity: Activity) -> set[tuple[int, int]]:
    """`(process, stage)` of those that do a device's work: what a process that records the steps
    has of a stage that another records, too, is what it waits for."""
    stages = ", ".join(str(int(stage)) for stage in _PROCESS)
    query = f"select distinct process, stage from span_stages where stage in ({stages})"
    found = set(run.ask(query))
    if Stage.ROLLOUT in activity.from_tables:
        query = "select distinct process from raw_trajectories where start_ns > 0"
        found |= {(process, int(Stage.ROLLOUT)) for (process,) in run.ask(query)}
    agents = {process.number for process in run.processes if process.role == AGENT}
    query = f"select process from span_stages where stage = {int(Stage.STEP)}"
    controllers = {process for (process,) in run.ask(query)}
    others = {stage for process, stage in found if process not in controllers | agents}
    waits = {(process, stage) for process in controllers for stage in others}
    return {(process, stage) for process, stage in found - waits if process not in agents}


def _pools(
    run: OpenedRun, pairs: list[tuple[int, int]], devices: int
) -> tuple[Ints, list[tuple[str, ...]]]:
    """`(pool of each device, roles of each pool)`."""
    # What a process starts beside itself (an engine's core, a compiler) is there for its role.
    role_of = {p.number: p.role or p.child_of or UNKNOWN_ROLE for p in run.processes}
    roles_on: list[set[str]] = [set() for _ in range(devices)]
    for process, device in pairs:
        roles_on[device].add(role_of.get(process, UNKNOWN_ROLE))
    kinds = [tuple(sorted(roles)) for roles in roles_on]
    pools = sorted(set(kinds))
    return np.array([pools.index(kind) for kind in kinds], np.int64), pools


def _by_device(work: Intervals, process: Ints, holder: Ints, device: Ints) -> Intervals:
    """The union of work on each device (group: its number); `holder` is in order."""
    first = np.searchsorted(holder, process, side="left")
    count = np.searchsorted(holder, process, side="right") - first
    which = np.repeat(np.arange(len(work)), count)
    offset = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    on = device[np.repeat(first, count) + offset] if len(which) else np.zeros(0, np.int64)
    return union(replace(work.take(which), group=on))


def _within(work: Intervals, windows: Ints) -> Seconds:
    """Seconds of work within each window, added up over devices."""
    if not len(windows):
        return np.zeros(0)
    origin = int(windows.min())
    start, end = (times.clip(origin) - origin for times in (work.start, work.end))
    since, until = (run_before(start, end, moments - origin) for moments in windows.T)
    return (until - since) / 1e9
