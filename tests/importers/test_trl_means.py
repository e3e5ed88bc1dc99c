"""Where TRL logs every few steps, its figures are means over these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import rltrace
from rltrace.cli import main
from rltrace.testing.inside.importers import ImportedRun, Log, Record, of_log, write_run
from rltrace.testing.inside.importers import trl_read as read

S = 1_000_000_000


def logged(*entries: tuple[int, float], ends_s: tuple[int, ...] = ()) -> ImportedRun:
    """The run of entries `(step, step_time)`."""
    ends = [end * S for end in ends_s] or [None] * len(entries)
    return of_log(
        Log(
            "log",
            "TensorBoard events",
            tuple(
                Record(step, {"train/step_time": took, "train/loss": 1.0}, end)
                for (step, took), end in zip(entries, ends, strict=True)
            ),
        )
    )


def lengths(run: ImportedRun) -> dict[int, float | None]:
    """Seconds by step."""
    return {step.number: step.seconds for step in run.steps}


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
    ],
    ids=["ten", "resumed", "first", "each", "resumed, each", "one lost", "another job's setting"],
)
def test_an_entry_stands_for_the_steps_since_the_one_before(
    steps: tuple[int, ...], made: range | tuple[int, ...]
) -> None:
    assert [step.number for step in logged(*((n, 2.0) for n in steps)).steps] == list(made)


def test_the_steps_of_an_entry_take_the_mean_and_its_readings_stand_at_the_last() -> None:
    run = logged((2, 3.0), (4, 5.0), ends_s=(106, 118))
    assert lengths(run) == {1: 3.0, 2: 3.0, 3: 5.0, 4: 5.0}
    assert [step.real_ns for step in run.steps] == [103 * S, 106 * S, 113 * S, 118 * S]
    assert [bool(step.counters) for step in run.steps] == [False, True, False, True]
    assert any("means over 2 steps" in note for note in run.log_notes)
    assert not any("means over" in note for note in logged((1, 3.0), (2, 5.0)).log_notes)


def test_the_steps_of_a_restart_are_those_of_a_usual_entry() -> None:
    found = [step.number for step in logged((2, 1.0), (4, 1.0), (6, 1.0), (4, 2.0), (6, 2.0)).steps]
    assert found == [1, 2, 3, 4, 5, 6, 3, 4, 5, 6]


def test_timed_blocks_are_shared_out_among_the_steps_that_they_were_run_in() -> None:
    """wandb has a row a call: ten of them stand before the figures of ten steps."""
    records = []
    for step in (10, 20):
        blocks = {"profiling/Time taken: GRPOTrainer.transformers.generate": 2.0}
        records += [Record(20 * step + i, blocks) for i in range(10)]
        figures = {"train/step_time": 4.0, "train/global_step": float(step)}
        records.append(Record(20 * step + 10, figures))
    run = of_log(Log("log", "wandb file", tuple(records)))
    assert [[part.seconds for part in step.inside] for step in run.steps] == [[2.0]] * 20


def test_a_state_alone_says_how_many_steps_its_one_entry_is_of(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    history = [
        {"step": 10, "step_time": 2.0, "loss": 0.5, "epoch": 0.1},
        {"step": 10, "train_runtime": 25.0, "epoch": 0.1},
    ]
    path.write_text(json.dumps({"logging_steps": 10, "log_history": history}), "utf-8")
    assert lengths(read(path)) == dict.fromkeys(range(1, 11), 2.0)


def test_an_evaluation_between_two_entries_stands_at_its_step(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    history = [
        {"step": 10, "step_time": 2.0, "loss": 0.5, "epoch": 0.1},
        {"step": 15, "eval_loss": 7.0, "epoch": 0.15},
        {"step": 20, "step_time": 3.0, "loss": 0.5, "epoch": 0.2},
    ]
    path.write_text(json.dumps({"logging_steps": 10, "log_history": history}), "utf-8")
    run = read(path)
    assert len(run.steps) == 20
    assert [step.number for step in run.steps if "eval_loss" in step.counters] == [15]
    assert not any("length is not known" in note for note in run.log_notes)


def test_a_report_of_means_has_no_interval_and_says_what_they_are(tmp_path: Path) -> None:
    write_run(tmp_path / "run", logged((10, 2.0), (20, 2.2), (30, 2.1)), "test")
    run = rltrace.open_run(tmp_path / "run")
    assert run.sql("SELECT count(*), sum(seconds) FROM steps").fetchall() == [
        (30, pytest.approx(63.0))
    ]
    told = CliRunner().invoke(main, ["report", str(tmp_path / "run")]).output
    assert "means over 10 steps" in " ".join(told.split())
    assert "2.10 s a step (n = 30)" in told
