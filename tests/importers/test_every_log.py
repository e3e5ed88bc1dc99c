"""What holds for the log of any framework: who takes its run, what is refused and how, and that
numbers which no run has cost what they stand for, and never the import."""

from __future__ import annotations

import codecs
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.adapters import ns, whole
from rltrace.testing.inside.importers import MAPPED, importers
from rltrace.testing.inside.run import Imported, import_log
from rltrace.testing.inside.trace import UNREADABLE, WRONG_USAGE, RltraceError
from tests.cli.conftest import invoke
from tests.importers.logs import FIXTURES, chrome_event, event, imported, lines, otlp

BASE_S = 1_800_000_000.0
BASE_NS = 1_800_000_000_000_000_000
MAPPING = "[stages]\n'a' = 'train'\n"
SLIME = {"step": 1, "perf/step_time": 9.0, "perf/actor_train_time": 3.0}
IN_EVENTS = {"step": 1, "train/completions/mean_length": 9.0}
STATE_NAME = "trainer_state.json"
STATE = {"global_step": 1, "log_history": [{"step": 1, "loss": 0.5}]}
TITAN = {
    "rank": 0, "source": "trainer", "step": 1, "log_type_name": "optim_step_end", "value": 2.0,
    "time_us": BASE_NS // 1000, "tid": 3,
}  # fmt: skip
PHASE = {"name": "generate", "t0": BASE_S, "t1": BASE_S + 5, "rank": 0, "role": "rollout_manager"}
PRINTED = "loading\n{'loss': '0.1', 'completions/mean_length': '13.3'}\n"


def taken(tmp_path: Path, content: str | bytes | Path, name: str = "log") -> Path:
    """A log of that content; or that log."""
    if isinstance(content, Path):
        return content
    log = tmp_path / name
    log.write_bytes(content if isinstance(content, bytes) else content.encode())
    return log


@pytest.mark.parametrize(
    ("framework", "content", "other"),
    [
        ("verl", FIXTURES / "openrlhf.wandb", "openrlhf"),
        ("openrlhf", FIXTURES / "v1_sync.jsonl", "verl"),
        ("slime", lines({"step": 0, "timing/train/generation": 50.0}), "nemo-rl"),
        ("areal", lines({"step": 0, "time/wait_for_batch": 12.0}), "prime-rl"),
        ("rlinf", lines({"step": 0, "timing/all": 50.0}), "mindspeed-rl"),
        ("slime", lines(chrome_event("generate_batch", 100.0, 600.0)), "chrome"),
        ("verl", lines(TITAN), "torchtitan"),
        ("roll", lines(PHASE), "miles"),
        ("trl", lines({"submit_ts": 1.0}), "areal"),
        ("miles", lines(otlp(1, 2)), "otlp"),
        ("verl", lines(STATE), "trl"),
        ("verl", PRINTED, "trl"),
        ("slime", lines(IN_EVENTS), "trl"),
        ("torchtitan", lines(SLIME), "slime"),
        ("chrome", lines(SLIME), "slime"),
        ("otlp", lines([chrome_event("x", 1, 2)]), "chrome"),
    ],
)
def test_the_wrong_framework_is_told_by_what_the_log_looks_like(
    tmp_path: Path, framework: str, content: str | Path, other: str
) -> None:
    mapping = ("--map", taken(tmp_path, MAPPING, "map.toml")) if framework in MAPPED else ()
    log = taken(tmp_path, content)
    result = invoke("import", framework, log, "--out", tmp_path / "run", *mapping)
    assert (result.exit_code, len(result.output.splitlines())) == (WRONG_USAGE, 1)
    assert result.output.endswith(f": rltrace import {other}\n")
    assert not (tmp_path / "run").exists()


CHROME = lines([chrome_event("x", 1, 2)])
LONG = {"timing_s/step": 9e7, "timing_s/gen": 9e7}


