"""Numbers that no run has, wherever a log has them, cost what they stand for, and never the import.

JSON knows NaN and whole numbers of any size; a damaged or foreign file has any bytes at all.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.importers.fitting import ns, whole
from rltrace.testing.inside.importers import checksum
from rltrace.testing.inside.run import Imported, import_log
from rltrace.testing.inside.trace import RltraceError

ODD: tuple[Any, ...] = (
    float("nan"), float("inf"), 1e300, -5, 10**30, 2**63, True, None, "²", "x", [1], {"a": 1},
)  # fmt: skip
BASE_S = 1_800_000_000.0
MAPPING = "[stages]\n'generate' = 'rollout'\n"

CHROME = {
    "ph": "X", "name": "generate", "ts": 1.0, "dur": 5.0, "pid": 1, "tid": 1, "args": {"step": 3},
}  # fmt: skip
TITAN = {
    "rank": 0, "source": "trainer", "step": 1, "log_type_name": "optim_step_end", "value": 2.0,
    "time_us": int(BASE_S * 1e6), "tid": 3,
}  # fmt: skip
PHASE = {"name": "generate", "t0": BASE_S, "t1": BASE_S + 5, "rank": 0, "role": "rollout_manager"}
SESSION = {
    "task_id": 1, "session_id": 5, "rank": 0, "status": "accepted", "submit_ts": BASE_S,
    "finalized_ts": BASE_S + 4, "toolcall_s": 1.0,
    "phases": {"generate": [{"start_ts": BASE_S, "end_ts": BASE_S + 1}]},
}  # fmt: skip
EVENT = {**CHROME, "name": "train.ppo_update", "args": {"global_step": 7}}


def lines(*objects: Any) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in objects)


def span(**columns: Any) -> dict[str, Any]:
    """One of OpenTelemetry's."""
    start_ns = int(BASE_S * 1e9)
    known = {
        "traceId": "ab", "name": "generate", "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(start_ns + 5), **columns,
    }  # fmt: skip
    return {"resourceSpans": [{"scopeSpans": [{"spans": [known]}]}]}


def imported(tmp_path: Path, framework: str, text: str | bytes, name: str = "log") -> Imported:
    log, mapping = tmp_path / name, tmp_path / "map.toml"
    log.write_bytes(text if isinstance(text, bytes) else text.encode())
    mapping.write_text(MAPPING)
    mapped = mapping if framework in ("chrome", "otlp") else None
    return import_log(framework, log, tmp_path / "run", mapped)


@pytest.mark.parametrize(
    ("framework", "whole_one"),
    [("chrome", CHROME), ("torchtitan", TITAN), ("miles", PHASE), ("areal", SESSION),
     ("areal", EVENT)],
    ids=["chrome", "torchtitan", "miles", "sessions", "events"],
)  # fmt: skip
def test_lines_with_odd_values_leave_the_others(
    tmp_path: Path, framework: str, whole_one: dict[str, Any]
) -> None:
    keys = whole_one.keys() - {"ph"}
    odd = [{**whole_one, key: value} for value in ODD for key in sorted(keys)]
    odd += [
        {**whole_one, "args": {"step": value, "global_step": value}, "session_id": 8,
         "phases": {"generate": [value, {"start_ts": value, "end_ts": value}]}}
        for value in ODD
    ]  # fmt: skip
    run = rltrace.open_run(imported(tmp_path, framework, lines(whole_one, *odd)).path)
    found = "SELECT count(*) > 0, min(start_ns) > 0, bool_and(start_ns <= end_ns) FROM spans"
    assert run.sql(found).fetchall() == [(True, True, True)]


def test_exported_spans_with_odd_values_leave_the_others(tmp_path: Path) -> None:
    keys = ("traceId", "startTimeUnixNano", "endTimeUnixNano")
    odd = [span(**{key: value}) for value in ODD for key in keys]
    odd += [
        span(attributes=[{"key": key, "value": {"intValue": value}}, value])
        for value in ODD
        for key in ("step", "thread.id")
    ]
    done = imported(tmp_path, "otlp", lines(span(), *odd))
    steps = "SELECT DISTINCT step FROM spans"
    assert rltrace.open_run(done.path).sql(steps).fetchall() == [(None,)]


