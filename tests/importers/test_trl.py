"""Logs of TRL become runs: what TRL 1.16.0 wrote (fixtures), and what its sources say besides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rltrace
from rltrace.cli import main
from rltrace.importers.trl import of_log, read
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.importers import Log, Record, write_run
from rltrace.testing.inside.trace import UNREADABLE, WRONG_USAGE, RltraceError, Run, Stage

FIXTURES = Path(__file__).parent / "fixtures"
STATE, CONSOLE = FIXTURES / "trl_async_state.json", FIXTURES / "trl_console.log"
PROFILED = "profiling/Time taken: GRPOTrainer."


def written(path: Path, folder: Path) -> Run:
    """The run that a log makes."""
    write_run(folder / "run", read(path), "test")
    return rltrace.open_run(folder / "run")


def rows(run: Run, query: str) -> list[Any]:
    return run.sql(query).fetchall()


def logged() -> dict[int, dict[str, Any]]:
    """What the fixture of an asynchronous run has of each step."""
    history = json.loads(STATE.read_text())["log_history"]
    return {line["step"]: line for line in history if "train_runtime" not in line}


def test_an_asynchronous_run_has_the_seconds_that_trl_logged(tmp_path: Path) -> None:
    run = written(STATE, tmp_path)
    found = rows(run, "SELECT step, stage, name, (end_ns - start_ns) / 1e9 FROM spans")
    told = logged()
    for name, stage in (
        ("perf/rollout_wait_s", "wait"),
        ("perf/fwd_bwd_s", "train"),
        ("perf/optimizer_s", "train"),
        ("perf/weight_sync_s", "sync"),
    ):
        seconds = {step: s for step, of, label, s in found if (of, label) == (stage, name)}
        expected = {step: line[name] for step, line in told.items() if "perf/step_s" in line}
        assert seconds == pytest.approx(expected, abs=1e-6)


def test_a_step_without_a_length_keeps_its_figures_only(tmp_path: Path) -> None:
    """The first one has none before it, from whose end TRL could count."""
    run = written(STATE, tmp_path)
    told = logged()
    timed = [step for step, line in told.items() if "perf/step_s" in line]
    assert 1 not in timed
    assert rows(run, "SELECT step FROM steps ORDER BY step") == [(step,) for step in timed]
    staleness = rows(run, "SELECT count(*) FROM samples WHERE counter = 'sample/staleness_mean'")
    assert staleness == [(len(told),)]


def test_placement_and_what_is_unknown_are_said() -> None:
    found = read(STATE)
    assert (found.placement, found.kind) == ("async", "trainer_state.json")
    unknown = {stage for stage, _ in found.not_logged}
    assert {Stage.ROLLOUT, Stage.REWARD, Stage.CHECKPOINT} <= unknown
    assert Stage.TRAIN not in unknown
    assert any(name == "sample/staleness_mean" for name, _ in found.notes)


def test_a_console_is_read_with_its_lines_counted_as_steps(tmp_path: Path) -> None:
    run = written(CONSOLE, tmp_path)
    assert rows(run, "SELECT step, seconds FROM steps ORDER BY step") == [
        (step, pytest.approx(seconds, abs=1e-6))
        for step, seconds in enumerate(_printed("step_time"), 1)
    ]
    losses = rows(run, "SELECT value FROM samples WHERE counter = 'loss' ORDER BY time_ns")
    assert [loss for (loss,) in losses] == _printed("loss")
    assert any("says no step" in note for note in read(CONSOLE).log_notes)


def test_evaluations_on_a_console_are_no_steps(tmp_path: Path) -> None:
    """They are readings at the step that they follow."""
    step = "{{'loss': '{0}', 'step_time': '0.{0}', 'epoch': '0.1'}}"
    evaluation = "{'eval_loss': '7', 'eval_reward': '0.5', 'epoch': '0.3'}"
    lines = (step.format(1), evaluation, evaluation.replace("7", "8"), step.format(2), evaluation)
    path = tmp_path / "log"
    path.write_text("\n".join(lines), "utf-8")
    found = read(path)
    timed = [(step.number, step.seconds) for step in found.steps if step.seconds is not None]
    assert str(timed) == "[(1, 0.1), (2, 0.2)]"
    assert [
        (step.number, step.counters["eval_loss"])
        for step in found.steps
        if "eval_loss" in step.counters
    ] == [(1, 7.0), (1, 8.0), (2, 7.0)]


def test_what_a_console_has_of_torn_and_other_figures_is_counted(tmp_path: Path) -> None:
    whole = "{{'loss': '{}', 'step_time': '0.5', 'epoch': '0.1'}}"
    lines = (
        "{'lr': 0.1}",
        whole.format(1),
        "{'loss': '0.5', 'step_ti",
        "me': '0.5', 'epoch': '0.1'}",
        "{'loss': '2', 'gr" + whole.format(3),
        "step:3 - timing_s/gen:2.0",
        "{'loss': '4', 'step_time': oops, 'epoch': '0.1'}",
        "{'train_runtime': '4.67', 'epoch': '0.1'}",
        "{'eval_loss': '0.5', 'ev",
    )
    log = tmp_path / "log"
    log.write_text("\n".join(lines), "utf-8")
    answer = CliRunner().invoke(
        main, ["import", "trl", str(log), "--out", str(tmp_path / "run"), "--json"]
    )
    told = json.loads(answer.output)
    assert told["steps"] == 2
    assert (
        "skipped: 4 lines (the first is line 3): figures in a mapping that is torn"
        in (told["log_notes"])
    )
    other = "skipped: line 6: figures as another framework or logger writes them"
    assert other in told["log_notes"]


def test_a_console_with_nothing_but_a_torn_mapping_is_one_sentence(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("start\n{'loss': '0.5', 'step_ti\n", "utf-8")
    with pytest.raises(RltraceError, match=r"no metrics of TRL.*line 2: figures in a mapping that"):
        read(log)


def test_a_trainer_that_the_log_does_not_name_is_left_out_of_the_answer(tmp_path: Path) -> None:
    words = ["import", "trl", str(CONSOLE), "--out", str(tmp_path / "run")]
    assert "\ntrl, console log: 4 steps" in CliRunner().invoke(main, words).output


def _printed(name: str) -> list[float]:
    """What the fixture shows of a figure."""
    lines = [line for line in CONSOLE.read_text().splitlines() if f"'{name}': '" in line]
    return [float(line.split(f"'{name}': '")[1].split("'")[0]) for line in lines]


def test_timed_blocks_belong_to_the_step_that_is_logged_after_them() -> None:
    """As wandb has them: a row a call, and one with the figures of the step."""
    records = []
    for step in (1, 2):
        blocks = {"transformers.generate": 2.0, "_calculate_rewards": 0.5, "compute_loss": 0.25}
        records += [Record(7 * step, {PROFILED + name: took}) for name, took in blocks.items()]
        records.append(Record(7 * step + 5, {PROFILED + "compute_loss": 0.25}))
        figures = {"train/step_time": 4.0, "train/completions/mean_length": 9.0}
        records.append(Record(7 * step + 6, {**figures, "train/global_step": float(step)}))
    found = of_log(Log("log", "wandb file", tuple(records)))
    assert found.placement == "colocated"
    assert [step.number for step in found.steps] == [1, 2]
    for step in found.steps:
        assert step.seconds == 4.0
        assert [(part.stage, part.seconds) for part in step.inside] == [
            (Stage.ROLLOUT, 2.0), (Stage.REWARD, 0.5), (Stage.TRAIN, 0.5),
        ]  # fmt: skip
        assert step.counters["completions/mean_length"] == 9.0
    assert {Stage.REFERENCE, Stage.LOGPROB} <= {stage for stage, _ in found.not_logged}


def test_names_as_tensorboard_has_them_are_trls() -> None:
    metrics = {"train/step_time": 2.0, "train/completions/mean_length": 5.0}
    found = of_log(Log("log", "TensorBoard events", (Record(3, metrics, 1_000),)))
    [step] = found.steps
    assert (step.number, step.seconds, step.real_ns) == (3, 2.0, 1_000)
    assert step.counters["step_time"] == 2.0


def test_steps_that_generate_for_several_updates_are_no_stalls(tmp_path: Path) -> None:
    """They alone have figures of samples, and are held against each other."""

    def alarms(name: str, seconds: dict[int, float], generates: range) -> list[Any]:
        of_samples = {"train/num_tokens": 9.0, "train/reward": 0.5}
        records = tuple(
            Record(
                n, {"train/step_time": took, **(of_samples if n in generates else {})}, n * 10**11
            )
            for n, took in seconds.items()
        )
        write_run(tmp_path / name, of_log(Log("log", "TensorBoard events", records)), "test")
        found = summarize(rltrace.open_run(tmp_path / name)).health.alarms
        return [alarm.says for alarm in found if alarm.kind == "stall"]

    usual = {n: 6.0 if n % 6 == 1 else 1.0 for n in range(1, 31)}
    few = {n: took for n, took in usual.items() if n <= 12}
    third = range(1, 31, 6)
    assert alarms("usual", usual, third) == []
    assert alarms("few", few, third) == []
    assert "(13)" in alarms("one longer", {**usual, 13: 40.0}, third)[0]
    assert "(15)" in alarms("an update", {**usual, 15: 20.0}, third)[0]
    assert "(13)" in alarms("all generate", {**dict.fromkeys(usual, 1.0), 13: 6.0}, range(31))[0]


def test_a_loss_that_is_no_number_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("{'loss': nan, 'step_time': '0.5', 'completions/mean_length': 4.0}\n")
    [step] = read(path).steps
    assert str(step.counters["loss"]) == "nan"
    assert step.seconds == 0.5


def state(path: Path, *steps: tuple[int, float]) -> Path:
    """A trainer_state.json of steps and the seconds of each."""
    history = [{"step": n, "step_time": took, "loss": 0.5, "epoch": n / 8} for n, took in steps]
    path.write_text(json.dumps({"log_history": history}), "utf-8")
    return path


@pytest.mark.parametrize(
    ("logged", "steps", "said"),
    [
        ([(3, 0.3), (2, 0.2), (1, 0.1)], [1, 2, 3], ["step 2 stands after step 3"]),
        ([(1, 0.1), (2, 0.2), (1, 0.1), (2, 0.2)], [1, 2], ["2 entries that another one repeats"]),
        (
            [(2, 0.3), (2, 0.3), (1, 0.1)],
            [1, 2],
            ["1 entry that another one repeats", "step 1 stands after step 2"],
        ),
        ([(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.4), (3, 0.5)], [1, 2, 3, 2, 3], []),
    ],
    ids=["reversed", "twice", "both", "a restart"],
)
def test_a_state_s_steps_are_in_the_order_in_which_they_ran(
    tmp_path: Path, logged: list[tuple[int, float]], steps: list[int], said: list[str]
) -> None:
    path = state(tmp_path / "trainer_state.json", *logged)
    found = read(path)
    assert [step.number for step in found.steps] == steps
    skipped = [note for note in found.log_notes if note.startswith("skipped: ")]
    assert len(skipped) == len(said)
    assert all(what in note for what, note in zip(said, skipped, strict=True))
    assert not any("kept in the order of the log" in note for note in found.log_notes)


@pytest.mark.parametrize(
    ("name", "text", "code", "said"),
    [
        ("trainer_state.json", "{}", UNREADABLE, "no log_history"),
        ("trainer_state.json", '{"log_history": []}', UNREADABLE, "no metrics of TRL"),
        ("trainer_state.json", "{", UNREADABLE, "cut off, its JSON ends early"),
        ("trainer_state.json", '{"log_history": [{"step": 1, "lo', UNREADABLE, "cut off"),
        ("trainer_state.json", '{"log_history": [{"step": 1}', UNREADABLE, "cut off"),
        ("trainer_state.json", '{"log_history": [1 2]}', UNREADABLE, "no JSON"),
        ("trainer_state.json", '{"log_history": null}', UNREADABLE, "no log_history"),
        ("trainer_state.json", "[" * 100_000, UNREADABLE, "no log_history"),
        ("log", "hello\n", UNREADABLE, "no metrics of TRL"),
        ("log", "{'loss': 1.0, []: 2}\n", UNREADABLE, "no metrics of TRL"),
        ("log", f"{{'loss': {'-' * 100_000}1}}\n", UNREADABLE, "no metrics of TRL"),
        ("log.jsonl", '{"step": 1, "timing_s/gen": 1.0}\n', WRONG_USAGE, "verl"),
    ],
)
def test_what_is_no_log_of_trl_is_refused_in_one_sentence(
    name: str, text: str, code: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(RltraceError) as error:
        read(path)
    assert error.value.exit_code == code
    assert said in str(error.value)
