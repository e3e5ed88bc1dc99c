"""NVML on this machine: what each call gives and takes, and whether a run's readings are right.

    python -m benchmarks.gpu.nvml [--cpu] [--json FILE]

A traced job is busy for 5 s, idle for 5 s and busy for 5 s, with 4 GiB of its own. Its run has to
say so: the busy share of each window, the memory of the process against torch's own figure, the
energy counter against the integral of the power. Jobs that are given the device by its number, by
its UUID, by the beginning of that, or that are given none, have to count what they were given.
Where there is no device (`--cpu`) it says what it could not look at.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import rltrace
from benchmarks.gpu.findings import Findings, print_table, python, run_child, wrapped
from benchmarks.gpu.nvml_job import WINDOWS
from rltrace.testing.inside.analysis import count_devices, device_load
from rltrace.testing.inside.trace import OpenedRun as Run

LIMIT_S = 44.0
"""It takes half a minute; more where torch is read from a cold disk."""
SETTLED_S = 1.5
"""What NVML's figures are means over, and the second until the agent reads again."""
_CONTEXT_BYTES = 2 * 2**30
"""CUDA's own of a process, that torch does not count: some hundred MB, with its libraries."""
_SHORT = "import time, rltrace\nwith rltrace.step(0), rltrace.span('train'): time.sleep(3.5)"


def calls(findings: Findings) -> dict[str, Any]:
    """What NVML says; empty where it could not be asked."""
    told: dict[str, Any] = {}
    with findings.part("NVML's calls"):
        child = run_child(python("benchmarks.gpu.nvml_calls"), 20.0).checked()
        told = json.loads(child.out.splitlines()[-1])
        findings.figures["nvml"] = told
    lines = [
        (name, f"{one['us']:.0f} µs", one["gives"][:90]) if "us" in one
        else (name, "", f"unsupported: {one['error'][:78]}")
        for name, one in told.get("calls", {}).items()
    ]  # fmt: skip
    if lines:
        print_table(("call", "median of 50", "gives"), lines)
        print()
    return told


def duty(findings: Findings, folder: Path) -> None:
    """The job of known duty, and what its run says of it."""
    with findings.part("the job"):
        run_path, out = folder / "duty", folder / "duty.json"
        job = python("benchmarks.gpu.nvml_job", "--out", out)
        child = run_child(wrapped(run_path, job), findings.left_s - 4).checked()
        told = json.loads(out.read_text())
        findings.figures["job"] = {**told, "took_s": child.took_s}
        run = rltrace.open_run(run_path)
        count = count_devices(run)
        findings.check("the job's devices", (count.kind, count.count) == ("GPU", 1)
                       or count.count == told["devices"],
                       f"{count.count} {count.kind}, {count.name}: {count.source}")  # fmt: skip
        for looked_at in (_busy, _memory, _memory_of_process, _energy, _others, _report):
            with findings.part(looked_at.__name__.strip("_").replace("_", " ")):
                looked_at(findings, run, told)


