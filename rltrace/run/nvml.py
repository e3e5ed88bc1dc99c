"""Readings of the node's NVIDIA devices. The only file that imports nvidia-ml-py.

Cumulative counters are preferred to rates: nothing between two readings is missed, and
`nvmlDeviceGetPcieThroughput` would block for a window of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Reading = tuple[str, int, float]
"""Counter, device, value. The unit is in the counter's name."""

_KIB = 1024.0
_WRAPPING = ("gpu/pcie_sent_bytes", "gpu/pcie_received_bytes")
_WRAPS_AT = float(1 << 32)  # "Value can be wrapped", says nvml.h of these two


class NoGpu(Exception):
    """There is no NVIDIA device to read, with the reason."""


class Devices:
    """The devices of this node. Counters that a device does not support are left out for good."""

    def __init__(self) -> None:
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

    def __len__(self) -> int:
        return len(self._devices)

    def names(self) -> list[str]:
        return [str(self._nvml.nvmlDeviceGetName(handle)) for _, handle in self._devices]

    def read(self) -> Iterator[Reading]:
        """One reading of everything that each device supports."""
        for device, handle in self._devices:
            for group, read in _READERS.items():
                if (device, group) in self._unsupported:
                    continue
                try:
                    values = read(self._nvml, handle)
                except (self._nvml.NVMLError, AttributeError):
                    self._unsupported.add((device, group))
                    continue
                for counter, value in values.items():
                    yield counter, device, self._unwrapped(device, counter, value)

    def _unwrapped(self, device: int, counter: str, value: float) -> float:
        if counter not in _WRAPPING:
            return value
        before, added = self._wrapped.get((device, counter), (0.0, 0.0))
        if value < before:
            added += _WRAPS_AT
        self._wrapped[device, counter] = (value, added)
        return value + added


def _utilization(nvml: Any, handle: Any) -> dict[str, float]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {
        "gpu/busy_percent": float(rates.gpu),
        "gpu/memory_controller_busy_percent": float(rates.memory),
    }


def _memory(nvml: Any, handle: Any) -> dict[str, float]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {
        "gpu/memory_used_bytes": float(memory.used),
        "gpu/memory_total_bytes": float(memory.total),
    }


def _nvlink(nvml: Any, handle: Any) -> dict[str, float]:
    # All links together is scope 0xFFFFFFFF. Fields are in KiB.
    sent = nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF
    received = nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 0xFFFFFFFF
    moved = _moved(nvml, handle, "gpu/nvlink", sent, received)
    return {counter: kib * _KIB for counter, kib in moved.items()}


def _pcie(nvml: Any, handle: Any) -> dict[str, float]:
    sent, received = nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
    return _moved(nvml, handle, "gpu/pcie", (sent, 0), (received, 0))


def _moved(nvml: Any, handle: Any, what: str, *fields: tuple[int, int]) -> dict[str, float]:
    found = []
    for value in nvml.nvmlDeviceGetFieldValues(handle, list(fields)):
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        found.append(_number(nvml, value))
    return {f"{what}_sent_bytes": found[0], f"{what}_received_bytes": found[1]}


def _number(nvml: Any, value: Any) -> float:
    names = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    return float(getattr(value.value, names[value.valueType]))


_READERS: dict[str, Callable[[Any, Any], dict[str, float]]] = {
    "utilization": _utilization,
    "memory": _memory,
    "power": lambda nvml, handle: {"gpu/power_watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3},
    "energy": lambda nvml, handle: {
        "gpu/energy_joules": nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
    },
    "nvlink": _nvlink,
    "pcie": _pcie,
}
