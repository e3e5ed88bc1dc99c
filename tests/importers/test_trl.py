"""Logs of TRL become runs: what TRL 1.16.0 wrote (fixtures), and what its sources say besides.

Where TRL logs every few steps, its figures are means over these.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.adapters import LogRecord as Record
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.importers import ImportedRun, Log, read_durations, read_run, write_run
from rltrace.testing.inside.trace import Stage
from tests.cli.conftest import invoke
from tests.importers.logs import FIXTURES, imported

STATE, CONSOLE = FIXTURES / "trl_async_state.json", FIXTURES / "trl_console.log"
PROFILED = "profiling/Time taken: GRPOTrainer."
S = 1_000_000_000


def test_an_asynchronous_run_has_the_seconds_that_trl_logged(tmp_path: Path) -> None:
    _, run, _ = imported("trl", STATE, tmp_path)
    history = json.loads(STATE.read_text())["log_history"]
    told = {line["step"]: line for line in history if "train_runtime" not in line}
    found = run.sql("SELECT step, stage, name, (end_ns - start_ns) / 1e9 FROM spans").fetchall()
    stages = {"rollout_wait_s": "wait", "fwd_bwd_s": "train", "optimizer_s": "train",
              "weight_sync_s": "sync"}  # fmt: skip
    for name, stage in ((f"perf/{name}", stage) for name, stage in stages.items()):
        seconds = {step: s for step, of, label, s in found if (of, label) == (stage, name)}
        expected = {step: line[name] for step, line in told.items() if "perf/step_s" in line}
        assert seconds == pytest.approx(expected, abs=1e-6)
    # The first step has none before it, from whose end TRL could count: only its figures are kept.
    timed = [step for step, line in told.items() if "perf/step_s" in line]
    assert 1 not in timed
    steps = run.sql("SELECT step FROM steps ORDER BY step").fetchall()
    assert steps == [(step,) for step in timed]
    staleness = "SELECT count(*) FROM samples WHERE counter = 'sample/staleness_mean'"
    assert run.sql(staleness).fetchall() == [(len(told),)]
    # Its placement, and what is unknown, are said.
    found = read_run(STATE, "trl")
    assert (found.placement, found.log.kind) == ("async", "trainer_state.json")
    unknown = {stage for stage, _ in found.not_logged}
    assert {Stage.ROLLOUT, Stage.REWARD, Stage.CHECKPOINT} <= unknown
    assert Stage.TRAIN not in unknown
    assert any(name == "sample/staleness_mean" for name, _ in found.notes)


def test_a_console_is_read_with_its_lines_counted_as_steps(tmp_path: Path) -> None:
    def printed(name: str) -> list[float]:
        shown = [line for line in CONSOLE.read_text().splitlines() if f"'{name}': '" in line]
        return [float(line.split(f"'{name}': '")[1].split("'")[0]) for line in shown]

    done, run, _ = imported("trl", CONSOLE, tmp_path)
    assert run.sql("SELECT step, seconds FROM steps ORDER BY step").fetchall() == [
        (step, pytest.approx(seconds, abs=1e-6))
        for step, seconds in enumerate(printed("step_time"), 1)
    ]
    losses = run.sql("SELECT value FROM samples WHERE counter = 'loss' ORDER BY time_ns")
    assert [loss for (loss,) in losses.fetchall()] == printed("loss")
    assert any("says no step" in note for note in done.log_notes)


def test_evaluations_on_a_console_are_no_steps(tmp_path: Path) -> None:
    """They are readings at the step that they follow."""
    step = "{{'loss': '{0}', 'step_time': '0.{0}', 'epoch': '0.1'}}"
    evaluation = "{'eval_loss': '7', 'eval_reward': '0.5', 'epoch': '0.3'}"
    shown = (step.format(1), evaluation, evaluation.replace("7", "8"), step.format(2), evaluation)
    (tmp_path / "log").write_text("\n".join(shown), "utf-8")
    found = [
        (step.number, step.seconds, step.counters)
        for step in read_run(tmp_path / "log", "trl").steps
    ]
    assert [(n, took) for n, took, _ in found if took is not None] == [(1, 0.1), (2, 0.2)]
    losses = [(n, had["eval_loss"]) for n, _, had in found if "eval_loss" in had]
    assert losses == [(1, 7.0), (1, 8.0), (2, 7.0)]


def test_what_a_console_has_of_torn_and_other_figures_is_counted(tmp_path: Path) -> None:
    whole = "{{'loss': '{}', 'step_time': '0.5', 'epoch': '0.1'}}"
    shown = (
        "{'lr': 0.1}",
        whole.format(1),
        "{'loss': '0.5', 'step_ti",
        "me': '0.5', 'epoch': '0.1'}",
        "{'loss': '2', 'gr" + whole.format("nan").replace("'nan'", "nan"),
        "step:3 - timing_s/gen:2.0",
        "{'loss': '4', 'step_time': oops, 'epoch': '0.1'}",
        "{'train_runtime': '4.67', 'epoch': '0.1'}",
        "{'eval_loss': '0.5', 'ev",
    )
    (tmp_path / "log").write_text("\n".join(shown), "utf-8")
    found = read_run(tmp_path / "log", "trl")
    # The third and the fourth line are one that was wrapped; one has no length that can be read.
    assert [step.seconds for step in found.steps] == [0.5, 0.5, None, 0.5, None]
    # A loss that is no number is kept.
    losses = [str(step.counters["loss"]) for step in found.steps]
    assert losses == ["1.0", "0.5", "2.0", "nan", "4.0"]
    assert "skipped: line 6: figures as another framework or logger writes them" in found.log_notes
    assert "skipped: the last number of line 5, torn or run into another" in found.log_notes


def test_timed_blocks_belong_to_the_step_that_is_logged_after_them() -> None:
    """As wandb has them: a row a call, and one with the figures of the step."""
    records = []
    for step in (1, 2):
        blocks = {"transformers.generate": 2.0, "_calculate_rewards": 0.5, "compute_loss": 0.25}
        records += [Record(7 * step, {PROFILED + name: took}) for name, took in blocks.items()]
        records.append(Record(7 * step + 5, {PROFILED + "compute_loss": 0.25}))
        figures = {"train/step_time": 4.0, "train/completions/mean_length": 9.0}
        records.append(Record(7 * step + 6, {**figures, "train/global_step": float(step)}))
    found = read_durations(Log("log", "wandb file", tuple(records)), "trl")
    assert found.placement == "colocated"
    assert [step.number for step in found.steps] == [1, 2]
    for step in found.steps:
        assert step.seconds == 4.0
        assert [(part.stage, part.seconds) for part in step.inside] == [
            (Stage.ROLLOUT, 2.0), (Stage.REWARD, 0.5), (Stage.TRAIN, 0.5),
        ]  # fmt: skip
        assert step.counters["completions/mean_length"] == 9.0
    assert {Stage.REFERENCE, Stage.LOGPROB} <= {stage for stage, _ in found.not_logged}


def test_steps_that_generate_for_several_updates_are_no_stalls(tmp_path: Path) -> None:
    """They alone have figures of samples, and are held against each other."""

    def alarms(name: str, seconds: dict[int, float], generates: range) -> list[Any]:
        of_samples = {"train/num_tokens": 9.0, "train/reward": 0.5}
        records = []
        for n, took in seconds.items():
            figures = {"train/step_time": took, **(of_samples if n in generates else {})}
            records.append(Record(n, figures, n * 10**11))
        write_run(
            tmp_path / name,
            read_durations(Log("log", "TensorBoard events", tuple(records)), "trl"),
            "test",
        )
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


def state(folder: Path, *entries: dict[str, float], **settings: int) -> ImportedRun:
    """What becomes of a trainer_state.json."""
    history = [{"epoch": entry["step"] / 8, **entry} for entry in entries]
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({**settings, "log_history": history}), "utf-8")
    return read_run(path, "trl")


def test_a_state_says_how_many_steps_its_first_entry_is_of(tmp_path: Path) -> None:
    first, end = {"step": 10, "step_time": 2.0, "loss": 0.5}, {"step": 10, "train_runtime": 25.0}
    run = state(tmp_path, first, end, logging_steps=10)
    assert {step.number: step.seconds for step in run.steps} == dict.fromkeys(range(1, 11), 2.0)


def logged(*entries: tuple[int, float], ends_s: tuple[int, ...] = ()) -> ImportedRun:
    """The run of entries `(step, step_time)`, as TensorBoard has them."""
    ends = [end * S for end in ends_s] or [None] * len(entries)
    records = [
        Record(step, {"train/step_time": took, "train/loss": 1.0}, end)
        for (step, took), end in zip(entries, ends, strict=True)
    ]
    return read_durations(Log("log", "TensorBoard events", tuple(records)), "trl")


@pytest.mark.parametrize(
    ("steps", "made"),
    [
        ((10, 20, 30), range(1, 31)),
        ((110, 120, 130), range(101, 131)),
        ((1, 10, 20, 30), range(1, 31)),
        ((1, 2, 3), range(1, 4)),
        ((5, 6, 7), range(5, 8)),
        ((1, 2, 3, 5, 6), (1, 2, 3, 5, 6)),
        ((1, 2, 3, 4, 14, 24, 34), range(1, 35)),
        ((2, 4, 6, 4, 6), range(1, 7)),
    ],
    ids=["ten", "resumed", "first", "each", "resumed, each", "one lost", "another job's setting",
         "a restart"],
)  # fmt: skip
def test_an_entry_stands_for_the_steps_since_the_one_before(
    steps: tuple[int, ...], made: range | tuple[int, ...]
) -> None:
    found = logged(*((n, float(at)) for at, n in enumerate(steps, 1)))
    assert [step.number for step in found.steps] == list(made)


def test_the_steps_of_an_entry_take_the_mean_and_its_readings_stand_at_the_last() -> None:
    run = logged((2, 3.0), (4, 5.0), ends_s=(106, 118))
    assert [(step.number, step.seconds, step.real_ns) for step in run.steps] == [
        (1, 3.0, 103 * S), (2, 3.0, 106 * S), (3, 5.0, 113 * S), (4, 5.0, 118 * S),
    ]  # fmt: skip
    counted = [sorted(step.counters) for step in run.steps]
    assert counted == [[], ["loss", "step_time"]] * 2
    assert any("means over 2 steps" in note for note in run.log_notes)
    assert not any("means over" in note for note in logged((1, 3.0), (2, 5.0)).log_notes)


def test_what_is_slow_at_the_start_is_the_first_step_of_a_resumed_job(tmp_path: Path) -> None:
    """And not all ten of which the first entry is a mean; what they took together stays."""
    run = logged((510, 4.0), *((step, 2.0) for step in range(520, 580, 10)))
    assert [step.seconds for step in run.steps] == pytest.approx([22.0] + 69 * [2.0])
    write_run(tmp_path / "run", run, "test")
    assert summarize(rltrace.open_run(tmp_path / "run")).steps.warmup == (501,)


ENTRY = "{{'loss': 0.1, 'num_tokens': 9.0, 'reward': 0.5, 'step_time': 2.0, 'epoch': {}}}"
END = str({"train_runtime": 160.4, "train_steps_per_second": 0.25, "epoch": 0.2})


@pytest.mark.parametrize(
    ("before", "epochs", "after", "made"),
    [
        ("+ python grpo.py --logging_steps 10 \\", (0.05, 0.1, 0.15, 0.2), "", range(1, 41)),
        ("", (0.05, 0.1, 0.15, 0.2), END, range(1, 41)),
        ("logging_steps: 10", (0.005, 0.05, 0.1, 0.15), "", range(1, 31)),
        ("'logging_steps': 5,", (2.51, 2.53, 2.54, 2.56, 2.57), "", range(831, 856)),
        ("logging_steps=10", (0.0, 0.0, 0.01, 0.01, 0.02), "", range(1, 51)),
        ("logging_steps=0.1", (0.05, 0.1, 0.15), "", range(1, 4)),
        ("", (0.05, 0.1, 0.15), "", range(1, 4)),
    ],
    ids=["stated", "summed up", "and the first", "resumed, rounded", "short", "a share", "unknown"],
)
def test_epochs_tell_the_steps_of_a_console_without_a_bar(
    tmp_path: Path, before: str, epochs: tuple[float, ...], after: str, made: range
) -> None:
    shown = [before, *map(ENTRY.format, epochs), after]
    (tmp_path / "log").write_text("\n".join(shown), "utf-8")
    run = read_run(tmp_path / "log", "trl")
    assert [step.number for step in run.steps] == list(made)
    assert any("says no step" in note for note in run.log_notes) is (len(made) < 10)


def test_timed_blocks_are_shared_out_among_the_steps_that_they_were_run_in() -> None:
    """wandb has a row a call: ten of them stand before the figures of ten steps."""
    records = []
    for step in (10, 20):
        blocks = {f"{PROFILED}transformers.generate": 2.0}
        records += [Record(20 * step + i, blocks) for i in range(10)]
        figures = {"train/step_time": 4.0, "train/global_step": float(step)}
        records.append(Record(20 * step + 10, figures))
    run = read_durations(Log("log", "wandb file", tuple(records)), "trl")
    assert [[part.seconds for part in step.inside] for step in run.steps] == [[2.0]] * 20


def test_a_report_of_means_has_no_interval_and_says_what_they_are(tmp_path: Path) -> None:
    write_run(tmp_path / "run", logged((10, 2.0), (20, 2.2), (30, 2.1)), "test")
    run = rltrace.open_run(tmp_path / "run")
    found = run.sql("SELECT count(*), sum(seconds) FROM steps").fetchall()
    assert found == [(30, pytest.approx(63.0))]
    told = " ".join(invoke("report", "--full", tmp_path / "run").output.split())
    assert "2.10 s a step, 30 steps" in told


def test_a_step_that_stands_for_millions_is_refused(tmp_path: Path) -> None:
    """Its figures would be those of each step since the one before."""
    figures = {"step_time": 3.5, "completions/mean_length": 6.5, "loss": 0.5}
    lines = [{"step": step, "data": figures} for step in (1, 1_800_000_000)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    refused = invoke("report", tmp_path / "log.jsonl")
    assert (refused.exit_code, "steps" in refused.stderr) == (4, True)
