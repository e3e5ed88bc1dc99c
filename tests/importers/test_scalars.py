"""Logs of frameworks that write their timers once a step, in the formats that they document.

The files are small and written here; each total that a run has of a stage is the log's own.
"""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.importers import IMPORTERS, MAPPED
from rltrace.testing.inside.analysis import is_laid_out
from rltrace.testing.inside.run import Imported, import_log
from rltrace.testing.inside.trace import UNREADABLE, RltraceError

Steps = list[dict[str, float]]

SLIME: Steps = [
    {
        "perf/rollout_time": 30.0 + step,
        "perf/train_wait_time": 36.0 + step,
        "perf/train_time": 20.0,
        "perf/actor_train_time": 12.0,
        "perf/ref_log_probs_time": 3.0,
        "perf/log_probs_time": 4.0,
        "perf/data_preprocess_time": 0.5,
        "perf/update_weights_time": 2.0,
        "perf/step_time": 56.0 + step,
        "perf/actor_train_tflops": 400.0,
    }
    for step in range(3)
]
SLIME_ASYNC: Steps = [{**step, "perf/rollout_time": 70.0} for step in SLIME]
NEMO: Steps = [
    {
        "timing/train/total_step_time": 100.0,
        "timing/train/prepare_for_generation/total": 8.0,
        "timing/train/prepare_for_generation/transfer_and_update_weights": 5.0,
        "timing/train/generation": 50.0,
        "timing/train/policy_and_reference_logprobs": 12.0,
        "timing/train/policy_training": 20.0,
        "train/loss": 0.1,
    }
]
NEMO_ASYNC: Steps = [
    {
        "timing/train/total_step_time": 60.0,
        "timing/train/exposed_generation": 25.0,
        "timing/train/policy_training": 20.0,
        "timing/train/weight_sync": 4.0,
        "train/avg_trajectory_age": 1.5,
    }
]
AREAL: Steps = [
    {
        "timeperf/rollout": 5.0,
        "timeperf/recompute_logp": 2.0,
        "timeperf/train_step": 9.0,
        "timeperf/update_weights": 1.0,
    }
]
ROLL: Steps = [
    {
        "time/step_total": 0.0 if step == 0 else 40.0 + step,
        "time/step_model_update": 3.0,
        "time/step_generate": 20.0,
        "time/ref_log_probs_values": 4.0,
        "time/step_train": 10.0,
    }
    for step in range(3)
]
RLINF: Steps = [
    {
        "time/step": 30.0,
        "time/sync_weights": 2.0,
        "time/generate_rollouts": 15.0,
        "time/actor_training": 10.0,
    }
]
PRIME: Steps = [
    {
        "time/step": 30.0,
        "time/wait_for_batch": 12.0,
        "time/forward_backward": 14.0,
        "time/broadcast_weights": 2.0,
    }
]
FORGE: Steps = [
    {
        "main_perf/continuous_training/total_duration_avg_s": 20.0,
        "main_perf/continuous_training/waiting_for_buffer/duration_avg_s": 6.0,
        "main_perf/continuous_training/train_step/duration_avg_s": 10.0,
        "main_perf/continuous_training/push_weights/duration_avg_s": 2.0,
        "main_perf/continuous_rollouts/policy_generation/duration_avg_s": 90.0,
    }
]
MINDSPEED: Steps = [
    {"timing/all": 50.0, "timing/rollout": 30.0, "timing/update": 12.0, "timing/old_log_p": 4.0}
]

