"""What the agent reads of its node, as the kernel tells it, and of the node's devices.

NVIDIA's library is played by a stand-in with NVML's names and conventions, since most machines that
run these tests have no device; on one that has, the last test reads it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rltrace
from rltrace.run.node import nvml
from rltrace.run.node.nvml import NoGpu
from rltrace.run.node.nvml import NvmlDevices as Devices
from rltrace.testing.inside.analysis import count_devices
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.run import (
    NO_DEVICE,
    Agent,
    read_host,
)
from tests.patience import until


def test_threads_that_have_work_are_runnable() -> None:
    """Those of others come and go: with three more there must be three at least."""

    def runnable() -> float:
        found = {name: value for name, device, value in read_host() if device == NO_DEVICE}
        return found["host/runnable_threads"]

    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(3)]
    try:
        until(lambda: runnable() >= len(spinning))
    finally:
        for each in spinning:
            each.kill()
            each.wait()


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
        self.reasons = 0
        self.processes: list[tuple[int, int | None]] = []  # pid, bytes

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}000"

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        self._only_first("clock", handle)
        assert clock == self.NVML_CLOCK_SM
        return 1_980  # MHz

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        self._only_first("reasons", handle)
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        self._only_first("processes", handle)
        return [SimpleNamespace(pid=p, usedGpuMemory=held) for p, held in self.processes]

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
        "gpu/sm_clock_hz": 1.98e9,
        "gpu/throttled_by_power_percent": 0,
        "gpu/throttled_by_heat_percent": 0,
        "gpu/throttled_by_hardware_percent": 0,
        "gpu/nvlink_sent_bytes": 7 * 1024,
        "gpu/nvlink_received_bytes": 7 * 1024,
        "gpu/pcie_sent_bytes": 4e9,
        "gpu/pcie_received_bytes": 4e9,
    }


def test_every_counter_is_in_the_documentation(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "_has_device", lambda pid: True)
    library.processes = [(7, 100)]
    read = {counter.replace("_7_", "_N_") for counter, *_ in Devices(lambda pid: True).read()}
    page = (Path(__file__).parents[2] / "docs" / "reference" / "trace-format.md").read_text()
    assert read == set(re.findall(r"`(gpu/\w+)`", page))


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


@pytest.mark.parametrize("renamed", [False, True], ids=["before driver 535", "since"])
@pytest.mark.parametrize(
    ("reasons", "by"),
    [
        (0x0, ""), (0x1, ""), (0x2 | 0x10 | 0x100, ""),  # idle; clocks that somebody chose
        (0x4, "power"), (0x80 | 0x8, "power"), (0x20, "heat"), (0x40 | 0x8, "heat"),
        (0x8, "hardware"), (0x4 | 0x20, "heat power"),
    ],
)  # fmt: skip
def test_why_a_clock_is_low(library: Library, reasons: int, by: str, renamed: bool) -> None:
    library.reasons = reasons
    if renamed:
        library.__dict__.update(
            nvmlDeviceGetCurrentClocksEventReasons=library.nvmlDeviceGetCurrentClocksThrottleReasons,
            nvmlDeviceGetCurrentClocksThrottleReasons=None,
        )
    read = {counter: value for counter, device, value in Devices().read() if device == 0}
    why = {c.split("_")[2]: v for c, v in read.items() if c.startswith("gpu/throttled_by_")}
    assert why == {w: 100 * (w in by.split()) for w in ("power", "heat", "hardware")}


def memory_by_process(devices: Devices) -> dict[str, float]:
    return {c: value for c, _, value in devices.read() if c.startswith("gpu/memory_of_pid_")}


def test_memory_is_told_of_the_processes_of_the_run(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7 and 8 are the run's, of which 8 has no device open: NVML's 8 is of another namespace. 9 is
    of nobody here, and of 7 one instance more has memory, another that nobody can tell."""
    monkeypatch.setattr(nvml, "_has_device", lambda pid: pid != "8")
    devices = Devices(lambda pid: pid in ("7", "8"))
    assert memory_by_process(devices) == {}
    assert devices.held == {}
    library.processes = [(7, 100), (8, 200), (9, 300), (7, 50), (7, None)]
    assert memory_by_process(devices) == {"gpu/memory_of_pid_7_bytes": 150}
    assert devices.held == {"7": [0]}
    library.processes = []
    assert memory_by_process(devices) == {}
    assert devices.held == {"7": [0]}, "it was used"


def test_the_agent_says_who_had_memory_and_on_which_device(
    library: Library, monkeypatch: pytest.MonkeyPatch, run_path: Path
) -> None:
    """Of two devices the job uses one, which nobody named. A pid of nobody is left out."""
    monkeypatch.setattr(nvml, "_has_device", lambda pid: True)
    learner, watching = Recorder(str(run_path)), Recorder(str(run_path))
    learner.describe(role="learner")
    watching.describe(role="agent")
    library.processes = [(os.getpid(), 100), (2**22 + 1, 500)]
    agent = Agent(str(run_path), watching)
    agent.stop()
    agent.work()  # what it does at last
    run = rltrace.open_run(run_path)
    read = run.sql("SELECT device, value FROM samples WHERE counter LIKE 'gpu/memory_of_pid_%'")
    assert read.fetchall() == [(0, 100)]
    (told,) = (one.facts for one in run.processes if one.role == "agent")
    assert (told["devices"], told["uuids"]) == (["Stand-in"] * 2, ["GPU-0000", "GPU-1000"])
    assert told["held"] == {str(os.getpid()): [0]}
    assert count_devices(run).count == 1
    shown = run.sql("SELECT DISTINCT device FROM samples WHERE device >= 0").fetchall()
    assert shown == [(0,)], "the other is somebody else's"


def test_a_process_without_a_device_has_none_open() -> None:
    assert not nvml._has_device(str(os.getpid()))
    assert not nvml._has_device(str(2**22 + 1))  # there is none: more than a kernel counts to


def test_what_no_driver_should_say_is_left_out_for_good(library: Library) -> None:
    """A number of a kind that the library does not know, a memory that is no number, no UUID."""
    field = SimpleNamespace(nvmlReturn=0, valueType=99, value=None)
    library.__dict__.update(
        nvmlDeviceGetFieldValues=lambda handle, wanted: [field for _ in wanted],
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=None, total=None),
        nvmlDeviceGetUUID=None,
    )
    devices = Devices()
    for _ in range(2):
        read = {counter for counter, device, _ in devices.read() if device == 0}
        assert {c for c in read if "bytes" in c} == set()
        assert {"gpu/power_watts", "gpu/busy_percent"} < read
    assert (devices.names(), devices.uuids()) == (["Stand-in"] * 2, [])


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
