"""Logs with times of their own: traces of anything by a mapping, and frameworks' own traces.

Formats as their writers document them; what a run has of a stage is what the file says.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rltrace
from rltrace.cli import main
from rltrace.testing.inside.analysis import is_laid_out
from rltrace.testing.inside.run import import_log
from rltrace.testing.inside.trace import WRONG_USAGE, RltraceError

BASE_NS = 1_800_000_000_000_000_000
MAPPING = """
framework = "my-rl"
placement = "colocated"
[stages]
"ProfilerStep#*" = "step"
"generate*" = "rollout"
"update" = "train"
[roles]
"trainer*" = "learner"
"""


@pytest.fixture
def mapping(tmp_path: Path) -> Path:
    """A mapping file."""
    path = tmp_path / "map.toml"
    path.write_text(MAPPING, "utf-8")
    return path


def event(name: str, start_us: float, length_us: float, **more: Any) -> dict[str, Any]:
    """A complete event of Chrome's."""
    return {"ph": "X", "name": name, "ts": start_us, "dur": length_us, "pid": 1, "tid": 7, **more}


EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "trainer 0"}},
    event("ProfilerStep#3", 100.0, 1000.0),
    event("generate_batch", 100.0, 600.0),
    event("aten::mm", 120.0, 10.0),
    {"ph": "B", "name": "update", "ts": 700.0, "pid": 1, "tid": 7},
    {"ph": "E", "name": "update", "ts": 1000.0, "pid": 1, "tid": 7},
    {"ph": "b", "name": "generate_one", "cat": "r", "id": 9, "ts": 200.0, "pid": 1, "tid": 8},
    {"ph": "e", "name": "generate_one", "cat": "r", "id": 9, "ts": 250.0, "pid": 1, "tid": 8},
]


def rows(run: Any, what: str) -> list[Any]:
    """The rows of a query."""
    return [tuple(row) for row in run.sql(what).fetchall()]


def spans(path: str) -> list[Any]:
    """Name, stage, step, length (ns) of the spans, in the order of time."""
    what = "SELECT name, stage, step, end_ns - start_ns FROM spans ORDER BY start_ns, end_ns DESC"
    return rows(rltrace.open_run(path), what)


@pytest.mark.parametrize("form", ["object", "array", "lines", "cut", "gzip"])
def test_a_chrome_trace_is_read_in_every_form_it_comes_in(
    tmp_path: Path, mapping: Path, form: str
) -> None:
    whole = json.dumps({"baseTimeNanoseconds": BASE_NS, "traceEvents": EVENTS})
    text = {
        "object": whole,
        "array": json.dumps(EVENTS),
        "lines": "\n".join(map(json.dumps, EVENTS)),
        "cut": json.dumps({"traceEvents": EVENTS})[:-40],
        "gzip": whole,
    }[form]
    log = tmp_path / "trace.json"
    log.write_bytes(gzip.compress(text.encode()) if form == "gzip" else text.encode())
    done = import_log("chrome", log, tmp_path / "run", mapping)
    expected = [
        ("step", "step", 3, 1_000_000),
        ("generate_batch", "rollout", None, 600_000),
        ("generate_one", "rollout", None, 50_000),
        ("update", "train", None, 300_000),
    ]
    if form == "cut":  # in the last event, the end of one of the spans
        expected.remove(("generate_one", "rollout", None, 50_000))
        assert any("no whole object" in note for note in done.log_notes)
    assert sorted(spans(done.path), key=str) == sorted(expected, key=str)
    assert "1 spans of names that are not mapped: left out" in done.log_notes
    run = rltrace.open_run(done.path)
    assert [process.role for process in run.processes] == ["learner"]
    if form in ("object", "gzip"):
        assert rows(run, "SELECT min(start_ns) FROM spans") == [(BASE_NS + 100_000,)]
    else:
        assert any("no date" in note for note in done.log_notes)


