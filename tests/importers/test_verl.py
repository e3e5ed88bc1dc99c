"""What becomes of verl's logs: an ordinary run, which knows nothing that the log did not say."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import rltrace
from rltrace.cli import main
from rltrace.importers.verl import AFTER, INSIDE, read
from rltrace.testing.inside.adapters import LABELS
from rltrace.testing.inside.analysis import Summary, summarize
from rltrace.testing.inside.importers import placed
from rltrace.testing.inside.report import terminal
from rltrace.testing.inside.run import Imported, import_log
from rltrace.testing.inside.trace import UNREADABLE, WRONG_USAGE, RltraceError, Stage
from tests.importers.logs import FIXTURES, json_lines, metrics


def imported(log: Path, tmp_path: Path) -> tuple[Imported, Summary]:
    done = import_log("verl", log, tmp_path / "run")
    return done, summarize(rltrace.open_run(tmp_path / "run"))


def tau(summary: Summary) -> dict[str, float]:
    return {row.name: row.tau_s.mean for row in summary.stages}


def reasons(summary: Summary) -> dict[str, str]:
    return {unseen.name: unseen.reason for unseen in summary.coverage.unseen}


def shown(summary: Summary) -> str:
    console = Console(width=500, record=True, file=io.StringIO())
    terminal.render(summary, console)
    return console.export_text()


def test_every_timer_of_the_loop_has_a_stage() -> None:
    assert {name: LABELS[name] for name in (*INSIDE, *AFTER)}
    assert {LABELS[name].upper() for name in (*INSIDE, *AFTER)} <= set(Stage.__members__)


def test_the_legacy_trainer_s_console_log_gives_the_stage_table(tmp_path: Path) -> None:
    done, summary = imported(FIXTURES / "legacy_console.log", tmp_path)
    gens = [18.951858508367565, 20.30763865842286]
    assert summary.steps.times[0].tau_s["rollout"] == pytest.approx(gens[0], abs=1e-8)
    assert summary.steps.times[1].tau_s["rollout"] == pytest.approx(gens[1], abs=1e-8)
    assert set(tau(summary)) == {"rollout", "logprob", "reference", "train", "sync", "other"}
    assert (done.trainer, done.framework_version) == ("RayPPOTrainer", "0.8 or later")
    assert summary.binding.stage is not None
    assert summary.binding.stage.name == "rollout"
    assert summary.composition is not None
    assert summary.composition.placement == "colocated"
    assert summary.composition.difference_s == pytest.approx(0.03, abs=0.01)


def test_a_loss_that_the_log_has_as_no_number_is_an_alarm(tmp_path: Path) -> None:
    steps = enumerate((0.5, math.nan, math.nan), 1)
    logged = ((n, metrics(old_log_prob=x) | {"actor/pg_loss": x}) for n, x in steps)
    log = json_lines(tmp_path / "log", *logged)
    _, summary = imported(log, tmp_path)
    assert [alarm.says for alarm in summary.health.alarms] == [
        "actor/pg_loss was NaN or infinite in 2 of 3 readings, first in step 2"
    ]
    assert summary.verdict.fixes == ()
    assert summary.steps.times[1].tau_s.get("logprob", 0.0) == 0.0  # a timer without a time


def test_a_reward_timer_of_microseconds_leaves_the_reward_unknown(tmp_path: Path) -> None:
    _, summary = imported(FIXTURES / "legacy_console.log", tmp_path)
    assert "reward" not in tau(summary)
    assert reasons(summary)["reward"] == "not in the log: verl scores while it generates"
    assert "verl's figure (timing_s/reward): at most 12 µs" in shown(summary)


def test_a_reward_timer_that_holds_the_scoring_is_the_reward(tmp_path: Path) -> None:
    log = json_lines(tmp_path / "log", *((n, metrics()) for n in range(1, 4)))
    assert tau(imported(log, tmp_path)[1])["reward"] == 2.0


def test_gen_behind_v1_s_poll_is_no_generation(tmp_path: Path) -> None:
    """A step whose generation took 0.6 s is logged with 2.02 s of gen."""
    _, summary = imported(FIXTURES / "v1_sync.jsonl", tmp_path)
    assert "rollout" not in tau(summary)
    assert tau(summary)["wait"] == pytest.approx(2.015, abs=0.01)
    assert "2 s poll" in reasons(summary)["rollout"]
    assert "up to 2 s too long" in shown(summary)
    assert summary.steps.warmup == (1,)  # which holds the start of the agent loops
    assert summary.steps.times[0].unattributed_s == pytest.approx(9.9)


def test_gen_that_is_long_beside_the_poll_is_generation(tmp_path: Path) -> None:
    lag = {"training/off_policy/trajectory_staleness/max": 0.0}
    log = json_lines(tmp_path / "log", *((n, metrics() | lag) for n in range(1, 4)))
    _, summary = imported(log, tmp_path)
    assert tau(summary)["rollout"] == 30.0
    assert "verl's figure (timing_s/gen)" in shown(summary)


def test_what_an_async_trainer_waits_is_no_generation(tmp_path: Path) -> None:
    done, summary = imported(FIXTURES / "separate_async", tmp_path)
    assert done.trainer == "V1 separate_async"
    assert "rollout" not in tau(summary)
    assert "waited for samples" in reasons(summary)["rollout"]
    assert summary.composition is not None
    assert summary.composition.placement == "async"
    lag = rltrace.open_run(done.path).sql(
        "select max(value) from samples where counter = "
        "'training/off_policy/trajectory_staleness/max'"
    )
    assert lag.fetchall() == [(2.0,)]


def test_lag_without_a_mode_tells_no_placement(tmp_path: Path) -> None:
    """colocate_async lags too, on shared devices: only verl's configuration tells them apart."""
    lag = {"training/off_policy/trajectory_staleness/max": 1.0}
    log = json_lines(tmp_path / "log", *((n, metrics() | lag) for n in range(1, 4)))
    _, summary = imported(log, tmp_path)
    assert summary.composition is not None
    assert summary.composition.placement == "placement unknown"
    assert tau(summary)["wait"] == 30.0


