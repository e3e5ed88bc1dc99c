"""How busy each GPU was as the run went on, and what it took, as NVML's samples tell."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from rltrace.analysis.intervals import Floats
from rltrace.trace.run import Run

_REASONS = ("power", "heat", "hardware")


@dataclass(frozen=True)
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
    if until_ns <= since_ns:
        return ()
    part = f"least({parts - 1}, (time_ns - {since_ns}) * {parts} // {until_ns - since_ns})::int"
    read = f"""from raw_samples join names on names.id = counter join processes using (process)
        where time_ns between {since_ns} and {until_ns} and not isnan(value)
              and device >= 0 and text like 'gpu/%'"""
    rows = run.ask(f"""select host, device, text, count(*), avg(value), max(value), coalesce(
        (max(value) - min(value)) / nullif(max(time_ns) - min(time_ns), 0), 'nan') {read}
        group by all""")
    share = f"select host, device, {part}, avg(value) / 100 {read} and text = 'gpu/busy_percent'"
    binned = run.ask(f"{share} group by all")
    roles = {(p.host, str(p.pid)): p.role or p.child_of or "unknown" for p in run.processes}
    known: dict[tuple[str, int], dict[str, tuple[float, ...]]] = defaultdict(
        lambda: defaultdict(lambda: (0, math.nan, math.nan, math.nan)))  # fmt: skip
    holders: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for host, device, text, *figures in rows:
        known[host, device][text.removeprefix("gpu/")] = tuple(figures)
        if text.startswith("gpu/memory_of_pid_"):
            holders[host, device][roles.get((host, text.split("_")[3]), "unknown")] += figures[2]
    found = []
    for (host, device), of in sorted(known.items()):
        busy = np.full(parts, np.nan)
        for _, _, at, share in (row for row in binned if row[:2] == (host, device)):
            busy[at] = share
        throttled = {w: of[f"throttled_by_{w}_percent"][1] / 100 for w in _REASONS}
        found.append(DeviceLoad(
            host, device, int(of["busy_percent"][0]), busy, of["busy_percent"][1] / 100,
            of["memory_used_bytes"][2], of["memory_total_bytes"][2], of["power_watts"][1],
            of["energy_joules"][3] * (until_ns - since_ns), of["sm_clock_hz"][1], throttled,
            dict(holders[host, device]),
        ))  # fmt: skip
    return tuple(found)