def otlp(name: str, start_ns: int, length_ns: int, **attributes: str) -> dict[str, Any]:
    """An export of one span."""
    pairs = [{"key": key, "value": {"intValue": value}} for key, value in attributes.items()]
    span = {
        "traceId": "ab" * 16,
        "name": name,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(start_ns + length_ns),
        "attributes": pairs,
    }
    about = [{"key": "service.name", "value": {"stringValue": "trainer"}}]
    scopes = [{"scope": {"name": "x"}, "spans": [span]}]
    return {"resourceSpans": [{"resource": {"attributes": about}, "scopeSpans": scopes}]}


def test_exported_spans_of_opentelemetry_keep_their_times(tmp_path: Path, mapping: Path) -> None:
    log = tmp_path / "spans.jsonl"
    exports = [
        otlp("ProfilerStep#4", BASE_NS, 9000),
        otlp("generate", BASE_NS, 5000, step="4"),
        otlp("generate", 10**40, 5000, step="4"),
        otlp("unknown", BASE_NS, 10),
    ]
    log.write_text("\n".join(map(json.dumps, exports)) + '\n{"resourceSpans": [', "utf-8")
    done = import_log("otlp", log, tmp_path / "run", mapping)
    assert spans(done.path) == [("step", "step", 4, 9000), ("generate", "rollout", 4, 5000)]
    assert done.framework == "my-rl"
    assert any("no whole object" in note for note in done.log_notes)


def titan(name: str, end_us: int, took_ms: float, step: int, source: str) -> dict[str, Any]:
    """A line of torchtitan's structured log."""
    return {
        "rank": 0, "source": source, "step": step, "log_type_name": name, "value": took_ms,
        "time_us": end_us, "tid": 3, "pid": 9, "host_name": "h",
    }  # fmt: skip


def test_torchtitan_s_spans_end_where_their_line_says(tmp_path: Path) -> None:
    end_us = BASE_NS // 1000
    folder = tmp_path / "structured_logs"
    folder.mkdir()
    controller = [
        titan("train_step_start", end_us - 5000, 0.0, 2, "controller"),
        titan("forward_backward_end", end_us - 1000, 2.0, 2, "controller"),
        titan("train_step_end", end_us, 5.0, 2, "controller"),
    ]
    trainer = [titan("forward_backward_end", end_us - 1000, 1.5, 2, "trainer")]
    for name, lines in (("controller", controller), ("trainer", trainer)):
        text = "\n".join(map(json.dumps, lines))
        (folder / f"{name}.global_rank_0.x.jsonl").write_text(f"{text}\n", "utf-8")
    done = import_log("torchtitan", folder, tmp_path / "run")
    assert not is_laid_out(rltrace.open_run(done.path))
    assert spans(done.path) == [
        ("step", "step", 2, 5_000_000),
        ("forward_backward", "wait", 2, 2_000_000),  # the controller only waits for its actors
        ("forward_backward", "train", 2, 1_500_000),
    ]
    run = rltrace.open_run(done.path)
    assert rows(run, "SELECT max(end_ns) FROM spans") == [(end_us * 1000,)]


def test_miles_phases_are_spans_and_steps_go_from_rollout_to_rollout(tmp_path: Path) -> None:
    base = BASE_NS / 1e9

    def phase(name: str, start: float, end: float, role: str, rank: int = 0) -> dict[str, Any]:
        whole = {"name": name, "t0": base + start, "t1": end if end < 0 else base + end}
        return {**whole, "node": "n1", "gpus": [0], "rank": rank, "role": role}

    lines = [
        phase("generate", 0, 10, "rollout_manager"),
        phase("actor_train", 10, -1.0, "train"),  # seen before it had ended
        phase("actor_train", 10, 14, "train"),
        phase("update_weights", 14, 15, "train"),
        phase("generate", 16, 20, "rollout_manager"),
    ]
    log = tmp_path / "phases.jsonl"
    log.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    done = import_log("miles", log, tmp_path / "run")
    seconds = {(name, stage): round(ns / 1e9, 3) for name, stage, _, ns in spans(done.path)}
    assert seconds == {
        ("step", "step"): 16.0,
        ("generate", "rollout"): 4.0,
        ("actor_train", "train"): 4.0,
        ("update_weights", "sync"): 1.0,
    }


