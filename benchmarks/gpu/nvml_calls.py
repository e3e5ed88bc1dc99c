"""Each NVML call that the agent makes: what it gives here, and what it takes. Prints JSON.

Run by `benchmarks.gpu.nvml` as a child, since a driver that hangs would take its caller along.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from rltrace.testing.inside.run import NoGpu
from rltrace.testing.inside.run import NvmlDevices as Devices

TIMES = 50
_ALL_LINKS = 0xFFFFFFFF


def calls_of(nvml: Any, handle: Any) -> dict[str, Callable[[], Any]]:
    """What is asked of a device, by the name of NVML's function."""

    def of_device(what: str) -> Callable[[], Any]:
        return lambda: getattr(nvml, what)(handle)

    def fields(scope: int, *names: str) -> Callable[[], Any]:
        return lambda: nvml.nvmlDeviceGetFieldValues(
            handle, [(getattr(nvml, f"NVML_FI_DEV_{name}"), scope) for name in names]
        )

    device = ("Name", "UUID", "UtilizationRates", "MemoryInfo", "PowerUsage",
              "TotalEnergyConsumption", "CurrentClocksEventReasons",
              "CurrentClocksThrottleReasons", "ComputeRunningProcesses")  # fmt: skip
    return {
        **{f"nvmlDeviceGet{what}": of_device(f"nvmlDeviceGet{what}") for what in device},
        "nvmlDeviceGetClockInfo, SM": lambda: nvml.nvmlDeviceGetClockInfo(
            handle, nvml.NVML_CLOCK_SM
        ),
        "nvmlDeviceGetFieldValues, NVLink": fields(
            _ALL_LINKS, "NVLINK_THROUGHPUT_DATA_TX", "NVLINK_THROUGHPUT_DATA_RX"
        ),
        "nvmlDeviceGetFieldValues, PCIe": fields(0, "PCIE_COUNT_TX_BYTES", "PCIE_COUNT_RX_BYTES"),
    }


def tried(call: Callable[[], Any]) -> dict[str, Any]:
    """What a call gives, as text, and the median of its µs; or why it gives nothing."""
    try:
        given = call()
        took_ns = []
        for _ in range(TIMES):
            began_ns = time.perf_counter_ns()
            call()
            took_ns.append(time.perf_counter_ns() - began_ns)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"gives": _text(given), "us": statistics.median(took_ns) / 1e3}


def _text(given: Any) -> str:
    if isinstance(given, (list, ctypes.Array)):
        return "; ".join(map(_text, given)) or "none"
    if type(given).__name__.startswith("c_nvmlFieldValue"):
        return f"field {given.fieldId}: return {given.nvmlReturn}, {given.value.ullVal}"
    fields = getattr(given, "_fields_", None)
    if fields:
        return ", ".join(f"{name[0]}={_text(getattr(given, name[0]))}" for name in fields)
    kept = given.__dict__ if hasattr(given, "__dict__") else None
    return ", ".join(f"{k}={v}" for k, v in kept.items()) if kept else str(given)


def look() -> Mapping[str, Any]:
    """All of it, of the first device."""
    try:
        devices = Devices()
    except NoGpu as error:
        return {"no_gpu": str(error)}
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    calls = {name: tried(call) for name, call in calls_of(pynvml, handle).items()}
    reads = tried(lambda: len(list(devices.read())))
    calls["all that the agent reads in a second"] = reads  # of every device
    return {
        "driver": tried(pynvml.nvmlSystemGetDriverVersion).get("gives"),
        "names": devices.names(),
        "uuids": devices.uuids(),
        "calls": calls,
        "counters": {c: value for c, device, value in devices.read() if device == 0},
    }


if __name__ == "__main__":
    print(json.dumps(look()))
