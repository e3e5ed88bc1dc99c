"""The devices that a job held, how busy they were and with what, and its framework.

A device works while any process that holds it is in a stage whose work is a model's: generation, a
reward model, log-probs, values, training. Weights that move, an engine that sleeps or wakes, tools,
waits and what no span covers are none of that. Where no process that works holds a device (a job on
CPU, or GPUs that nobody was seen to be given), each process that works stands for one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rltrace.analysis.timeline.intervals import Floats, Intervals, Ints, run_before, union
from rltrace.analysis.timeline.process_intervals import Activity
from rltrace.analysis.timeline.stage_chains import Seconds
from rltrace.trace.job_devices import AGENT, cores_of, held_devices, listed
from rltrace.trace.read.bounds import EVER_NS
from rltrace.trace.read.processes import TracedProcess
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Stage

_SQL = packaged_toml("analysis/data/queries.toml")
if TYPE_CHECKING:
    from rltrace.analysis.run_analysis import RunAnalysis

_REASONS = ("power", "heat", "hardware")
GPU, LOGICAL, CORE = "GPU", "logical GPU", "core"


@dataclass(frozen=True)
class Devices:
    """`count` GPUs, or CPU cores where no GPU was seen (0: not known). A `LOGICAL` GPU is one that
    a scheduler gave away on nodes where the driver shows none. `name` is the GPU's as the driver
    tells it, empty where nobody asked or they differ."""

    kind: str
    count: int
    name: str
    source: str


class Described(Protocol):
    @property
    def processes(self) -> Sequence[TracedProcess]: ...

    @property
    def meta(self) -> Mapping[str, Any]: ...


def count_devices(run: Described) -> Devices:
    """The devices that the traced processes say they were given, else those that they had memory
    on, else all GPUs of their nodes, else (or where none was given to any) all cores."""
    agents = [process for process in run.processes if process.role == AGENT]
    installed = [str(name) for agent in agents for name in listed(agent.facts.get("devices"))]
    name = installed[0] if len(set(installed)) == 1 else ""
    held = {device for devices in held_devices(run.processes).values() for device in devices}
    given = [p.facts.get("devices") for p in run.processes if p.role != AGENT]
    if held and agents and not installed:
        source = "those that Ray or the environment gave to traced processes; NVML sees none"
        return Devices(LOGICAL, len(held), "", source)
    if held:
        how = "given to traced processes" if any(given) else "on which traced processes have memory"
        return Devices(GPU, len(held), name, f"those {how}")
    if installed and not (given and given.count([]) == len(given)):
        return Devices(GPU, len(installed), name, "all that NVML sees on its nodes")
    cores = cores_of(run.processes)
    stated = (run.meta.get("settings") or {}).get("cores")
    if not cores and isinstance(stated, int):
        cores[str(run.meta.get("node"))] = stated
    no_gpu = "it was given no GPU" if installed else "no GPU was seen"
    source = f"all cores of its nodes; {no_gpu}" if cores else f"{no_gpu}, cores unknown"
    return Devices(CORE, sum(cores.values()), "", source)


@dataclass(frozen=True)
class DeviceLoad:
    """One GPU; NaN: not recorded. `busy` is the share of each of the equal parts of the time in
    which a kernel ran (NVML counts a device as busy while any kernel runs, however small). `joules`
    are of all of the time; `throttled_shares` of the samples, by reason; `memory_bytes_by_role` the
    most that processes had."""

    host: str
    device: int
    samples: int
    busy: Floats = field(metadata={"json": False})
    busy_share: float
    most_memory_bytes: float
    memory_bytes: float
    mean_power_w: float
    joules: float
    sm_clock_hz: float
    throttled_shares: dict[str, float]
    memory_bytes_by_role: dict[str, float]


def device_load(
    run: OpenedRun, since_ns: int, until_ns: int, parts: int = 1, counters: str = "gpu/%"
) -> tuple[DeviceLoad, ...]:
    """All GPUs with samples of these `counters` between two moments (Unix ns), in order."""
    named = f"select id from names where text like '{counters}' and exists (from raw_samples)"
    ids = ", ".join(str(number) for (number,) in run.ask(named))
    if until_ns <= since_ns or not ids:
        return ()
    part = f"least({parts - 1}, (time_ns - {since_ns}) * {parts} // {until_ns - since_ns})::int"
    told = {"since": since_ns, "until": until_ns, "part": part, "ids": ids}
    rows = run.ask(_SQL["device_load"].format(**told))
    roles = {(p.host, str(p.pid)): p.role or p.child_of or "unknown" for p in run.processes}
    known: dict[tuple[str, int], dict[str, tuple[Any, ...]]] = defaultdict(
        lambda: defaultdict(lambda: (0, math.nan, math.nan, math.nan, {})))  # fmt: skip
    holders: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for host, device, text, *figures in rows:
        known[host, device][text.removeprefix("gpu/")] = tuple(figures)
        if text.startswith("gpu/memory_of_pid_"):
            holders[host, device][roles.get((host, text.split("_")[3]), "unknown")] += figures[2]
    found = []
    for (host, device), of in known.items():
        busy = np.full(parts, np.nan)
        for at, percent in of["busy_percent"][4].items():
            busy[at] = percent / 100
        throttled = {w: of[f"throttled_by_{w}_percent"][1] / 100 for w in _REASONS}
        found.append(DeviceLoad(
            host, device, int(of["busy_percent"][0]), busy, of["busy_percent"][1] / 100,
            of["memory_used_bytes"][2], of["memory_total_bytes"][2], of["power_watts"][1],
            of["energy_joules"][3] * (until_ns - since_ns), of["sm_clock_hz"][1], throttled,
            dict(holders[host, device]),
        ))  # fmt: skip
    return tuple(found)


def version_of(process: TracedProcess) -> str:
    """Of its framework, as the process states it; empty where it does not."""
    versions = process.facts.get("versions")
    known = versions.get(process.adapter) if isinstance(versions, dict) else None
    return str(known or "")


def framework_of(run: Described) -> tuple[str, str]:
    """`(name, version)` of the run's framework; empty where unknown."""
    for process in run.processes:
        if process.adapter:
            return str(process.adapter), version_of(process)
    imported = run.meta.get("imported")
    name = imported.get("trainer") if isinstance(imported, dict) else None
    return str(name or run.meta.get("framework") or ""), ""


def is_laid_out(run: Described) -> bool:
    """Whether the run was made of a log of durations, which does not tell what ran at once."""
    imported = run.meta.get("imported")
    return bool(imported) and not (isinstance(imported, dict) and imported.get("placed"))


# --- how much of their time does the work of a stage

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
        places = _places(run, workers)
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


def _places(run: OpenedRun, workers: Collection[int]) -> dict[int, tuple[str, ...]]:
    """A place for each process; after a restart it has that of one of its role and rank that was
    over before it began."""
    over_ns = dict(run.ask("select process, max(last_ns) from span_stages group by process"))
    found: dict[int, tuple[str, ...]] = {}
    left: dict[tuple[object, object], list[int]] = defaultdict(list)
    for one in sorted(run.processes, key=lambda process: process.start_ns):
        if one.number in workers:
            beside = left[one.role, one.rank]
            over = (p for p in beside if over_ns.get(p, EVER_NS) < one.start_ns)
            free = next(over, one.number)
            found[one.number] = found.get(free, (f"process {free}",))
            beside[:] = [p for p in beside if p != free] + [one.number]
    return found


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