def test_areal_s_sessions_are_trajectories_with_phases(tmp_path: Path) -> None:
    base = BASE_NS / 1e9
    session = {
        "task_id": 1, "session_id": 5, "rank": 0, "status": "accepted", "submit_ts": base,
        "finalized_ts": base + 4, "total_s": 4.0, "generate_s": 3.0, "reward_s": 0.5,
        "phases": {
            "generate": [
                {"start_ts": base + 0.5, "end_ts": base + 2.5},
                {"start_ts": base + 2.5, "end_ts": base + 3.5},
            ],
            "reward": [{"start_ts": base + 3.5, "end_ts": base + 4.0}],
        },
    }  # fmt: skip
    rejected = {**session, "session_id": 6, "status": "rejected", "phases": {}}
    log = tmp_path / "sessions-r0.jsonl"
    log.write_text("\n".join(map(json.dumps, [session, rejected])), "utf-8")
    done = import_log("areal", tmp_path / "sessions-r0.jsonl", tmp_path / "run")
    run = rltrace.open_run(done.path)
    by_stage = "SELECT stage, sum(end_ns - start_ns) / 1e9 FROM spans GROUP BY 1 ORDER BY 1"
    assert dict(rows(run, by_stage)) == pytest.approx({"reward": 0.5, "rollout": 3.0})
    ends = rows(run, "SELECT (end_ns - start_ns) / 1e9, finish FROM trajectories ORDER BY finish")
    assert ends[0] == (4.0, "stop")
    assert rows(run, "SELECT fate FROM uses") == [("filtered",)]


def test_areal_s_events_make_steps_of_their_numbers(tmp_path: Path) -> None:
    args = {"global_step": 7, "rank": 0}
    events = [
        event("train.rollout", 0.0, 500.0, args=args),
        event("train.ppo_update", 500.0, 300.0, args=args),
        event("train.update_weights", 800.0, 100.0, args=args),
    ]
    log = tmp_path / "traces-r0.jsonl"
    log.write_text("\n".join(map(json.dumps, events)), "utf-8")
    done = import_log("areal", log, tmp_path / "run")
    assert spans(done.path) == [
        ("step", "step", 7, 900_000),
        ("train.rollout", "wait", 7, 500_000),
        ("train.ppo_update", "train", 7, 300_000),
        ("train.update_weights", "sync", 7, 100_000),
    ]
    log.with_name("traces-r1.jsonl").write_text(log.read_text("utf-8"), "utf-8")
    with pytest.raises(RltraceError, match=r"each with a clock of its own: name one of traces-r0"):
        import_log("areal", tmp_path, tmp_path / "other")