TOTALS: list[tuple[str, str, Steps, dict[str, float], float]] = [
    ("slime", "sync", SLIME, {
        "rollout": 93.0, "wait": 12.0, "train": 36.0, "reference": 9.0, "logprob": 12.0,
        "data": 1.5, "sync": 6.0,
    }, 171.0),
    ("slime", "async", SLIME_ASYNC, {
        "rollout": 210.0, "wait": 111.0, "train": 36.0, "reference": 9.0,
        "logprob": 12.0, "data": 1.5, "sync": 6.0,
    }, 171.0),
    ("nemo-rl", "sync", NEMO, {
        "switch": 3.0, "sync": 5.0, "rollout": 50.0, "logprob": 12.0, "train": 20.0,
    }, 100.0),
    ("nemo-rl", "async", NEMO_ASYNC, {"wait": 25.0, "train": 20.0, "sync": 4.0}, 60.0),
    ("areal", "", AREAL, {"wait": 5.0, "logprob": 2.0, "train": 9.0, "sync": 1.0}, 17.0),
    ("roll", "", ROLL, {
        "sync": 9.0, "rollout": 60.0, "reference": 12.0, "train": 30.0
    }, 41.0 + 42.0 + 37.0),
    ("rlinf", "", RLINF, {"sync": 2.0, "rollout": 15.0, "train": 10.0}, 30.0),
    ("prime-rl", "", PRIME, {"wait": 12.0, "train": 14.0, "sync": 2.0}, 30.0),
    ("torchforge", "", FORGE, {"wait": 6.0, "train": 10.0, "sync": 2.0}, 20.0),
    ("mindspeed-rl", "", MINDSPEED, {"rollout": 30.0, "train": 12.0, "logprob": 4.0}, 50.0),
]  # fmt: skip


def write(path: Path, steps: Steps, extra: dict[str, Any] | None = None) -> Path:
    """JSON lines, one a step, as these frameworks' loggers can be made to write them."""
    lines = [json.dumps({"step": at, **(extra or {}), **step}) for at, step in enumerate(steps)]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def imported(tmp_path: Path, framework: str, log: Path) -> tuple[Imported, Any]:
    """What importing says, and the run."""
    done = import_log(framework, log, tmp_path / "run")
    return done, rltrace.open_run(done.path)


def seconds(run: Any) -> dict[str, float]:
    """The summed length of the spans of each stage."""
    found = run.sql("SELECT stage, sum(end_ns - start_ns) / 1e9 FROM spans GROUP BY 1")
    return dict(found.fetchall())


@pytest.mark.parametrize(
    ("framework", "steps", "totals", "length"),
    [pytest.param(f, s, t, n, id=f"{f} {kind}".strip()) for f, kind, s, t, n in TOTALS],
)
def test_the_totals_are_the_log_s_own(
    tmp_path: Path, framework: str, steps: Steps, totals: dict[str, float], length: float
) -> None:
    log = write(tmp_path / "log.jsonl", steps)
    done, run = imported(tmp_path, framework, log)
    by_stage = seconds(run)
    assert by_stage.pop("step") == pytest.approx(length)
    assert by_stage == pytest.approx(totals)
    assert done.steps == len(steps)
    assert any("nothing is said to overlap" in note for note in done.log_notes)


