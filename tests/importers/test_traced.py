"""Logs with times of their own, and of timers once a step, in the formats that frameworks have.

What a run has of a stage is what the file says; each total is the log's own.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.adapters import SpanNames, log_tables
from rltrace.testing.inside.analysis import is_laid_out
from rltrace.testing.inside.run import import_log
from rltrace.testing.inside.trace import Stage
from tests.importers.logs import FIXTURES, chrome_event, imported, lines, otlp

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


NAMES = SpanNames(log_tables()["areal"]["spans"])
EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "trainer 0"}},
    chrome_event("ProfilerStep#3", 100.0, 1000.0),
    chrome_event("generate_batch", 100.0, 600.0),
    chrome_event("aten::mm", 120.0, 10.0),
    {"ph": "B", "name": "update", "ts": 700.0, "pid": 1, "tid": 7},
    {"ph": "E", "name": "update", "ts": 1000.0, "pid": 1, "tid": 7},
    {"ph": "b", "name": "generate_one", "cat": "r", "id": 9, "ts": 200.0, "pid": 1, "tid": 8},
    {"ph": "e", "name": "generate_one", "cat": "r", "id": 9, "ts": 250.0, "pid": 1, "tid": 8},
]
WHOLE = json.dumps({"baseTimeNanoseconds": BASE_NS, "traceEvents": EVENTS})


def spans(path: str) -> list[Any]:
    """Name, stage, step, length (ns) of the spans, in the order of time."""
    what = "SELECT name, stage, step, end_ns - start_ns FROM spans ORDER BY start_ns, end_ns DESC"
    return rltrace.open_run(path).sql(what).fetchall()


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ("object", WHOLE.encode()),
        ("array", json.dumps(EVENTS).encode()),
        ("lines", lines(*EVENTS).encode()),
        ("cut", json.dumps({"traceEvents": EVENTS})[:-40].encode()),
        ("gzip", gzip.compress(WHOLE.encode())),
    ],
)
def test_a_chrome_trace_is_read_in_every_form_it_comes_in(
    tmp_path: Path, mapping: Path, form: str, content: bytes
) -> None:
    (tmp_path / "trace.json").write_bytes(content)
    done = import_log("chrome", tmp_path / "trace.json", tmp_path / "run", mapping)
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
    assert (done.framework, done.steps, done.stages["train"]) == ("my-rl", 1, 1)
    assert "1 spans of names that are not mapped: left out" in done.log_notes
    run = rltrace.open_run(done.path)
    assert [process.role for process in run.processes] == ["learner"]
    if form in ("object", "gzip"):
        assert run.sql("SELECT min(start_ns) FROM spans").fetchall() == [(BASE_NS + 100_000,)]
    else:
        assert any("no date" in note for note in done.log_notes)


def test_exported_spans_of_opentelemetry_keep_their_times(tmp_path: Path, mapping: Path) -> None:
    log = tmp_path / "spans.jsonl"
    step = {"key": "step", "value": {"intValue": "4"}}
    exports = [otlp(BASE_NS, 9000, name="ProfilerStep#4"), otlp(BASE_NS, 5000, step)]
    exports.append(otlp(BASE_NS, 10, name="unknown"))
    log.write_text(lines(*exports) + '{"resourceSpans": [', "utf-8")
    done = import_log("otlp", log, tmp_path / "run", mapping)
    assert spans(done.path) == [("step", "step", 4, 9000), ("generate", "rollout", 4, 5000)]
    assert any("no whole object" in note for note in done.log_notes)


def test_torchtitan_s_spans_end_where_their_line_says(tmp_path: Path) -> None:
    end_us = BASE_NS // 1000
    folder = tmp_path / "structured_logs"
    folder.mkdir()
    for source, name, us, took_ms in (
        ("controller", "train_step_start", end_us - 5000, 0.0),
        ("controller", "forward_backward_end", end_us - 1000, 2.0),
        ("controller", "train_step_end", end_us, 5.0),
        ("trainer", "forward_backward_end", end_us - 1000, 1.5),
    ):
        line = {"rank": 0, "source": source, "step": 2, "log_type_name": name, "value": took_ms,
                "time_us": us, "tid": 3}  # fmt: skip
        with open(folder / f"{source}.global_rank_0.x.jsonl", "a", encoding="utf-8") as file:
            file.write(lines(line))
    done = import_log("torchtitan", folder, tmp_path / "run")
    run = rltrace.open_run(done.path)
    assert not is_laid_out(run)
    assert spans(done.path) == [
        ("step", "step", 2, 5_000_000),
        ("forward_backward", "wait", 2, 2_000_000),  # the controller only waits for its actors
        ("forward_backward", "train", 2, 1_500_000),
    ]
    assert run.sql("SELECT max(end_ns) FROM spans").fetchall() == [(end_us * 1000,)]


def test_miles_phases_are_spans_and_steps_go_from_rollout_to_rollout(tmp_path: Path) -> None:
    base = BASE_NS / 1e9
    phases = [
        {"name": name, "t0": base + start, "t1": end if end < 0 else base + end, "rank": 0,
         "role": "rollout_manager" if name == "generate" else "train"}
        for name, start, end in (
            ("generate", 0, 10),
            ("actor_train", 10, -1.0),  # seen before it had ended
            ("actor_train", 10, 14),
            ("update_weights", 14, 15),
            ("generate", 16, 20),
        )
    ]  # fmt: skip
    (tmp_path / "phases.jsonl").write_text(lines(*phases), "utf-8")
    done = import_log("miles", tmp_path / "phases.jsonl", tmp_path / "run")
    seconds = [(name, stage, round(ns / 1e9, 3)) for name, stage, _, ns in spans(done.path)]
    assert sorted(seconds) == [
        ("actor_train", "train", 4.0),
        ("generate", "rollout", 4.0),
        ("generate", "rollout", 10.0),
        ("step", "step", 16.0),
        ("update_weights", "sync", 1.0),
    ]


# What AReaL's own tracer has written (`make_areal_fixtures`): totals are the files' own.

AREAL = FIXTURES / "areal"


def objects(name: str) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in (AREAL / name).read_text("utf-8").splitlines()]


def test_sessions_have_the_seconds_that_areal_adds_up(tmp_path: Path) -> None:
    sessions = objects("sessions-r0.jsonl")

    def total(name: str) -> float:
        return float(sum(session[name] for session in sessions))

    _, run, _ = imported("areal", AREAL, tmp_path)
    assert not is_laid_out(run)
    by_stage = "SELECT stage, sum(end_ns - start_ns) / 1e9 FROM spans GROUP BY 1"
    named = {"rollout": "generate_s", "reward": "reward_s", "env": "toolcall_s"}
    expected = {stage: total(name) for stage, name in named.items()}
    assert dict(run.sql(by_stage).fetchall()) == pytest.approx(expected, rel=1e-5)
    found = "SELECT sum(end_ns - start_ns) / 1e9, sum(env_ns) / 1e9, count(*) FROM trajectories"
    expected_row = (total("total_s"), total("toolcall_s"), len(sessions))
    assert run.sql(found).fetchall()[0] == pytest.approx(expected_row, rel=1e-5)
    rejected = sum(session["status"] == "rejected" for session in sessions)
    fates = "SELECT fate, count(*) FROM uses GROUP BY 1"
    assert run.sql(fates).fetchall() == [("filtered", rejected)]
    finished = "SELECT count(*) FROM trajectories WHERE finish = 'stop'"
    assert run.sql(finished).fetchall() == [(len(sessions) - rejected,)]


def test_events_have_the_microseconds_that_areal_wrote(tmp_path: Path) -> None:
    """A step goes from the begin of its first event to the end of its last."""
    events = [event for event in objects("traces-r0.jsonl") if event["ph"] == "X"]
    done, run, _ = imported("areal", AREAL / "traces-r0.jsonl", tmp_path)
    expected = dict.fromkeys((event["name"] for event in events), 0)
    times: dict[int, list[float]] = {}
    for event in events:
        expected[event["name"]] += event["dur"]
        both = (event["ts"], event["ts"] + event["dur"])
        times.setdefault(event["args"]["global_step"], []).extend(both)
    assert done.steps == len(times)
    by_name = "SELECT name, sum(end_ns - start_ns) / 1000 FROM spans GROUP BY 1"
    found = dict(run.sql(by_name).fetchall())
    assert found.pop("step") == sum(max(each) - min(each) for each in times.values())
    assert found == expected
    assert all(NAMES.stage_of(name) is not None for name in expected)


def test_what_its_trainers_name_has_a_stage() -> None:
    stages = {
        "rollout": Stage.WAIT, "ppo_update": Stage.TRAIN, "update_weights": Stage.SYNC,
        "compute_values": Stage.VALUE, "critic_ppo_update": Stage.TRAIN,
        "actor_offload": Stage.SWITCH, "rollout_pause_generation": Stage.SWITCH,
        "checkpoint": Stage.CHECKPOINT,
    }  # fmt: skip
    assert {name: NAMES.stage_of(f"train.{name}") for name in stages} == stages


# --- timers, once a step

Steps = list[dict[str, float]]


def under(prefix: str, **timers: float) -> dict[str, float]:
    """Timers as a framework calls them."""
    return {f"{prefix}{name}": value for name, value in timers.items()}


SLIME: Steps = [
    under(
        "perf/", rollout_time=30.0 + step, train_wait_time=36.0 + step, train_time=20.0,
        actor_train_time=12.0, ref_log_probs_time=3.0, log_probs_time=4.0,
        data_preprocess_time=0.5, update_weights_time=2.0, step_time=56.0 + step,
        actor_train_tflops=400.0,
    )
    for step in range(3)
]  # fmt: skip
SLIME_ASYNC: Steps = [{**step, "perf/rollout_time": 70.0} for step in SLIME]
NEMO_ASYNC = {
    **under("timing/train/", total_step_time=60.0, exposed_generation=25.0, policy_training=20.0),
    "timing/train/weight_sync": 4.0,
    "train/avg_trajectory_age": 1.5,
}
ROLL: Steps = [
    under(
        "time/", step_total=0.0 if step == 0 else 40.0 + step, step_model_update=3.0,
        step_generate=20.0, ref_log_probs_values=4.0, step_train=10.0,
    )
    for step in range(3)
]  # fmt: skip
PRIME = under("time/", step=30.0, wait_for_batch=12.0, forward_backward=14.0, broadcast_weights=2.0)

TOTALS: list[tuple[str, Steps, dict[str, float], float]] = [
    ("slime", SLIME, {
        "rollout": 93.0, "wait": 10.5, "train": 36.0, "reference": 9.0, "logprob": 12.0,
        "data": 1.5, "sync": 6.0,
    }, 171.0),
    ("slime", SLIME_ASYNC, {
        "rollout": 210.0, "wait": 103.5, "train": 36.0, "reference": 9.0,
        "logprob": 12.0, "data": 1.5, "sync": 6.0,
    }, 171.0),
    ("nemo-rl", [{
        "timing/train/prepare_for_generation/total": 8.0,
        "timing/train/prepare_for_generation/transfer_and_update_weights": 5.0, "train/loss": 0.1,
        **under("timing/train/", total_step_time=100.0, generation=50.0, policy_training=20.0,
                policy_and_reference_logprobs=12.0),
    }], {"switch": 3.0, "sync": 5.0, "rollout": 50.0, "logprob": 12.0, "train": 20.0}, 100.0),
    ("nemo-rl", [NEMO_ASYNC], {"wait": 25.0, "train": 20.0, "sync": 4.0}, 60.0),
    ("areal", [under("timeperf/", rollout=5.0, recompute_logp=2.0, train_step=9.0,
                     update_weights=1.0)],
     {"wait": 5.0, "logprob": 2.0, "train": 9.0, "sync": 1.0}, 17.0),
    ("roll", ROLL, {
        "sync": 9.0, "rollout": 60.0, "reference": 12.0, "train": 30.0
    }, 41.0 + 42.0 + 37.0),
    ("rlinf", [under("time/", step=30.0, sync_weights=2.0, generate_rollouts=15.0,
                     actor_training=10.0)], {"sync": 2.0, "rollout": 15.0, "train": 10.0}, 30.0),
    ("prime-rl", [PRIME], {"wait": 12.0, "train": 14.0, "sync": 2.0}, 30.0),
    ("torchforge", [{
        "main_perf/continuous_training/total_duration_avg_s": 20.0,
        "main_perf/continuous_training/waiting_for_buffer/duration_avg_s": 6.0,
        "main_perf/continuous_training/train_step/duration_avg_s": 10.0,
        "main_perf/continuous_training/push_weights/duration_avg_s": 2.0,
        "main_perf/continuous_rollouts/policy_generation/duration_avg_s": 90.0,
    }], {"wait": 6.0, "train": 10.0, "sync": 2.0}, 20.0),
    ("mindspeed-rl", [under("timing/", all=50.0, rollout=30.0, update=12.0, old_log_p=4.0)],
     {"rollout": 30.0, "train": 12.0, "logprob": 4.0}, 50.0),
]  # fmt: skip


def written(path: Path, steps: Steps, **extra: Any) -> Path:
    """JSON lines, one a step, as these frameworks' loggers can be made to write them."""
    path.write_text(lines(*({"step": at, **extra, **step} for at, step in enumerate(steps))))
    return path