@pytest.mark.parametrize(
    ("framework", "text", "mapped", "said"),
    [
        ("chrome", json.dumps(EVENTS), None, "has to be said: give a file with --map"),
        ("chrome", "", MAPPING, "is empty"),
        ("chrome", "no json at all", MAPPING, "is no JSON of a trace"),
        ("chrome", '{"a": 1}', MAPPING, "no event in it has a duration"),
        ("chrome", json.dumps([event("x", 1, 2)]), MAPPING, r"none of the names .* it has x \(1\)"),
        ("chrome", "[]", "[stages]\nx = 'trainn'\n", "'trainn', which is no stage"),
        ("chrome", "[]", "[stage]\nx = 'train'\n", "a mapping has no stage"),
        ("chrome", "[]", "[stages]\nx = ['train']\n", r"\['train'\], which is no stage"),
        ("chrome", "[]", "steps = 5\n[stages]\nx = 'train'\n", "steps has to be a list of names"),
        ("chrome", "[]", "roles = 5\n[stages]\nx = 'train'\n", "roles has to be a table"),
        ("chrome", "[]", "x = ", "is no TOML"),
        ("chrome", "[" * 100_000, MAPPING, "is nested too deep"),
        ("otlp", json.dumps(EVENTS), MAPPING, "is no OTLP JSON of spans"),
        ("otlp", json.dumps({"resourceSpans": [{"resource": 5}]}), MAPPING, "is no OTLP JSON"),
        ("otlp", json.dumps(otlp(["x"], 1, 2)), MAPPING, "is no OTLP JSON"),  # type: ignore[arg-type]
        ("torchtitan", '{"loss": 1.0}', None, "holds no span of torchtitan"),
        ("slime", "{}", MAPPING, "slime names its own stages: --map is for chrome and otlp"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    tmp_path: Path, framework: str, text: str, mapped: str | None, said: str
) -> None:
    log, mapping = tmp_path / "log", tmp_path / "map.toml"
    log.write_text(text, "utf-8")
    if mapped is not None:
        mapping.write_text(mapped, "utf-8")
    with pytest.raises(RltraceError, match=said):
        import_log(framework, log, tmp_path / "run", None if mapped is None else mapping)
    assert not (tmp_path / "run").exists()


TITAN = titan("train_step_end", BASE_NS // 1000, 5.0, 2, "trainer")
PHASE = {"name": "generate", "t0": BASE_NS / 1e9, "t1": BASE_NS / 1e9 + 1}
STATE = {"global_step": 1, "log_history": [{"step": 1, "loss": 0.5}]}
IN_EVENTS = {"step": 1, "train/completions/mean_length": 9.0}
SLIME = {"step": 1, "perf/step_time": 9.0, "perf/actor_train_time": 3.0}


@pytest.mark.parametrize(
    ("framework", "line", "said"),
    [
        ("slime", EVENTS[1], "it looks like a trace in Chrome's format: rltrace import chrome"),
        ("verl", TITAN, "it looks like torchtitan's structured log: rltrace import torchtitan"),
        ("roll", PHASE, "it looks like miles' phases: rltrace import miles"),
        ("trl", {"submit_ts": 1.0}, "it looks like AReaL's session traces: rltrace import areal"),
        ("miles", otlp("x", 1, 2), "it looks like spans of OpenTelemetry: rltrace import otlp"),
        ("verl", STATE, "it looks like transformers' trainer_state.json: rltrace import trl"),
        ("slime", IN_EVENTS, "looks like a log of TRL, not of slime: rltrace import trl"),
        ("torchtitan", SLIME, "it looks like a log of slime: rltrace import slime"),
        ("chrome", SLIME, "it looks like a log of slime: rltrace import slime"),
    ],
)
def test_the_wrong_framework_is_told_by_what_the_log_looks_like(
    tmp_path: Path, mapping: Path, framework: str, line: dict[str, Any], said: str
) -> None:
    log = tmp_path / "log"
    log.write_text(json.dumps(line) + "\n", "utf-8")
    mapped = mapping if framework == "chrome" else None
    with pytest.raises(RltraceError, match=said) as raised:
        import_log(framework, log, tmp_path / "run", mapped)
    assert raised.value.exit_code == WRONG_USAGE
    assert not (tmp_path / "run").exists()


def test_what_trl_prints_is_told_from_another_s_console(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("loading\n{'loss': '0.1', 'completions/mean_length': '13.3'}\n", "utf-8")
    with pytest.raises(RltraceError, match="what TRL prints: rltrace import trl") as raised:
        import_log("verl", log, tmp_path / "run")
    assert raised.value.exit_code == WRONG_USAGE


def test_the_command_takes_a_mapping(tmp_path: Path, mapping: Path) -> None:
    log = tmp_path / "trace.json"
    log.write_text(json.dumps(EVENTS), "utf-8")
    words = ["import", "chrome", str(log)]
    taken = ["--map", str(mapping), "--out", str(tmp_path / "run"), "--json"]
    done = CliRunner().invoke(main, [*words, *taken])
    assert done.exit_code == 0
    told = json.loads(done.output)
    assert (told["framework"], told["steps"], told["stages"]) == (
        "my-rl", 1, {"rollout": 2, "train": 1}
    )  # fmt: skip
    without = CliRunner().invoke(main, words)
    assert (without.exit_code, len(without.output.splitlines())) == (WRONG_USAGE, 1)