def test_slime_s_generation_beside_training_ends_before_the_step_s_own_work(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", SLIME_ASYNC)
    done, run = imported(tmp_path, "slime", log)
    assert done.trainer == "train_async.py"
    assert is_laid_out(run)
    ends = "SELECT max(end_ns) FROM spans WHERE stage = 'rollout' AND step = 1"
    begins = "SELECT min(start_ns) FROM spans WHERE stage = 'wait' AND step = 1"
    [(end,)], [(begin,)] = run.sql(ends).fetchall(), run.sql(begins).fetchall()
    assert end == begin


def test_slime_s_console_is_its_log_too(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    lines = [f"[2026-08-21 10:00:0{at}] train_metric_utils.py:7 - perf {at}: {step}" for at, step in
             enumerate(SLIME)]  # fmt: skip
    log.write_text("\n".join(["starting", *lines, ""]), "utf-8")
    done, run = imported(tmp_path, "slime", log)
    assert done.steps == 3
    assert seconds(run)["train"] == pytest.approx(36.0)


def test_roll_s_console_is_its_log_too(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    lines = [
        "[INFO] metrics_tag: " + json.dumps({"step": at, "metrics": step})
        for at, step in enumerate(ROLL)
    ]
    log.write_text("\n".join([*lines, ""]), "utf-8")
    done, run = imported(tmp_path, "roll", log)
    assert seconds(run)["rollout"] == pytest.approx(60.0)
    assert done.steps == 3


def test_a_record_that_states_its_time_ends_its_step_there(tmp_path: Path) -> None:
    log = write(tmp_path / "metrics.jsonl", PRIME, {"time": 1_800_000_000.5})
    _, run = imported(tmp_path, "prime-rl", log)
    [(end,)] = run.sql("SELECT max(end_ns) FROM spans WHERE stage = 'step'").fetchall()
    assert end == 1_800_000_000_500_000_000
    assert run.sql("SELECT 1 FROM samples WHERE counter = 'time'").fetchall() == []


def test_what_slime_states_as_its_step_counts(tmp_path: Path) -> None:
    """wandb counts rows: slime logs rollouts and optimizer updates into the same."""
    records = [
        {"step": 7, "rollout/step": 2, **SLIME[0]},
        {"step": 8, "train/step": 40, "train/loss": 0.5},
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    done, _ = imported(tmp_path, "slime", log)
    assert (done.first_step, done.steps) == (2, 1)


def test_what_a_log_cannot_tell_is_unknown_and_said(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", NEMO_ASYNC)
    done, _ = imported(tmp_path, "nemo-rl", log)
    assert "rollout: exposed_generation is how long the trainer waited" in done.not_logged
    assert "rollout" not in done.stages


@pytest.mark.parametrize(
    ("framework", "steps", "said"),
    [
        ("slime", NEMO, "looks like a log of NeMo-RL, not of slime: rltrace import nemo-rl"),
        ("areal", PRIME, "looks like a log of prime-rl, not of AReaL: rltrace import prime-rl"),
        ("rlinf", MINDSPEED[:1], "looks like a log of MindSpeed-RL, not of RLinf"),
        ("roll", [{"loss": 1.0}], "is no log of ROLL's trainer: it has no timer of its"),
    ],
)
def test_the_wrong_framework_is_one_sentence(
    tmp_path: Path, framework: str, steps: Steps, said: str
) -> None:
    log = write(tmp_path / "log.jsonl", steps)
    with pytest.raises(RltraceError, match=said):
        import_log(framework, log, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_logs_of_two_frameworks_in_one_are_read_as_the_one_that_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    both = [{"step": 0, **SLIME[0]}, {"step": 0, "time/forward_backward": 3.0}]
    log.write_text("".join(json.dumps(record) + "\n" for record in both), "utf-8")
    _, run = imported(tmp_path, "slime", log)
    assert "other" not in seconds(run)


def test_a_torn_last_line_costs_that_line(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", SLIME)
    log.write_text(log.read_text("utf-8")[:-40], "utf-8")
    done, _ = imported(tmp_path, "slime", log)
    assert done.steps == 2
    assert any("the last one, is torn" in note for note in done.log_notes)


NAMES = ("log.jsonl", "log.txt", "trainer_state.json", "x.tfevents.1", "run-x.wandb")


@pytest.mark.parametrize("framework", sorted(IMPORTERS))
def test_every_importer_says_alike_what_is_wrong_with_an_empty_log(
    tmp_path: Path, framework: str
) -> None:
    mapping = tmp_path / "map.toml"
    mapping.write_text("[stages]\n'a' = 'train'\n", "utf-8")
    mapped = mapping if framework in MAPPED else None
    for log in (tmp_path / name for name in NAMES):
        for content in (b"", b" \n\n", codecs.BOM_UTF8):
            log.write_bytes(content)
            with pytest.raises(RltraceError) as error:
                import_log(framework, log, tmp_path / "run", mapped)
            assert str(error.value) == f"{log} is empty: there is nothing to import"
            assert error.value.exit_code == UNREADABLE
    missing = tmp_path / "missing.jsonl"
    with pytest.raises(RltraceError) as error:
        import_log(framework, missing, tmp_path / "run", mapped)
    assert str(error.value) == f"{missing} does not exist: give the log of a run"


@pytest.mark.parametrize("name", ["x.tfevents.1", "run-x.wandb"])
def test_a_folder_of_an_empty_file_is_one_sentence_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(
        RltraceError, match=rf"no numbers of a step \(skipped: {name}, which is empt"
    ):
        import_log("slime", tmp_path, tmp_path / "run")