@pytest.mark.parametrize(
    ("framework", "content", "said"),
    [
        ("verl", lines({"step": 1, "data": {"perf/throughput": 3.0}}), "none of its timers.* perf"),
        ("verl", lines({"hello": 1}), "holds no metrics of verl"),
        ("verl", "a line\n{'loss': 1, 'epoch': 1}\n", "no log of verl's .* with epoch, loss"),
        ("verl", b"\x7fELF\0\0\0\0\0", "is no log of metrics"),
        ("verl", lines(*({"step": n, **LONG} for n in range(100))), "longer than any clock"),
        ("openrlhf", lines({"step": 1, "loss": 1.0, "chosen/reward": 0.1}), "chosen, loss"),
        ("openrlhf", "INFO engines are up\n", "holds no metrics of OpenRLHF: no numbers"),
        ("trl", "{'loss': 1.0, []: 2}\n", "no log of TRL's .* with loss"),
        ("trl", f"{{'loss': {'-' * 100_000}1}}\n", "no metrics of TRL"),
        ("trl", "start\n{'loss': '0.5', 'step_ti\n", "no log of TRL's trainer"),
        ("roll", lines({"step": 1, "loss": 1.0}), "no log of ROLL's trainer.*begins with loss"),
        ("torchtitan", '{"loss": 1.0}', "holds no span of torchtitan"),
        ("otlp", lines({"resourceSpans": [{"resource": 5}]}), "is no OTLP JSON"),
        ("otlp", lines(otlp(1, 2, name=["x"])), "is no OTLP JSON"),
        ("chrome", "no json at all", "is no JSON of a trace"),
        ("chrome", '{"a": 1}', "no event in it has a duration"),
        ("chrome", CHROME, r"none of the names .* it has x \(1\)"),
        ("chrome", "[" * 100_000, "is nested too deep"),
        (STATE_NAME, "{}", "no log_history"),
        (STATE_NAME, '{"log_history": []}', "no metrics of TRL"),
        (STATE_NAME, '{"log_history": [{"step": 1, "lo', "cut off"),
        (STATE_NAME, '{"log_history": [{"step": 1}', "cut off"),
        (STATE_NAME, '{"log_history": [1 2]}', "no JSON"),
        (STATE_NAME, '{"log_history": null}', "no log_history"),
        (STATE_NAME, "[" * 100_000, "no log_history"),
    ],
)  # fmt: skip
def test_a_log_of_something_else_is_one_sentence(
    tmp_path: Path, framework: str, content: str | bytes, said: str
) -> None:
    """A state is known by its name, and is TRL's."""
    mapping = taken(tmp_path, MAPPING, "map.toml") if framework in MAPPED else None
    framework, name = ("trl", STATE_NAME) if framework == STATE_NAME else (framework, "log")
    with pytest.raises(RltraceError, match=said) as error:
        import_log(framework, taken(tmp_path, content, name), tmp_path / "run", mapping)
    assert error.value.exit_code == UNREADABLE
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("framework", "mapping", "said"),
    [
        ("chrome", None, "give a file with --map"),
        ("otlp", None, "give a file with --map"),
        ("chrome", "[stages]\nx = 'trainn'\n", "stages.x must be one of .*'trainn'"),
        ("chrome", "[stage]\nx = 'train'\n", r"no table \[stage\]"),
        ("chrome", "[stages]\nx = ['train']\n", r"stages.x must be one of .*\['train'\]"),
        ("chrome", "steps = 5\n[stages]\nx = 'train'\n", "steps must be a list of texts"),
        ("chrome", "roles = 5\n[stages]\nx = 'train'\n", "roles must be a table"),
        ("chrome", "x = ", "is no TOML"),
        ("slime", MAPPING, "--map is for chrome and otlp"),
    ],
)
def test_a_mapping_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, framework: str, mapping: str | None, said: str
) -> None:
    given = None if mapping is None else taken(tmp_path, mapping, "map.toml")
    with pytest.raises(RltraceError, match=said):
        import_log(framework, taken(tmp_path, CHROME), tmp_path / "run", given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("framework", sorted(importers()))
def test_every_importer_says_alike_what_is_wrong_with_an_empty_log(
    tmp_path: Path, framework: str
) -> None:
    mapping = taken(tmp_path, MAPPING, "map.toml") if framework in MAPPED else None
    for name in ("log.jsonl", "log.txt", STATE_NAME, "x.tfevents.1", "run-x.wandb"):
        for content in (b"", b" \n\n", codecs.BOM_UTF8):
            log = taken(tmp_path, content, name)
            with pytest.raises(RltraceError) as error:
                import_log(framework, log, tmp_path / "run", mapping)
            assert str(error.value) == f"{log} is empty: there is nothing to import"
            assert error.value.exit_code == UNREADABLE
    with pytest.raises(RltraceError, match=r"missing\.jsonl does not exist"):
        import_log(framework, tmp_path / "missing.jsonl", tmp_path / "run", mapping)


@pytest.mark.parametrize("name", ["x.tfevents.1", "run-x.wandb"])
def test_a_folder_of_an_empty_file_is_one_sentence_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(RltraceError, match=rf"no numbers of a step \(skipped: {name}, which is"):
        import_log("slime", tmp_path, tmp_path / "run")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ((), "holds no TensorBoard event file"),
        (("one/a.tfevents.1", "two/a.tfevents.1"), "several experiments: name one of one, two"),
        (("traces-r0.jsonl", "traces-r1.jsonl"), "name one of traces-r0"),
    ],
)
def test_a_folder_is_not_guessed_at(tmp_path: Path, files: tuple[str, ...], said: str) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        of = "areal/traces-r0*" if file.startswith("traces") else f"{EVENTS}/*"
        shutil.copy(next(FIXTURES.glob(of)), tmp_path / file)
    with pytest.raises(RltraceError, match=said) as error:
        import_log("areal", tmp_path, tmp_path / "run")
    assert error.value.exit_code == (WRONG_USAGE if files else UNREADABLE)