def seconds(run: Any) -> dict[str, float]:
    """The summed length of the spans of each stage."""
    found = run.sql("SELECT stage, sum(end_ns - start_ns) / 1e9 FROM spans GROUP BY 1")
    return dict(found.fetchall())


@pytest.mark.parametrize(("framework", "steps", "totals", "length"), TOTALS)
def test_the_totals_are_the_log_s_own(
    tmp_path: Path, framework: str, steps: Steps, totals: dict[str, float], length: float
) -> None:
    done, run, _ = imported(framework, written(tmp_path / "log.jsonl", steps), tmp_path)
    by_stage = seconds(run)
    assert by_stage.pop("step") == pytest.approx(length)
    assert by_stage == pytest.approx(totals)
    assert done.steps == len(steps)
    assert any("nothing is said to overlap" in note for note in done.log_notes)
    if steps == [NEMO_ASYNC]:  # what it cannot tell is unknown and said
        assert any(what.startswith("rollout: exposed_generation") for what in done.not_logged)


def test_slime_s_generation_beside_training_ends_before_the_step_s_own_work(tmp_path: Path) -> None:
    done, run, _ = imported("slime", written(tmp_path / "log.jsonl", SLIME_ASYNC), tmp_path)
    assert done.trainer == "train_async.py"
    assert is_laid_out(run)
    ends = "SELECT max(end_ns) FROM spans WHERE stage = 'rollout' AND step = 1"
    begins = "SELECT min(start_ns) FROM spans WHERE stage = 'wait' AND step = 1"
    assert run.sql(ends).fetchall() == run.sql(begins).fetchall()