@pytest.mark.parametrize(
    ("framework", "metrics"),
    [
        ("verl", {"timing_s/step": 10.0, "timing_s/gen": 3.0}),
        ("openrlhf", {"timing/step_total": 10.0, "timing/generation": 3.0}),
        ("trl", {"step_time": 10.0, "completions/mean_length": 3.0}),
        ("slime", {"perf/step_time": 10.0, "perf/actor_train_time": 3.0}),
    ],
)
def test_steps_that_no_run_has_are_left_out(
    tmp_path: Path, framework: str, metrics: dict[str, float]
) -> None:
    odd = ({"step": step, **metrics} for step in (10**30, 2**40, -5, 1e300, 1.5))
    done = imported(tmp_path, framework, lines({"step": 4, **metrics}, *odd), "log.jsonl")
    assert (done.steps, done.first_step) == (1, 4)
    assert "skipped: 4 records of steps that no run has" in done.log_notes


@pytest.mark.parametrize("digits", [19, 5000])
def test_a_console_s_step_that_no_run_has_is_left_out(tmp_path: Path, digits: int) -> None:
    line = "step:{} - timing_s/gen:3.0 - timing_s/step:9.0\n"
    done = imported(tmp_path, "verl", line.format(4) + line.format("9" * digits))
    assert (done.steps, done.first_step) == (1, 4)


def test_json_that_is_nested_too_deep_is_no_line(tmp_path: Path) -> None:
    step = {"perf/step_time": 10.0, "perf/actor_train_time": 3.0}
    deep = '{"a":' + "[" * 200_000 + "\n"
    text = lines({"step": 1, **step}) + deep + lines({"step": 2, **step})
    done = imported(tmp_path, "slime", text, "log.jsonl")
    assert done.steps == 2
    assert "skipped: line 2 is no JSON" in done.log_notes


def test_steps_that_no_clock_can_have_shown_together_are_one_sentence(tmp_path: Path) -> None:
    text = lines(*({"step": n, "timing_s/step": 9e7, "timing_s/gen": 9e7} for n in range(100)))
    with pytest.raises(RltraceError, match="longer than any clock can have shown"):
        imported(tmp_path, "verl", text, "log.jsonl")
    assert not (tmp_path / "run").exists()


def event(time_s: float, step: int, tag: bytes, value: float) -> bytes:
    """A record of an event file."""
    scalar = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(scalar)]) + scalar
    body = b"\x09" + struct.pack("<d", time_s) + b"\x10" + varint(step)
    body += b"\x2a" + bytes([len(summary)]) + summary
    size = struct.pack("<Q", len(body))
    parts = (size, struct.pack("<I", checksum(size)), body, struct.pack("<I", checksum(body)))
    return b"".join(parts)


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def test_an_event_s_odd_time_is_unknown_and_its_odd_step_costs_the_event(tmp_path: Path) -> None:
    tag = b"timing_s/step"
    times = (1e300, float("inf"), float("nan"), -BASE_S)
    text = event(BASE_S, 1, tag, 3.0)
    text += b"".join(event(time_s, n, tag, 3.0 + n) for n, time_s in enumerate(times, 2))
    text += event(BASE_S, -1, tag, 5.0)
    done = imported(tmp_path, "verl", text, "events.out.tfevents.1")
    assert (done.steps, done.first_step, done.last_step) == (5, 1, 5)
    assert "skipped: 1 record of steps that no run has" in done.log_notes


@pytest.mark.parametrize(
    ("value", "as_number", "as_ns"),
    [
        (3, 3, 3_000_000_000),
        (3.0, 3, 3_000_000_000),
        (2.5, None, 2_500_000_000),
        (-1, None, -1_000_000_000),
        (2**31, None, 2**31 * 10**9),
        (1e10, None, None),
        (10**400, None, None),
        (float("nan"), None, None),
        (True, None, None),
        ("3", None, None),
    ],
)
def test_what_columns_can_hold(value: Any, as_number: int | None, as_ns: int | None) -> None:
    assert (whole(value), ns(value)) == (as_number, as_ns)
