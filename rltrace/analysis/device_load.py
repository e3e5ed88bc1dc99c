"""How busy each GPU was as the run went on, and what it took, as NVML's samples tell."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

import numpy as np

from rltrace.analysis.intervals import Floats
from rltrace.trace.frozen import frozen
from rltrace.trace.run import Run

_REASONS = ("power", "heat", "hardware")


@frozen
class DeviceLoad:
    """One GPU. `busy` is the share of each of the equal parts of the time in which a kernel ran
    (NaN: no sample; NVML counts a device as busy while any kernel runs, however small). Figures are
    NaN where nobody recorded them. `joules` are of all of the time; `throttled` are shares of the
    samples, by reason; `holders` the most bytes that processes had, by role."""

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
    throttled: dict[str, float]
    holders: dict[str, float]


def device_load(run: Run, since_ns: int, until_ns: int, parts: int = 1) -> tuple[DeviceLoad, ...]:
    """All GPUs that have samples between two moments (Unix ns), by host and number."""
    roles = {(p.host, str(p.pid)): p.role or p.child_of or "unknown" for p in run.processes}
    found = []
    for (host, device), of in _readings(run, since_ns, until_ns, "gpu/%", parts).items():
        busy, holders = np.full(parts, np.nan), defaultdict[str, float](float)
        for at, mean in of["busy_percent"].means.items():
            busy[at] = mean / 100
        for counter, reading in of.items():
            if counter.startswith("memory_of_pid_"):
                holders[roles.get((host, counter.split("_")[3]), "unknown")] += reading.largest
        found.append(DeviceLoad(
            host, device, of["busy_percent"].n, busy, of["busy_percent"].mean / 100,
            of["memory_used_bytes"].largest, of["memory_total_bytes"].largest,
            of["power_watts"].mean, of["energy_joules"].a_ns * (until_ns - since_ns),
            of["sm_clock_hz"].mean,
            {word: of[f"throttled_by_{word}_percent"].mean / 100 for word in _REASONS},
            dict(holders),
        ))  # fmt: skip
    return tuple(found)


def joules(run: Run, since_ns: int, until_ns: int) -> float:
    """What all GPUs took between two moments (Unix ns); NaN: unknown."""
    found = _readings(run, since_ns, until_ns, "gpu/energy_joules").values()
    rates = [of["energy_joules"].a_ns for of in found]
    known = [rate for rate in rates if not math.isnan(rate)]
    return math.fsum(known) * (until_ns - since_ns) if known else math.nan


class _Reading(NamedTuple):
    """What a counter of a device told: `a_ns` is how much it grew in a nanosecond, `means` are
    those by part of the time."""

    n: int = 0
    mean: float = math.nan
    largest: float = math.nan
    a_ns: float = math.nan
    means: Mapping[int, float] = {}


def _readings(
    run: Run, since_ns: int, until_ns: int, counters: str, parts: int = 1
) -> dict[tuple[str, int], defaultdict[str, _Reading]]:
    """What the counters of a name like this told between two moments, by device."""
    found: dict[tuple[str, int], defaultdict[str, _Reading]] = {}
    known = f"select id from names where text like '{counters}' and exists (from raw_samples)"
    ids = ", ".join(str(number) for (number,) in run.ask(known))
    if until_ns <= since_ns or not ids:
        return found
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
    for host, device, text, *figures in rows:
        of = found.setdefault((host, device), defaultdict(_Reading))
        of[text.removeprefix("gpu/")] = _Reading(*figures)
    return found