@pytest.mark.parametrize(
    ("framework", "shown"),
    [
        ("slime", [f"[2026-08-21 10:00:0{at}] train_metric_utils.py:7 - perf {at}: {step}"
                   for at, step in enumerate(SLIME)]),
        ("roll", ["[INFO] metrics_tag: " + json.dumps({"step": at, "metrics": step})
                  for at, step in enumerate(ROLL)]),
    ],
)  # fmt: skip
def test_a_console_is_a_log_too(tmp_path: Path, framework: str, shown: list[str]) -> None:
    (tmp_path / "train.log").write_text("\n".join(["starting", *shown, ""]), "utf-8")
    done, run, _ = imported(framework, tmp_path / "train.log", tmp_path)
    assert done.steps == 3
    assert seconds(run)["train"] == pytest.approx({"slime": 36.0, "roll": 30.0}[framework])


def test_a_record_that_states_its_time_ends_its_step_there(tmp_path: Path) -> None:
    log = written(tmp_path / "metrics.jsonl", [PRIME], time=1_800_000_000.5)
    _, run, _ = imported("prime-rl", log, tmp_path)
    ends = run.sql("SELECT max(end_ns) FROM spans WHERE stage = 'step'").fetchall()
    assert ends == [(1_800_000_000_500_000_000,)]
    assert run.sql("SELECT 1 FROM samples WHERE counter = 'time'").fetchall() == []


def test_what_slime_states_as_its_step_counts(tmp_path: Path) -> None:
    """wandb counts rows: slime logs rollouts and optimizer updates into the same."""
    update = {"step": 8, "train/step": 40, "train/loss": 0.5}
    log = tmp_path / "log.jsonl"
    log.write_text(lines({"step": 7, "rollout/step": 2, **SLIME[0]}, update), "utf-8")
    done, _, _ = imported("slime", log, tmp_path)
    assert (done.first_step, done.steps) == (2, 1)


def test_logs_of_two_frameworks_in_one_are_read_as_the_one_that_is_named(tmp_path: Path) -> None:
    log = written(tmp_path / "log.jsonl", [{**SLIME[0], "time/forward_backward": 3.0}])
    _, run, _ = imported("slime", log, tmp_path)
    assert "other" not in seconds(run)