def test_the_configuration_in_a_console_log_tells_the_mode(tmp_path: Path) -> None:
    head = "{'trainer': {'use_v1': True, 'v1': {'trainer_mode': 'colocate_async',\n"
    named = metrics() | {"training/off_policy/trajectory_staleness/max": 1.0}
    line = " - ".join(f"{name}:{value!r}" for name, value in named.items())
    (tmp_path / "log").write_text(f"{head}step:1 - {line}\n", "utf-8")
    run = read(tmp_path / "log")
    assert (run.trainer, run.placement) == ("V1 colocate_async", "colocated")
    assert [t.stage for t in run.steps[0].inside if t.name == "gen"] == [Stage.ROLLOUT]


def test_one_step_off_and_fully_async_are_told_by_their_timers(tmp_path: Path) -> None:
    log = json_lines(tmp_path / "log", (1, metrics(sync_rollout_weights=1.5)))
    run = read(log)
    assert (run.trainer, run.placement) == ("one-step-off", "one-step-off")
    synced = [t.name for t in run.steps[0].inside if t.stage is Stage.SYNC]
    assert synced == ["sync_rollout_weights"]  # update_weights runs within it
    log = json_lines(tmp_path / "log", (1, metrics(**{"timing_s/param_sync": 1.5})))
    assert read(log).trainer == "fully async"


def test_weights_that_move_within_gen_are_unknown(tmp_path: Path) -> None:
    named = {k: v for k, v in metrics().items() if k != "timing_s/update_weights"}
    done, summary = imported(json_lines(tmp_path / "log", (1, named)), tmp_path)
    assert done.framework_version == "0.6 or older"
    assert reasons(summary)["sync"] == "not in the log: weights move within gen (verl 0.6)"


def test_nothing_unknown_is_zero(tmp_path: Path) -> None:
    _, summary = imported(FIXTURES / "legacy_console.log", tmp_path)
    assert all(math.isnan(row.hidden_s.mean) for row in summary.stages)
    assert summary.tail.latency_s.n == 0
    assert summary.staleness.trajectories == 0
    assert summary.syncs is None
    assert summary.goodput is None
    text = shown(summary)
    for unknown in ("latency of each trajectory", "lag and length", "bytes and phases"):
        assert unknown in text
    assert "process of the job" not in text
    assert "own cost" not in text


def test_event_files_tell_when_and_a_restart_is_said(tmp_path: Path) -> None:
    _, summary = imported(FIXTURES / "separate_async", tmp_path)
    assert summary.steps.repeated == 2
    first = summary.steps.times[0]
    end_s = first.start_ns / 1e9 + first.seconds
    assert end_s == pytest.approx(1760000002.7804, abs=1e-3)
    assert summary.steps.between_s == pytest.approx(60 + 8 * 0.25, abs=0.1)


def test_steps_without_times_are_laid_end_to_end(tmp_path: Path) -> None:
    log = FIXTURES / "v1_sync.jsonl"
    run = rltrace.open_run(imported(log, tmp_path)[0].path)
    rows = run.sql("select start_ns, end_ns from steps order by start_ns").fetchall()
    assert [a[1] for a in rows[:-1]] == [b[0] for b in rows[1:]]
    testing = run.sql("select start_ns, end_ns from spans where stage = 'eval'").fetchall()[0]
    assert testing == (rows[-1][1], log.stat().st_mtime_ns)
    assert run.meta["end_real_ns"] == log.stat().st_mtime_ns