EVENTS = "openrlhf_async"


@pytest.mark.parametrize(("framework", "name"), [("verl", "v1_sync.jsonl"), ("openrlhf", EVENTS)])
def test_every_reader_of_traces_takes_the_run(tmp_path: Path, framework: str, name: str) -> None:
    run = tmp_path / "run"
    told = json.loads(invoke("import", framework, FIXTURES / name, "--out", run, "--json").output)
    assert told["stages"]["train"] == told["steps"]
    assert told["path"] == str(run)
    for words in (["report"], ["report", "--json"], ["timeline"], ["compact"]):
        assert invoke(*words, run).exit_code == 0
    report = " ".join(invoke("report", run).output.split())
    assert "imported (" in report
    for unknown in ("process of the job", "own cost"):
        assert unknown not in report
    assert json.loads(invoke("doctor", run, "--json").output)["problems"] == []
    assert ("imported, lasted 31.4 s" in invoke("info", run).output) is (framework == "verl")


def test_the_command_s_answer_leads_to_the_report(tmp_path: Path) -> None:
    result = invoke("import", "trl", FIXTURES / "trl_console.log", "--out", tmp_path / "run")
    assert ": 4 steps (" in result.output
    assert result.output.endswith(f"rltrace report {tmp_path / 'run'}\n")


def test_wrong_usage_is_one_sentence(tmp_path: Path) -> None:
    log = FIXTURES / "v1_sync.jsonl"
    (tmp_path / "file").touch()
    for words, code in (
        (["ppo", log], WRONG_USAGE),
        (["verl", log, "--out", tmp_path], WRONG_USAGE),  # where something is
        (["verl", log, "--out", ""], WRONG_USAGE),
        (["chrome", log], WRONG_USAGE),
        (["verl", tmp_path / "none"], UNREADABLE),
        (["verl", log, "--out", "/proc/run"], UNREADABLE),
    ):
        result = invoke("import", *words)
        assert (result.exit_code, len(result.output.splitlines())) == (code, 1), words


@pytest.mark.parametrize(
    ("framework", "metrics"),
    [
        ("verl", {"timing_s/step": 10.0, "timing_s/gen": 3.0}),
        ("openrlhf", {"timing/step_total": 10.0, "timing/generation": 3.0}),
        ("trl", {"step_time": 10.0, "completions/mean_length": 3.0}),
        ("slime", {"perf/step_time": 10.0, "perf/actor_train_time": 3.0}),
    ],
)
def test_steps_that_no_run_has_are_left_out_and_a_loss_that_is_no_number_is_kept(
    tmp_path: Path, framework: str, metrics: dict[str, float]
) -> None:
    logged = [{"step": n, "loss": 0.5 if n == 4 else float("nan"), **metrics} for n in (4, 5, 6)]
    odd = ({"step": step, **metrics} for step in (10**30, 2**40, -5, 1e300, 1.5))
    log = taken(tmp_path, lines(*logged, *odd), "log.jsonl")
    done, run, summary = imported(framework, log, tmp_path)
    assert (done.steps, done.first_step) == (3, 4)
    assert "skipped: 4 records of steps that no run has" in done.log_notes
    losses = run.sql("SELECT value FROM samples WHERE counter = 'loss' ORDER BY time_ns")
    assert losses.fetchall() == [(0.5,), (None,), (None,)]
    assert "not finite" in {alarm.kind for alarm in summary.health.alarms}


