"""What is said of NVML's readings: here, where there is mostly no device, and of readings that are
right, or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import nvml
from benchmarks.gpu.findings import MISSED, OK, SKIPPED, Findings, python, run_child
from benchmarks.gpu.nvml_calls import calls_of, tried
from benchmarks.gpu.nvml_job import WINDOWS
from rltrace.testing.handmade_runs import process, rows, run_of
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.patience import PATIENCE_S

GIB = 2**30
JOB = {"pid": 7, "reserved_bytes": 4 * GIB, "device_used_bytes": 5 * GIB, "listed": [],
       "tflops": 1.0}  # fmt: skip


def test_without_a_device_it_says_what_it_could_not_look_at(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    run_child(python("benchmarks.gpu.nvml", "--cpu", "--json", found), PATIENCE_S).checked()
    told = json.loads(found.read_text())
    assert told["errors"] == {}
    how = {row["what"]: row["how"] for row in told["rows"]}
    assert how["given no device"] == OK
    assert {how[what] for what in ("busy shares", "memory", "energy")} == {SKIPPED}


def job_of(path: Path, **readings: Any) -> Run:
    """The run of the job: windows of 5 s from second 2 on, and readings of each second from its
    start on."""
    spans = [("train" if n != 1 else "wait", 5.0 * n, 5.0 * n + 5) for n in range(3)]
    learner, agent = process("learner"), process("agent")
    for (stage, start_s, end_s), name in zip(spans, WINDOWS, strict=True):
        made = process("learner", (stage, start_s, end_s)).spans[0]
        learner.spans.append((*made[:2], name, *made[3:]))
    seconds = [float(s) for s in range(18)]
    for counter, given in readings.items():
        values = [float(given(s)) for s in seconds]
        rows(agent, "samples", time_s=seconds, counter=f"gpu/{counter}", device=0, value=values)
    return run_of(path, learner, agent)


def busy(second: float) -> bool:
    return second < 5.5 or 10.5 <= second < 15.5


RIGHT: dict[str, Any] = {
    "busy_percent": lambda s: 100.0 * busy(s),
    "memory_used_bytes": lambda s: 5.2 * GIB,
    "memory_total_bytes": lambda s: 80.0 * GIB,
    "memory_of_pid_7_bytes": lambda s: 4.5 * GIB,
    "power_watts": lambda s: 400.0,
    "energy_joules": lambda s: 1e6 + 400.0 * s,
    "sm_clock_hz": lambda s: 1.9e9,
    "throttled_by_power_percent": lambda s: 100.0 * busy(s),
    "throttled_by_heat_percent": lambda s: 0.0,
    "throttled_by_hardware_percent": lambda s: 0.0,
    "pcie_sent_bytes": lambda s: 1e6 * s,
}
LOOKED_AT = (
    nvml._busy,
    nvml._memory,
    nvml._memory_of_process,
    nvml._energy,
    nvml._others,
    nvml._report,
)


def missed(run: Run, **told: Any) -> set[str]:
    findings = Findings("nvml", 60.0)
    for look in LOOKED_AT:
        look(findings, run, JOB | told)
    assert {row.how for row in findings.rows} <= {OK, MISSED, SKIPPED}
    return {row.what for row in findings.rows if row.how != OK}


def test_readings_that_are_right_are_fine(tmp_path: Path) -> None:
    assert missed(job_of(tmp_path, **RIGHT)) == set()


@pytest.mark.parametrize(
    ("counter", "read", "what"),
    [
        ("busy_percent", lambda s: 100.0, {"busy: idle"}),
        ("busy_percent", lambda s: 50.0, {f"busy: {window}" for window in WINDOWS}),
        ("memory_used_bytes", lambda s: 1.0 * GIB, {"memory of the device"}),
        ("memory_of_pid_7_bytes", lambda s: 3.0 * GIB, {"memory of the process"}),
        ("memory_of_pid_7_bytes", lambda s: 40.0 * GIB, {"memory of the process"}),
        ("energy_joules", lambda s: 0.4 * s, {"energy against power"}),
        ("sm_clock_hz", lambda s: 1.9e3, {"SM clock"}),
    ],
)
def test_readings_that_are_wrong_are_missed(
    tmp_path: Path, counter: str, read: Any, what: set[str]
) -> None:
    assert missed(job_of(tmp_path, **{**RIGHT, counter: read})) == what


def test_memory_of_another_namespace_is_not_held_against_the_run(tmp_path: Path) -> None:
    readings = {k: v for k, v in RIGHT.items() if not k.startswith("memory_of_pid_")}
    run = job_of(tmp_path, **readings)
    assert missed(run, listed=[{"pid": 91, "bytes": 5 * GIB}]) == {"memory of the process"}
    findings = Findings("nvml", 60.0)
    nvml._memory_of_process(findings, run, JOB | {"listed": [{"pid": 91}]})
    assert [row.how for row in findings.rows] == [SKIPPED]
    nvml._memory_of_process(findings, run, JOB | {"listed": [{"pid": 7}]})
    assert [row.how for row in findings.rows][1] == MISSED, "NVML told it, and it was not recorded"


def test_a_call_that_is_unsupported_says_so() -> None:
    class Library:
        """Supports one call."""

        NVML_CLOCK_SM = 1

        def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
            return 100_000 + handle

    told = {name: tried(call) for name, call in calls_of(Library(), 5).items()}
    power = told.pop("nvmlDeviceGetPowerUsage")
    assert power["gives"] == "100005"
    assert power["us"] > 0
    assert len(told) == 11
    assert all(set(one) == {"error"} for one in told.values())
