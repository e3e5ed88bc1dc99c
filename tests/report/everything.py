"""A run in which everything was seen that is exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.synthetic.files import write
from benchmarks.synthetic.timeline import play
from benchmarks.synthetic.workload import Workload
from rltrace.testing.handmade_runs import at

STEPS = 6
READINGS = {
    "gpu/memory_used_bytes": 60e9,
    "gpu/memory_total_bytes": 80e9,
    "gpu/power_watts": 500.0,
    "host/cpu_busy_seconds": 1000.0,
    "host/memory_available_bytes": 200e9,
    "host/memory_total_bytes": 256e9,
}
"""What an agent reads besides how busy the GPUs are, which every synthetic run has."""


def everything(folder: Path) -> Path:
    """Writes it; an asynchronous job with ranks, GPUs, tools, lags, and some that are unknown."""
    load = Workload(placement="async", steps=STEPS, gpus=4, env_s=0.2, unknown_versions=0.1)
    timeline = play(load)
    (agent,) = (process for process in timeline.processes if process.role == "agent")
    agent.rows(
        "samples",
        time_ns=np.full(len(READINGS), at(1)),
        counter=np.array(list(READINGS)),
        device=np.array([0 if name.startswith("gpu/") else -1 for name in READINGS]),
        value=np.array(list(READINGS.values())),
    )
    write(folder, load, timeline)
    return folder
