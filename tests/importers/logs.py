"""Logs written by hand where a test is about one detail, and what becomes of a log."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import rltrace
from rltrace.testing.inside.analysis import Summary, summarize
from rltrace.testing.inside.importers import event_files, read_run, write_run
from rltrace.testing.inside.run import Imported, import_log
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.cli.conftest import invoke

FIXTURES = Path(__file__).parent / "fixtures"

TIMING = {"gen": 30.0, "reward": 2.0, "old_log_prob": 5.0, "update_actor": 20.0}


def metrics(step_s: float = 60.0, **timing: float) -> dict[str, float]:
    """What verl's legacy trainer logs for a step of `step_s` seconds."""
    named = {f"timing_s/{name}": value for name, value in {**TIMING, **timing}.items()}
    loop = {"timing_s/agent_loop/generate_sequences/mean": 12.5, "timing_s/update_weights": 1.0}
    return {**loop, **named, "timing_s/step": step_s, "response_length/mean": 40.0}


def lines(*objects: Any) -> str:
    """Each as JSON, a line each."""
    return "".join(f"{json.dumps(each)}\n" for each in objects)


def json_lines(path: Path, *steps: tuple[int, dict[str, float]]) -> Path:
    """A log of verl's file logger."""
    path.write_text(lines(*({"step": step, "data": data} for step, data in steps)), "utf-8")
    return path


def event(tag: bytes, value: float, step: int, time_s: float | None = None) -> bytes:
    """An event of one scalar, as a record of an event file."""
    scalar = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(scalar)]) + scalar
    time = b"" if time_s is None else b"\x09" + struct.pack("<d", time_s)
    return framed(time + b"\x10" + varint(step) + b"\x2a" + bytes([len(summary)]) + summary)


def varint(number: int) -> bytes:
    """A whole number as protobuf writes it."""
    number &= (1 << 64) - 1
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def framed(message: bytes) -> bytes:
    """A message as a record of an event file."""
    head = struct.pack("<Q", len(message))
    sums = [struct.pack("<I", event_files.checksum(part)) for part in (head, message)]
    return head + sums[0] + message + sums[1]


def chrome_event(name: str, start_us: float, length_us: float, **more: Any) -> dict[str, Any]:
    """A complete event of Chrome's."""
    return {"ph": "X", "name": name, "ts": start_us, "dur": length_us, "pid": 1, "tid": 7, **more}


def otlp(start_ns: int, length_ns: int, *attributes: Any, **columns: Any) -> dict[str, Any]:
    """An export of one of OpenTelemetry's spans."""
    span = {
        "traceId": "ab" * 16, "name": "generate", "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(start_ns + length_ns), "attributes": attributes, **columns,
    }  # fmt: skip
    about = [{"key": "service.name", "value": {"stringValue": "trainer"}}]
    scopes = [{"scope": {"name": "x"}, "spans": [span]}]
    return {"resourceSpans": [{"resource": {"attributes": about}, "scopeSpans": scopes}]}


def imported(framework: str, log: Path, folder: Path) -> tuple[Imported, Run, Summary]:
    """What importing says, the run, and what is told of it."""
    done = import_log(framework, log, folder / "run")
    run = rltrace.open_run(done.path)
    return done, run, summarize(run)


def tau(summary: Summary) -> dict[str, float]:
    """The mean seconds of each stage."""
    return {row.name: row.tau_s.mean for row in summary.stages}


def reasons(summary: Summary) -> dict[str, str]:
    """Why a stage is not known."""
    return {unseen.name: unseen.reason for unseen in summary.coverage.unseen}


# --- what is pasted of a console

TASK = "(TaskRunner pid=4711) "


def verl(step: int, gen_s: float = 50.0, before: str = TASK, **more: float) -> str:
    """A step's line as verl 0.7 prints it, of 42 s and what it generates for."""
    named = {name.replace("__", "/"): value for name, value in more.items()}
    figures = {
        "actor/entropy": 0.3141592653589793, "actor/pg_loss": -1.2004e-05,
        "perf/max_memory_allocated_gb": 61.24, "training/global_step": step,
        "training/rollout_probs_diff_mean": 0.0034912109375, "critic/score/mean": 0.41,
        "response_length/mean": 812.5, "response_length/max": 2048.0,
        "response_length/clip_ratio": 0.05, "timing_s/agent_loop/generate_sequences/min": 20.0,
        "timing_s/agent_loop/generate_sequences/max": 0.98 * gen_s,
        "timing_s/agent_loop/slowest/response_length": 2048, "timing_s/gen": gen_s,
        "timing_s/reward": 0.00010192, "timing_s/old_log_prob": 6.017238473892212,
        "timing_s/ref": 5.0, "timing_s/update_weights": 1.0, "timing_s/update_actor": 30.0,
        "timing_s/step": gen_s + 42.0, "perf/throughput": 900.0871, **named,
    }  # fmt: skip
    return f"{before}step:{step} - " + " - ".join(f"{k}:{v}" for k, v in figures.items())


RAISED = f"""{TASK}Traceback (most recent call last):
{TASK}  File "/app/verl/trainer/ppo/ray_trainer.py", line 1100, in fit
{TASK}    raise ValueError("no batch")
{TASK}ValueError: no batch
"""


def written(folder: Path, *lines: str) -> Path:
    log = folder / "train.log"
    log.write_text("".join(line if line.endswith("\n") else f"{line}\n" for line in lines), "utf-8")
    return log


def report(folder: Path, *lines: str) -> Any:
    """The report on a log of these lines, as JSON."""
    write_run(folder / "run", read_run(written(folder, *lines)), "test")
    return json.loads(invoke("report", folder / "run", "--json").output)
