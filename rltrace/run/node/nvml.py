"""Readings of the node's NVIDIA devices; only here is nvidia-ml-py imported.

Cumulative counters are preferred to rates: nothing is missed, and no reading blocks for a window.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

Reading = tuple[str, int, float]
"""Counter, device, value. The unit is in the counter's name."""

_WRAPPING = ("gpu/pcie_sent_bytes", "gpu/pcie_received_bytes")
_WRAPS_AT = float(1 << 32)  # "Value can be wrapped", says nvml.h of these two

# Reasons for a lower clock, as nvml.h has them: a power cap or brake, heat, and none of its own.
_POWER, _HEAT, _HARDWARE = 0x4 | 0x80, 0x20 | 0x40, 0x8


class NoGpu(Exception):
    """Why there is no NVIDIA device to read."""


class NvmlDevices:
    """The devices of this node. `is_of_run` says of a pid here whether it is a process of the
    run's; `held` are the devices on which those had memory, by pid."""

    def __init__(self, is_of_run: Callable[[str], bool] = lambda _: False) -> None:
        """Errors: `NoGpu`."""
        try:
            import pynvml
        except ImportError:
            raise NoGpu("nvidia-ml-py is not installed") from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except pynvml.NVMLError as error:
            raise NoGpu(f"NVML: {error}") from None
        if not handles:
            raise NoGpu("NVML lists no device")
        self._devices = list(enumerate(handles))
        self._unsupported: set[tuple[int, str]] = set()
        self._wrapped: dict[tuple[int, str], tuple[float, float]] = {}
        self._is_of_run = is_of_run
        self.held: dict[str, list[int]] = {}

    def names(self) -> list[str]:
        return [str(self._nvml.nvmlDeviceGetName(handle)) for _, handle in self._devices]

    def uuids(self) -> list[str]:
        """By which `CUDA_VISIBLE_DEVICES` may name them; none where the driver does not tell."""
        try:
            return [str(self._nvml.nvmlDeviceGetUUID(handle)) for _, handle in self._devices]
        except Exception:  # as below
            return []

    def read(self) -> Iterator[Reading]:
        for device, handle in self._devices:
            for group, read in {**_READERS, "processes": self._memory_of_processes}.items():
                if (device, group) in self._unsupported:
                    continue
                try:
                    values = read(self._nvml, handle)
                except Exception:  # an NVMLError, or a library or a driver that is of another time
                    self._unsupported.add((device, group))  # and so left out for good
                    continue
                for counter, value in values.items():
                    before, added = self._wrapped.get((device, counter), (0.0, 0.0))
                    if counter in _WRAPPING:
                        added += _WRAPS_AT * (value < before)
                        self._wrapped[device, counter] = (value, added)
                    yield counter, device, value + added

    def _memory_of_processes(self, nvml: Any, handle: Any) -> dict[str, float]:
        """What the run's processes hold. NVML may tell pids of another namespace: a process counts
        that is of the run and has a device open."""
        device = next(number for number, one in self._devices if one is handle)
        found: dict[str, float] = {}
        for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            pid, used_bytes = str(one.pid), one.usedGpuMemory
            if used_bytes is None:
                continue
            if pid in self.held or (_has_device(pid) and self._is_of_run(pid)):
                counter = f"gpu/memory_of_pid_{pid}_bytes"
                found[counter] = found.get(counter, 0.0) + used_bytes
                self.held[pid] = sorted({device, *self.held.get(pid, ())})
        return found


def _has_device(pid: str) -> bool:
    """Whether a process here has an NVIDIA device open, as far as this user may look."""
    with suppress(OSError):  # it is none of ours, or a file was just closed: the next reading tells
        files = os.listdir(f"/proc/{pid}/fd")
        return any(os.readlink(f"/proc/{pid}/fd/{n}").startswith("/dev/nvidia") for n in files)
    return False


def _utilization(nvml: Any, handle: Any) -> dict[str, float]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    busy, memory_busy = float(rates.gpu), float(rates.memory)
    return {"gpu/busy_percent": busy, "gpu/memory_controller_busy_percent": memory_busy}


def _memory(nvml: Any, handle: Any) -> dict[str, float]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    used, total = float(memory.used), float(memory.total)
    return {"gpu/memory_used_bytes": used, "gpu/memory_total_bytes": total}


def _throttled(nvml: Any, handle: Any) -> dict[str, float]:
    """Why the clock is lower than it could be at this moment: over many readings, how often."""
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except Exception:  # this name came with driver 535
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    if reasons & (0x40 | 0x80):  # beside which the hardware's slowdown is told, too
        reasons &= ~_HARDWARE
    by = {"power": _POWER, "heat": _HEAT, "hardware": _HARDWARE}
    return {f"gpu/throttled_by_{why}_percent": 100.0 * bool(reasons & of) for why, of in by.items()}


def _nvlink(nvml: Any, handle: Any) -> dict[str, float]:
    # All links together is scope 0xFFFFFFFF. Fields are in KiB.
    sent = nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF
    received = nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 0xFFFFFFFF
    moved = _moved(nvml, handle, "gpu/nvlink", sent, received)
    return {counter: 1024.0 * kib for counter, kib in moved.items()}


def _pcie(nvml: Any, handle: Any) -> dict[str, float]:
    sent, received = nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
    return _moved(nvml, handle, "gpu/pcie", (sent, 0), (received, 0))


def _moved(nvml: Any, handle: Any, what: str, *fields: tuple[int, int]) -> dict[str, float]:
    found = []
    for value in nvml.nvmlDeviceGetFieldValues(handle, list(fields)):
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        of_type = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal")  # the order of nvmlValueType_t
        found.append(float(getattr(value.value, of_type[value.valueType])))
    return {f"{what}_sent_bytes": found[0], f"{what}_received_bytes": found[1]}


_READERS: dict[str, Callable[[Any, Any], dict[str, float]]] = {
    "utilization": _utilization,
    "memory": _memory,
    "power": lambda nvml, handle: {"gpu/power_watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3},
    "energy": lambda nvml, handle: {
        "gpu/energy_joules": nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
    },
    "clock": lambda nvml, handle: {
        "gpu/sm_clock_hz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6
    },
    "throttled": _throttled,
    "nvlink": _nvlink,
    "pcie": _pcie,
}