# Numbers that no run has: JSON knows NaN and integers of any size, a damaged file has any bytes.

ODD: tuple[Any, ...] = (
    float("nan"), float("inf"), 1e300, -5, 10**30, 2**63, True, None, "²", "x", [1], {"a": 1},
)  # fmt: skip
TRACED = chrome_event("generate", 1.0, 5.0, args={"step": 3})
SESSION = {
    "task_id": 1, "session_id": 5, "rank": 0, "status": "accepted", "submit_ts": BASE_S,
    "finalized_ts": BASE_S + 4, "toolcall_s": 1.0,
    "phases": {"generate": [{"start_ts": BASE_S, "end_ts": BASE_S + 1}]},
}  # fmt: skip
OF_AREAL = {**TRACED, "name": "train.ppo_update", "args": {"global_step": 7}}


def placed(tmp_path: Path, framework: str, content: str | bytes, name: str = "log") -> Imported:
    mapping = taken(tmp_path, "[stages]\n'generate' = 'rollout'\n", "map.toml")
    log = taken(tmp_path, content, name)
    return import_log(framework, log, tmp_path / "run", mapping if framework in MAPPED else None)


@pytest.mark.parametrize(
    ("framework", "whole_one"),
    [("chrome", TRACED), ("torchtitan", TITAN), ("miles", PHASE), ("areal", SESSION),
     ("areal", OF_AREAL)],
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
    done = placed(tmp_path, framework, lines(whole_one, *odd))
    run = rltrace.open_run(done.path)
    found = "SELECT count(*) > 0, min(start_ns) > 0, bool_and(start_ns <= end_ns) FROM spans"
    assert run.sql(found).fetchall() == [(True, True, True)]


def test_exported_spans_with_odd_values_leave_the_others(tmp_path: Path) -> None:
    odd: list[Any] = []
    for value in ODD:
        given = ({"key": key, "value": {"intValue": value}} for key in ("step", "thread.id"))
        odd += [otlp(BASE_NS, 5, each, value) for each in given]
        keys = ("traceId", "startTimeUnixNano", "endTimeUnixNano")
        odd += [otlp(BASE_NS, 5, **{key: value}) for key in keys]
    done = placed(tmp_path, "otlp", lines(otlp(BASE_NS, 5), *odd))
    steps = "SELECT DISTINCT step FROM spans"
    assert rltrace.open_run(done.path).sql(steps).fetchall() == [(None,)]


@pytest.mark.parametrize(
    ("name", "time_ns"),
    [("startTimeUnixNano", "0"), ("endTimeUnixNano", "1"),
     *(("startTimeUnixNano", "9" * digits) for digits in (40, 5000))],
)  # fmt: skip
def test_an_exported_span_at_no_time_is_counted_only(
    tmp_path: Path, name: str, time_ns: str
) -> None:
    exports = (otlp(BASE_NS, 5), otlp(BASE_NS, 5, **{name: time_ns}), otlp(BASE_NS + 9, 5))
    done = placed(tmp_path, "otlp", lines(*exports))
    assert done.spans == 2
    assert "1 spans at times that no clock shows: left out" in done.log_notes


@pytest.mark.parametrize("digits", [19, 5000])
def test_a_console_s_step_that_no_run_has_is_left_out(tmp_path: Path, digits: int) -> None:
    line = "step:{} - timing_s/gen:3.0 - timing_s/step:9.0\n"
    done = placed(tmp_path, "verl", line.format(4) + line.format("9" * digits))
    assert (done.steps, done.first_step) == (1, 4)


def test_an_event_s_odd_time_is_unknown_and_its_odd_step_costs_the_event(tmp_path: Path) -> None:
    times = (BASE_S, 1e300, float("inf"), float("nan"), -BASE_S)
    records = [event(b"timing_s/step", 3.0, n, time_s) for n, time_s in enumerate(times, 1)]
    records.append(event(b"timing_s/step", 3.0, -1, BASE_S))
    done = placed(tmp_path, "verl", b"".join(records), "events.out.tfevents.1")
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