def _readings(run: Run, counter: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Seconds of the run and values of a counter. Shape (readings, 2)."""
    rows = run.sql(
        f"SELECT (time_ns - (SELECT min(start_ns) FROM spans)) / 1e9, value FROM samples "
        f"WHERE counter = '{counter}' ORDER BY 1"
    ).fetchall()
    return np.array(rows, np.float64).reshape(-1, 2)


def _windows(run: Run) -> dict[str, tuple[float, float]]:
    """When each window was, in seconds of the run."""
    rows = run.sql(
        "SELECT name, (start_ns - first) / 1e9, (end_ns - first) / 1e9 FROM spans, "
        "(SELECT min(start_ns) AS first FROM spans) WHERE stage <> 'step'"
    ).fetchall()
    found = {name: (start, end) for name, start, end in rows}
    return {window: found[window] for window in WINDOWS}


def _busy(findings: Findings, run: Run, told: dict[str, Any]) -> None:
    readings = _readings(run, "gpu/busy_percent")
    for window, (start, end) in _windows(run).items():
        within = (readings[:, 0] >= start + SETTLED_S) & (readings[:, 0] < end)
        mean = float(readings[within, 1].mean()) if within.any() else float("nan")
        holds = mean <= 5 if window == "idle" else mean >= 95
        found = f"{mean:.1f} % in {within.sum()} readings, {SETTLED_S} s after it began"
        findings.check(f"busy: {window}", bool(holds), found)
    gaps = np.diff(readings[:, 0])
    found = f"every {np.median(gaps):.2f} s, {gaps.max():.2f} s at most"
    findings.check("readings come once a second", bool(np.median(gaps) < 1.2), found)


def _memory(findings: Findings, run: Run, told: dict[str, Any]) -> None:
    used, total = (_readings(run, f"gpu/memory_{k}_bytes")[:, 1].max() for k in ("used", "total"))
    off = abs(used - told["device_used_bytes"]) / 2**30
    found = f"{used / 2**30:.2f} of {total / 2**30:.1f} GiB; CUDA tells {off:.2f} GiB other"
    findings.check("memory of the device", told["reserved_bytes"] <= used and off < 2, found)


def _memory_of_process(findings: Findings, run: Run, told: dict[str, Any]) -> None:
    what, pid, told_by_nvml = "memory of the process", told["pid"], told["listed"]
    readings = _readings(run, f"gpu/memory_of_pid_{pid}_bytes")
    pids = [one["pid"] for one in told_by_nvml] if isinstance(told_by_nvml, list) else []
    if not len(readings) and pid not in pids:
        findings.skip(what, f"this process is {pid} here, and NVML tells {told_by_nvml}")
        return
    most = readings[:, 1].max(initial=0)
    more = most - told["reserved_bytes"]
    found = f"{most / 2**30:.2f} GiB, {more / 2**20:.0f} MiB above what torch has reserved"
    findings.check(what, 0 <= more <= _CONTEXT_BYTES, found)
    others = run.sql("SELECT DISTINCT counter FROM samples WHERE counter LIKE 'gpu/memory_of_%' "
                     f"AND counter NOT LIKE '%_{pid}_%'").fetchall()  # fmt: skip
    findings.check("memory of no other process", not others, f"{len(others)} others")


def _energy(findings: Findings, run: Run, told: dict[str, Any]) -> None:
    energy, power = _readings(run, "gpu/energy_joules"), _readings(run, "gpu/power_watts")
    start, end = max(energy[0, 0], power[0, 0]), min(energy[-1, 0], power[-1, 0])
    counted = np.interp(end, *energy.T) - np.interp(start, *energy.T)
    summed = float(np.sum((power[1:, 1] + power[:-1, 1]) / 2 * np.diff(power[:, 0])))
    found = f"{counted:,.0f} J counted, {summed:,.0f} J of power over {end - start:.1f} s"
    findings.check("energy against power", abs(counted / summed - 1) < 0.1, found)
    (load,) = _loads(run)
    found = f"{load.joules:,.0f} J at {load.mean_power_w:.0f} W"
    findings.check("energy in the analysis", abs(load.joules / counted - 1) < 0.1, found)


def _others(findings: Findings, run: Run, told: dict[str, Any]) -> None:
    """What no job can be held against: it is there, and can be what it says."""
    clock = _readings(run, "gpu/sm_clock_hz")[:, 1] / 1e6
    found = f"{clock.min(initial=0):.0f} to {clock.max(initial=0):.0f} MHz"
    findings.check("SM clock", bool(len(clock)) and 100 < clock.max() < 4000, found)
    shares = [f"{why} {_readings(run, f'gpu/throttled_by_{why}_percent')[:, 1].mean():.0f} %"
              for why in ("power", "heat", "hardware")]  # fmt: skip
    findings.check("throttled", not any("nan" in one for one in shares), ", ".join(shares))
    moved = [f"{link} {np.ptp(_readings(run, f'gpu/{link}_bytes')[:, 1]) / 1e6:.1f} MB"
             for link in ("pcie_sent", "pcie_received", "nvlink_sent")
             if len(_readings(run, f"gpu/{link}_bytes"))]  # fmt: skip
    findings.check("links", bool(moved), ", ".join(moved) or "no counter of them is supported")


def _report(findings: Findings, run: Run, told: dict[str, Any]) -> None:
    page = run.path / "report.html"
    run_child(python("rltrace", "report", run.path, "--html", page), 15.0).checked()
    loads = _loads(run)
    findings.figures["loads"] = [{**vars(load), "busy": load.busy.tolist()} for load in loads]
    in_page = "GPU 0" in page.read_text() and "held by" in page.read_text()
    held = loads[0].memory_bytes_by_role
    said = f"busy {loads[0].busy_share:.2f}, held {held}, {told['tflops']:.0f} TFLOP/s"
    findings.check("the report's page", len(loads) == 1 and in_page, said)


def _loads(run: Run) -> Any:
    bounds = "SELECT min(time_ns), max(time_ns) FROM samples"
    since_ns, until_ns = run.sql(bounds).fetchall()[0]
    return device_load(run, since_ns, until_ns, 10)


def given(findings: Findings, folder: Path, uuid: str | None, count: int) -> None:
    """Short jobs that are given the first device, by each way to name it, or none."""
    ways = {"none": ("", 0)}
    if count:
        ways |= {"its number": ("0", 1)}
    if uuid:
        ways |= {"its UUID": (uuid, 1), "the beginning of its UUID": (uuid[:14], 1)}
    with ThreadPoolExecutor(len(ways)) as pool:
        for name, (visible, held) in ways.items():
            pool.submit(_given, findings, folder / name.replace(" ", "-"), name, visible, held)


def _given(findings: Findings, run_path: Path, name: str, visible: str, held: int) -> None:
    what = f"given by {name}" if held else "given no device"
    with findings.part(what):
        environment = {"CUDA_VISIBLE_DEVICES": visible}
        command = wrapped(run_path, [sys.executable, "-c", _SHORT])
        run_child(command, min(15.0, findings.left_s), environment).checked()
        run = rltrace.open_run(run_path)
        found, read = count_devices(run), sorted(load.device for load in _loads(run))
        is_right = (found.kind, found.count, read) == ("GPU", held, [0])
        if not held:
            is_right = found.kind == "core"
        said = f"{found.count} {found.kind} ({found.source}), readings of GPU {read or 'none'}"
        findings.check(what, is_right, said)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Are NVML's readings in a run right?")
    parser.add_argument("--cpu", action="store_true", help="a machine without a device")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    findings = Findings("nvml", LIMIT_S)
    told = calls(findings)
    why = told.get("no_gpu", "NVML could not be asked")
    count = len(told.get("names", []))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        short = pool.submit(given, findings, Path(folder), next(iter(told.get("uuids", [])), None),
                            count)  # fmt: skip
        if count and not asked.cpu:
            duty(findings, Path(folder))
        elif asked.cpu:
            for what in ("NVML's calls", "busy shares", "memory", "energy", "throttling"):
                findings.skip(what, f"{count} devices, --cpu" if count else why)
        else:
            findings.check("a device", False, f"{why}: --cpu is for a machine without")
        short.result()
        return findings.finish(asked.json)


if __name__ == "__main__":
    sys.exit(main())
