"""How busy each GPU was as the run went on, as NVML's samples tell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.intervals import Floats
from rltrace.trace.run import Run

BUSY = "gpu/busy_percent"
MEMORY = "gpu/memory_used_bytes"
MEMORY_TOTAL = "gpu/memory_total_bytes"
POWER = "gpu/power_watts"


@dataclass(frozen=True)
class DeviceLoad:
    """One GPU. `busy` is the share of each of the equal parts of the run's time in which a kernel
    ran (NaN: no sample; NVML counts a device as busy while any kernel runs, however small). Bytes
    and watts are NaN where nobody recorded them."""

    host: str
    device: int
    samples: int
    busy: Floats
    busy_share: float
    most_memory_bytes: float
    memory_bytes: float
    mean_power_w: float


def device_load(run: Run, since_ns: int, until_ns: int, parts: int) -> tuple[DeviceLoad, ...]:
    """All GPUs that have samples between two moments (Unix ns), by host and number."""
    if until_ns <= since_ns:
        return ()
    wanted = (BUSY, MEMORY, MEMORY_TOTAL, POWER)
    rows = run.ask(f"""
        select host, device, text, count(*), avg(value), max(value)
        from raw_samples join names on names.id = counter join processes using (process)
        where time_ns between {since_ns} and {until_ns} and text in {wanted} and not isnan(value)
        group by all
    """)
    figures = {(host, device, text): (n, mean, most) for host, device, text, n, mean, most in rows}
    part = f"least({parts - 1}, (time_ns - {since_ns}) * {parts} // {until_ns - since_ns})::int"
    binned = run.ask(f"""
        select host, device, {part} as part, avg(value) / 100
        from raw_samples join names on names.id = counter join processes using (process)
        where time_ns between {since_ns} and {until_ns} and text = '{BUSY}' and not isnan(value)
        group by all
    """)
    nothing = (0, float("nan"), float("nan"))
    found = []
    for host, device in sorted({(host, device) for host, device, _ in figures}):
        busy = np.full(parts, np.nan)
        for _, _, at, share in (row for row in binned if row[:2] == (host, device)):
            busy[at] = share
        of = {text: figures.get((host, device, text), nothing) for text in wanted}
        found.append(
            DeviceLoad(
                host=host,
                device=device,
                samples=of[BUSY][0],
                busy=busy,
                busy_share=of[BUSY][1] / 100,
                most_memory_bytes=of[MEMORY][2],
                memory_bytes=of[MEMORY_TOTAL][2],
                mean_power_w=of[POWER][1],
            )
        )
    return tuple(found)
