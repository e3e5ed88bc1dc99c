"""A job of known duty for `benchmarks.gpu.nvml`: busy, idle, busy, with an allocation of a known
size. Says as JSON what it had of the device, as torch tells it, and which pids NVML tells.

    python -m benchmarks.gpu.nvml_job --out FILE [--seconds 5] [--gib 4]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import rltrace

WINDOWS = ("busy first", "idle", "busy again")
AT_REST_S = 2.0
"""Before and after: power is a mean over a second."""


def listed() -> list[dict[str, Any]] | str:
    """The processes that NVML lists on the first device that this one uses."""
    try:
        import pynvml
        import torch

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return [{"pid": one.pid, "bytes": one.usedGpuMemory} for one in found]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def work(seconds: float, gib: float) -> dict[str, Any]:
    """Runs the windows, each a span."""
    import torch

    held = torch.ones(int(gib * 2**30), dtype=torch.uint8, device="cuda")
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") / 90
    for _ in range(3):
        a = (a @ a).clamp(-1, 1)
    torch.cuda.synchronize()
    time.sleep(AT_REST_S)
    multiplied = 0
    for n, window in enumerate(WINDOWS):
        with rltrace.step(n), rltrace.span("wait" if window == "idle" else "train", name=window):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if window == "idle":
                    time.sleep(0.05)
                    continue
                for _ in range(10):
                    a = (a @ a).clamp(-1, 1)
                multiplied += 10
                torch.cuda.synchronize()
    time.sleep(AT_REST_S)
    free, total = torch.cuda.mem_get_info()
    return {
        "pid": os.getpid(),
        "pid_namespace": os.readlink("/proc/self/ns/pid"),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "held_bytes": held.numel(),
        "device_used_bytes": total - free,
        "device_total_bytes": total,
        "devices": torch.cuda.device_count(),
        "name": torch.cuda.get_device_name(0),
        "listed": listed(),
        "tflops": 2 * 8192**3 * multiplied / (2 * seconds) / 1e12,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window")
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.write_text(json.dumps(work(asked.seconds, asked.gib)))


if __name__ == "__main__":
    main()
