"""Reading devices: units, counters that wrap, and what a device does not support.

The library is played by a stand-in with NVML's names and conventions, since most machines that run
these tests have no device; on one that has, the last test reads it.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.run.nvml import Devices, NoGpu


class Error(Exception):
    """`pynvml.NVMLError`."""


class Library(SimpleNamespace):
    """Two devices; the second supports only power. `asked` counts calls by function."""

    def __init__(self) -> None:
        super().__init__(
            NVMLError=Error,
            NVML_SUCCESS=0,
            NVML_CLOCK_SM=1,
            NVML_VALUE_TYPE_DOUBLE=0,
            NVML_VALUE_TYPE_UNSIGNED_INT=1,
            NVML_VALUE_TYPE_UNSIGNED_LONG=2,
            NVML_VALUE_TYPE_UNSIGNED_LONG_LONG=3,
            NVML_VALUE_TYPE_SIGNED_LONG_LONG=4,
            NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX=138,
            NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX=139,
            NVML_FI_DEV_PCIE_COUNT_TX_BYTES=197,
            NVML_FI_DEV_PCIE_COUNT_RX_BYTES=198,
        )
        self.asked: list[tuple[str, int]] = []
        self.pcie = 4_000_000_000

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "Stand-in"

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 123_000  # mW

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        self._only_first("energy", handle)
        return 5_000  # mJ

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self._only_first("utilization", handle)
        return SimpleNamespace(gpu=98, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        self._only_first("memory", handle)
        return SimpleNamespace(used=3, total=10)

    def nvmlDeviceGetFieldValues(self, handle: int, wanted: list[tuple[int, int]]) -> list[Any]:
        self._only_first("fields", handle)
        return [self._field(field, scope) for field, scope in wanted]

    def _field(self, field: int, scope: int) -> Any:
        if field in (138, 139):
            assert scope == 0xFFFFFFFF
            value = SimpleNamespace(ullVal=7)  # KiB
            return SimpleNamespace(nvmlReturn=0, valueType=3, value=value)
        return SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=self.pcie))

    def _only_first(self, what: str, handle: int) -> None:
        self.asked.append((what, handle))
        if handle == 1:
            raise Error("Not Supported")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setitem(sys.modules, "pynvml", library)  # type: ignore[arg-type]
    return library


def test_units_are_those_of_the_names(library: Library) -> None:
    first = {counter: value for counter, device, value in Devices().read() if device == 0}
    assert first == {
        "gpu/busy_percent": 98,
        "gpu/memory_controller_busy_percent": 40,
        "gpu/memory_used_bytes": 3,
        "gpu/memory_total_bytes": 10,
        "gpu/power_watts": 123,
        "gpu/energy_joules": 5,
        "gpu/nvlink_sent_bytes": 7 * 1024,
        "gpu/nvlink_received_bytes": 7 * 1024,
        "gpu/pcie_sent_bytes": 4e9,
        "gpu/pcie_received_bytes": 4e9,
    }


def test_what_a_device_lacks_is_asked_for_once(library: Library) -> None:
    devices = Devices()
    readings = [list(devices.read()) for _ in range(3)]
    assert [r for r in readings[2] if r[1] == 1] == [("gpu/power_watts", 1, 123)]
    assert library.asked.count(("energy", 1)) == 1
    assert library.asked.count(("energy", 0)) == 3


def test_counters_that_wrap_go_on(library: Library) -> None:
    devices = Devices()
    list(devices.read())
    library.pcie = 5
    sent = {c: v for c, d, v in devices.read() if d == 0}["gpu/pcie_sent_bytes"]
    assert sent == 5 + 2**32


def test_no_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoGpu, match="nvidia-ml-py is not installed"):
        Devices()


def test_a_real_device_if_there_is_one() -> None:
    try:
        devices = Devices()
    except NoGpu as error:
        pytest.skip(f"there is no NVIDIA device to read: {error}")
    read = {counter: value for counter, device, value in devices.read() if device == 0}
    assert 0 <= read["gpu/busy_percent"] <= 100
    assert 0 < read["gpu/memory_used_bytes"] <= read["gpu/memory_total_bytes"]
