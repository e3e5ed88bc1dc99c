"""What becomes of OpenRLHF's logs: an ordinary run that knows nothing which the log did not say."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import rltrace
from rltrace.cli import main
from rltrace.importers.openrlhf import BROADCAST, GENERATION, PARTS, STEP, lay_out, read
from rltrace.testing.inside.analysis import Summary, summarize
from rltrace.testing.inside.importers import Log, Record
from rltrace.testing.inside.report import evidence, headline
from rltrace.testing.inside.run import Imported, import_log
from rltrace.testing.inside.trace import UNREADABLE, WRONG_USAGE, RltraceError, Stage
from tests.importers.logs import FIXTURES

WANDB = FIXTURES / "openrlhf.wandb"
EVENTS = FIXTURES / "openrlhf_async"
CONSOLE = FIXTURES / "openrlhf_console.log"
PRINTED = FIXTURES / "openrlhf_async_console.log"  # lines of what 0.11.2 printed, on a CPU
LINE = "(PPOTrainer pid=7) INFO 11-21 13:00:00 ppo_trainer.py:549] ✨ Global step "


def imported(log: Path, tmp_path: Path) -> tuple[Imported, Summary]:
    done = import_log("openrlhf", log, tmp_path / "run")
    return done, summarize(rltrace.open_run(tmp_path / "run"))


def tau(summary: Summary) -> dict[str, float]:
    return {row.name: row.tau_s.mean for row in summary.stages}


def reasons(summary: Summary) -> dict[str, str]:
    return {unseen.name: unseen.reason for unseen in summary.coverage.unseen}


def timing(*parts_s: float, total_s: float | None = None) -> dict[str, float]:
    """What is logged of a step; its total is the sum unless given."""
    named = dict(zip(PARTS, parts_s, strict=True))
    return {**named, STEP: sum(parts_s) if total_s is None else total_s, "actor_lr": 1e-6}


def log_of(*steps: dict[str, float]) -> Log:
    records = tuple(Record(n, metrics) for n, metrics in enumerate(steps, 1))
    return Log("log", "TensorBoard events", records, changed_ns=10**18)


def test_a_synchronous_run_of_wandb_gives_the_stage_table(tmp_path: Path) -> None:
    done, summary = imported(WANDB, tmp_path)
    assert (done.trainer, done.framework_version) == ("PPOTrainer", "0.9.8 or later")
    assert (done.steps, done.first_step, done.last_step) == (4, 1, 4)
    second = summary.steps.times[1]
    assert second.seconds == pytest.approx(0.638)
    assert second.tau_s["rollout"] == pytest.approx(0.310)
    assert second.tau_s["other"] == pytest.approx(0.084)
    assert second.tau_s["train"] == pytest.approx(0.138)
    assert second.tau_s["sync"] == pytest.approx(0.106)
    assert summary.composition is not None
    assert summary.composition.placement == "disaggregated"  # wandb keeps colocate_all=False


def test_a_reward_that_the_log_has_as_no_number_is_an_alarm(tmp_path: Path) -> None:
    shown = [
        f"{LINE}{n}: {{{', '.join(f'{k!r}: {v}' for k, v in timing(3.0, 2.0, 3.0, 1.0).items())}, "
        f"'reward': {reward}}}\n"
        for n, reward in enumerate(("0.5", "nan", "nan"), 1)
    ]
    (tmp_path / "log").write_text("".join(shown), "utf-8")
    _, summary = imported(tmp_path / "log", tmp_path)
    assert [(alarm.kind, alarm.severity) for alarm in summary.health.alarms] == [
        ("not finite", "alarm")
    ]
    assert "reward was NaN" in summary.health.alarms[0].says


def test_no_wall_is_named_that_the_log_has_in_one_figure_with_another(tmp_path: Path) -> None:
    """Scoring is within timing/generation, which leads: either may be what is slow."""
    steps = [timing(0.9, 0.1, 0.1, 0.1) for _ in range(6)]
    lines = [json.dumps({"step": n, **one}) for n, one in enumerate(steps, 1)]
    log = tmp_path / "metrics.jsonl"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _, summary = imported(log, tmp_path)
    assert summary.verdict.first is None
    assert summary.verdict.fixes == ()
    assert "generation or scoring" in headline(summary)
    said = " ".join(evidence(summary))
    assert "you see" not in said
    assert "rollout (τ_R) holds" not in said


def test_counters_have_openrlhf_s_own_names_whatever_the_log(tmp_path: Path) -> None:
    done, _ = imported(WANDB, tmp_path)
    found = rltrace.open_run(done.path).sql("select distinct counter from samples").fetchall()
    names = {name for (name,) in found}
    assert {"kl", STEP, "rollout/reward_mean", "eval/eval_default_pass1"} <= names
    assert not {"global_step", "train/kl", "eval/global_step"} & names


def test_an_asynchronous_run_has_its_generation_beside_the_trainer(tmp_path: Path) -> None:
    done, summary = imported(EVENTS, tmp_path)
    assert done.trainer == "PPOTrainerAsync"
    assert summary.composition is not None
    assert summary.composition.placement == "async"
    assert done.spans == summary.run.spans
    run = rltrace.open_run(done.path)
    rows = run.sql(
        "select step, (end_ns - start_ns) / 1e9 s from spans where stage = 'rollout' order by 1"
    ).fetchall()
    # None is cut short, though some took longer than the step that trained on them.
    assert [s for _, s in rows] == pytest.approx([3.9, 1.1, 1.2, 1.0, 1.1], abs=1e-6)
    late = run.sql(
        "select count(*) from spans g join spans e using (step) where g.stage = 'rollout'"
        f" and e.name = '{PARTS[1]}' and g.end_ns <> e.start_ns"
    ).fetchall()
    assert late == [(0,)]


def test_the_asynchronous_broadcast_is_a_wait_and_sync_is_unknown(tmp_path: Path) -> None:
    done, summary = imported(EVENTS, tmp_path)
    assert "sync" not in tau(summary)
    assert tau(summary)["wait"] == pytest.approx(0.935)
    assert "at most timing/broadcast" in reasons(summary)["sync"]
    assert any(note.startswith(f"{BROADCAST}: from before the lock") for note in done.notes)


def test_an_evaluation_that_was_logged_late_is_no_step(tmp_path: Path) -> None:
    done, summary = imported(EVENTS, tmp_path)
    assert done.steps == 5
    assert summary.steps.repeated == 0
    assert len(done.log_notes) == 1


def test_the_console_gives_what_it_shows(tmp_path: Path) -> None:
    done, summary = imported(CONSOLE, tmp_path)
    assert (done.trainer, done.framework_version) == ("PPOTrainer", "0.9.6 or 0.9.7")
    assert done.steps == 3
    assert summary.steps.times[0].tau_s["rollout"] == pytest.approx(4.246)
    notes = " ".join(done.log_notes)
    assert "the last number of the last line, which is torn" in notes
    assert f"steps without {STEP}, of which only counters are kept: 4" in notes


def test_what_an_asynchronous_run_really_printed_is_read(tmp_path: Path) -> None:
    done, summary = imported(PRINTED, tmp_path)
    assert (done.trainer, done.steps) == ("PPOTrainerAsync", 4)
    assert (done.readings, len(done.log_notes)) == (4 * 28, 1)
    lengths = [step.seconds for step in summary.steps.times]
    assert lengths == pytest.approx([12.260235, 0.785384, 0.925141, 0.523261], abs=1e-6)
    # It waited for its first batch before that was being generated, which no timer shows.
    assert summary.steps.times[0].unattributed_s == pytest.approx(12.260 - 5.918 - 1.192, abs=1e-3)
    found = rltrace.open_run(done.path).sql(
        "select value from samples where counter = 'rollout/response_length_mean' order by time_ns"
    )
    assert found.fetchall()[0] == (47.25,)


def test_a_last_line_without_its_end_of_line_is_whole_if_its_dict_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"{LINE}1: {timing(1.0, 2.0, 3.0, 4.5)}", "utf-8")
    assert read(log).steps[0].seconds == 10.5
    log.write_text(f"{LINE}1: {{'timing/generation': 1", "utf-8")
    with pytest.raises(RltraceError):
        read(log)


def test_a_sum_of_numbers_as_tensorboard_keeps_them_is_a_sum() -> None:
    def kept(value: float) -> float:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])

    logged = timing(31.4159, 2.71828, 17.3205, 1.41421)
    run = lay_out(log_of({f"train/{name}": kept(value) for name, value in logged.items()}))
    assert run.trainer == "PPOTrainer"
    assert [t.name for t in run.steps[0].inside] == list(PARTS)


def test_a_total_that_is_no_sum_is_wall_clock() -> None:
    run = lay_out(log_of(timing(1.0, 2.0, 3.0, 4.0, total_s=10.001), timing(1.0, 2.0, 3.0, 4.0)))
    assert (run.trainer, run.placement) == ("PPOTrainerAsync", "async")
    assert [(t.name, t.stage) for t in run.steps[0].before] == [(GENERATION, Stage.ROLLOUT)]


def test_without_its_configuration_a_synchronous_run_tells_no_placement() -> None:
    assert lay_out(log_of(timing(1.0, 2.0, 3.0, 4.0))).placement == ""


def test_a_timer_that_no_clock_can_have_shown_is_said() -> None:
    run = lay_out(log_of(timing(-1.0, 2.0, 3.0, 4.0, total_s=9.0)))
    assert any(f"{GENERATION} (1)" in note for note in run.log_notes)
    assert (Stage.ROLLOUT, f"what the log has as {GENERATION} is never a usable time") in (
        run.not_logged
    )


def test_steps_of_a_restart_are_kept(tmp_path: Path) -> None:
    lines = [f"{LINE}{n}: {timing(n, 1.0, 1.0, k)}\n" for k, n in ((1, 1), (1, 2), (2, 2), (2, 3))]
    (tmp_path / "log").write_text("".join(lines), "utf-8")
    assert [step.number for step in read(tmp_path / "log").steps] == [1, 2, 2, 3]


def test_steps_that_were_not_logged_are_said() -> None:
    logged = tuple(Record(n, timing(1.0, 2.0, 3.0, 4.0)) for n in (5, 10, 15))
    notes = lay_out(Log("log", "wandb file", logged)).log_notes
    assert sum(note.startswith("steps are missing in it") for note in notes) == 1


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"actor_lr": 1e-6, "policy_loss": 0.1}, "has no times: it logs them since 0.9.6"),
        ({"timing/ppo_train": 1.0, "actor_lr": 1e-6}, "asynchronous trainer of OpenRLHF 0.9.6"),
        ({"loss": 1.0, "chosen/reward": 0.1}, "no log of OpenRLHF's PPO trainers.*chosen, loss"),
    ],
)
def test_a_log_without_times_is_one_sentence(metrics: dict[str, float], says: str) -> None:
    with pytest.raises(RltraceError, match=says) as error:
        lay_out(log_of({f"train/{name}": value for name, value in metrics.items()}))
    assert error.value.exit_code == UNREADABLE


def test_a_log_without_a_step_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("INFO engines are up\n", "utf-8")
    with pytest.raises(RltraceError, match="holds no metrics of OpenRLHF: no “Global step 1"):
        read(tmp_path / "log")


def run_cli(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.mark.parametrize(
    ("named", "log", "is_of"),
    [
        ("verl", WANDB, "OpenRLHF, not of verl: rltrace import openrlhf"),
        ("verl", CONSOLE, "OpenRLHF, not of verl: rltrace import openrlhf"),
        ("verl", EVENTS, "OpenRLHF, not of verl: rltrace import openrlhf"),
        ("openrlhf", FIXTURES / "v1_sync.jsonl", "verl, not of OpenRLHF: rltrace import verl"),
        ("openrlhf", FIXTURES / "verl.wandb", "verl, not of OpenRLHF: rltrace import verl"),
    ],
)
def test_the_wrong_framework_is_one_sentence(
    tmp_path: Path, named: str, log: Path, is_of: str
) -> None:
    result = run_cli("import", named, log, "--out", tmp_path / "run")
    assert (result.exit_code, len(result.output.splitlines())) == (WRONG_USAGE, 1)
    assert result.output.endswith(f"looks like a log of {is_of}\n")


@pytest.mark.parametrize("log", [WANDB, EVENTS, PRINTED], ids=["wandb", "events", "console"])
def test_every_reader_of_traces_takes_the_run(tmp_path: Path, log: Path) -> None:
    run = tmp_path / "run"
    told: dict[str, Any] = json.loads(
        run_cli("import", "openrlhf", log, "--out", run, "--json").output
    )
    assert told["stages"]["train"] == told["steps"]
    for words in (["report"], ["report", "--json"], ["timeline"], ["info"], ["compact"]):
        assert run_cli(*words, run).exit_code == 0
    assert json.loads(run_cli("doctor", run, "--json").output)["problems"] == []