def test_timers_that_overlap_keep_their_length(tmp_path: Path) -> None:
    log = json_lines(tmp_path / "log", *((n, metrics(step_s=50.0)) for n in range(1, 3)))
    done, summary = imported(log, tmp_path)
    assert tau(summary)["train"] == 20.0
    assert summary.steps.step_s.mean == 50.0
    assert "steps 1, 2 with timers that add up to more than the step" in " ".join(done.log_notes)


def test_a_step_without_a_length_keeps_its_counters_only(tmp_path: Path) -> None:
    untimed = {k: v for k, v in metrics().items() if k != "timing_s/step"}
    log = json_lines(tmp_path / "log", (1, metrics()), (2, untimed), (3, metrics(gen=-1.0)))
    done, summary = imported(log, tmp_path)
    assert summary.steps.complete == 2
    assert "step 2 without timing_s/step: only counters are kept" in done.log_notes
    assert (
        "rollout" not in summary.steps.times[1].tau_s or not summary.steps.times[1].tau_s["rollout"]
    )
    rows = rltrace.open_run(done.path).sql("select 1 from samples where counter like 'resp%'")
    assert len(rows.fetchall()) == 3


def test_unknown_timers_and_shuffled_steps_are_said(tmp_path: Path) -> None:
    steps = [(1, metrics(my_filter=3.0)), (3, metrics()), (2, metrics())]
    done, _ = imported(json_lines(tmp_path / "log", *steps), tmp_path)
    notes = " ".join(done.log_notes)
    assert "timers that rltrace does not know are counters only: my_filter" in notes
    assert "step 2 stands after step 3" in notes


@pytest.mark.parametrize("value", [-3.0, 1e300, float("nan")])
def test_a_timer_that_no_clock_can_have_shown_is_said(tmp_path: Path, value: float) -> None:
    log = json_lines(tmp_path / "log", *((n, metrics(gen=value, ref=4.0)) for n in (1, 2, 3)))
    run, summary = imported(log, tmp_path)
    assert any("timing_s/gen (3)" in note for note in run.log_notes)
    assert "timing_s/gen is never a usable time" in reasons(summary)["rollout"]
    assert tau(summary)["reference"] == 4.0


def test_an_import_that_is_interrupted_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(placed, "write_json", stopped)
    log = json_lines(tmp_path / "log", (1, metrics()))
    with pytest.raises(KeyboardInterrupt):
        import_log("verl", log, tmp_path / "runs" / "run")
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"step": 1, "data": {"perf/throughput": 3.0}}, "no timing_s/.*begins with perf"),
        ({"step": 1, "data": {"timing_s/gen": 3.0}}, "no timing_s/step"),
        ({"hello": 1}, "holds no metrics of verl"),
    ],
)
def test_a_log_of_something_else_is_one_sentence(tmp_path: Path, line: Any, says: str) -> None:
    (tmp_path / "log").write_text(json.dumps(line) + "\n", "utf-8")
    with pytest.raises(RltraceError, match=says) as error:
        import_log("verl", tmp_path / "log", tmp_path / "run")
    assert error.value.exit_code == UNREADABLE
    assert not (tmp_path / "run").exists()


def run_cli(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_every_reader_of_traces_takes_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = run_cli("import", "verl", FIXTURES / "v1_sync.jsonl", "--out", run)
    assert result.exit_code == 0
    assert result.output.endswith(f"the run is in {run}; next: rltrace report {run}\n")
    found = run_cli("query", "select stage, sum(seconds) s from stages group by 1", run, "--json")
    assert "train" in {row["stage"] for row in json.loads(found.output)}
    for words in (["report"], ["report", "--json"], ["timeline"], ["info"], ["compact"]):
        assert run_cli(*words, run).exit_code == 0
    assert "imported, lasted 31.4 s" in run_cli("info", run).output
    assert json.loads(run_cli("doctor", run, "--json").output)["problems"] == []


def test_the_answer_can_be_json(tmp_path: Path) -> None:
    words = ["import", "verl", FIXTURES / "separate_async", "--out", tmp_path / "run", "--json"]
    told = json.loads(run_cli(*words).output)
    assert (told["steps"], told["first_step"], told["last_step"]) == (10, 1, 8)
    assert told["stages"]["train"] == 10
    assert told["path"] == str(tmp_path / "run")


def test_wrong_usage_is_one_sentence(tmp_path: Path) -> None:
    log = FIXTURES / "v1_sync.jsonl"
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    wrong = [
        (["import", "ppo", log], "there is one for verl, openrlhf"),
        (["import", "verl", log, "--out", tmp_path / "taken"], "is there already"),
        (["import", "verl", log, "--out", ""], "--out is empty"),
    ]
    for words, says in wrong:
        result = run_cli(*words)
        assert (result.exit_code, len(result.output.splitlines())) == (WRONG_USAGE, 1)
        assert says in result.output
    assert run_cli("import", "verl", tmp_path / "none").exit_code == UNREADABLE
    assert run_cli("import", "verl", log, "--out", "/proc/run").exit_code == UNREADABLE
