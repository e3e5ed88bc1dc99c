"""The devices that a job held, how busy they were, and its framework."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rltrace.analysis.timeline.intervals import Floats
from rltrace.trace.job_devices import AGENT, held_devices, listed
from rltrace.trace.read.processes import TracedProcess
from rltrace.trace.read.run import OpenedRun

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
    cores: dict[str, int] = {}
    for process in run.processes:
        count = process.facts.get("cores")
        if isinstance(count, int) and count > 0:
            cores[process.node] = max(count, cores.get(process.node, 0))
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
    rows = run.ask(f"""
        with of_processes as (
            select process, device, counter, {part} as part, count(*) as n, sum(value) as sum,
                   min(value) as least, max(value) as most,
                   min(time_ns) as first, max(time_ns) as last
            from raw_samples
            where time_ns between {since_ns} and {until_ns} and not isnan(value)
                  and device >= 0 and counter in ({ids}) group by all),
        parts as (
            select host, device, text, part, sum(n) as n, sum(sum) as sum, min(least) as least,
                   max(most) as most, min(first) as first, max(last) as last
            from of_processes join names on names.id = counter join processes using (process)
            group by all)
        select host, device, text, sum(n)::bigint, sum(sum) / sum(n), max(most),
               coalesce((max(most) - min(least)) / nullif(max(last) - min(first), 0), 'nan'),
               map(list(part), list(sum / n))
        from parts group by all order by all""")
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
