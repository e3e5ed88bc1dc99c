"""What becomes of verl's logs: an ordinary run, which knows nothing that the log did not say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rltrace.testing.inside.importers import placed_events as placed
from rltrace.testing.inside.importers import read_run
from rltrace.testing.inside.run import import_log
from rltrace.testing.inside.trace import Stage
from tests.importers.logs import FIXTURES, imported, json_lines, metrics, reasons, tau

LAG = "training/off_policy/trajectory_staleness/max"


def test_the_legacy_trainer_s_console_log_gives_the_stage_table(tmp_path: Path) -> None:
    done, _, summary = imported("verl", FIXTURES / "legacy_console.log", tmp_path)
    gens = [time.tau_s["rollout"] for time in summary.steps.times[:2]]
    assert gens == pytest.approx([18.951858508367565, 20.30763865842286], abs=1e-8)
    assert set(tau(summary)) == {"rollout", "logprob", "reference", "train", "sync", "other"}
    assert (done.trainer, done.framework_version) == ("RayPPOTrainer", "0.8 or later")
    assert summary.composition is not None
    assert summary.composition.placement == "colocated"
    assert any(note.startswith("timing_s/reward: at most 12 µs") for note in done.notes)
    # Nothing unknown is zero.
    assert "scores while it generates" in reasons(summary)["reward"]
    assert all(math.isnan(row.overlapped_s.mean) for row in summary.stages)
    assert (summary.tail.latency_s.n, summary.staleness.trajectories) == (0, 0)
    assert summary.syncs is None
    assert summary.goodput is None


@pytest.mark.parametrize(
    ("timers", "figures", "trainer", "placement", "gen", "syncs"),
    [
        ({}, {}, "RayPPOTrainer", "colocated", Stage.ROLLOUT, ["update_weights"]),
        # Its gen ends with a poll of 2 s, beside which it may be long.
        ({"gen": 20.0}, {LAG: 0.0}, "V1", "", Stage.ROLLOUT, ["update_weights"]),
        ({"gen": 19.9}, {LAG: 0.0}, "V1", "", Stage.WAIT, ["update_weights"]),
        # colocate_async lags too, on shared devices: only the configuration tells them apart.
        ({}, {LAG: 1.0}, "V1", "", Stage.WAIT, ["update_weights"]),
        # update_weights runs within it.
        ({"sync_rollout_weights": 1.5}, {}, "one-step-off", "one-step-off", Stage.WAIT,
         ["sync_rollout_weights"]),
        ({"timing_s/param_sync": 1.5}, {}, "fully async", "async", Stage.WAIT,
         ["update_weights", "timing_s/param_sync"]),
    ],
)  # fmt: skip
def test_the_trainer_is_told_by_its_timers_and_with_it_what_gen_is(
    tmp_path: Path,
    timers: dict[str, float],
    figures: dict[str, float],
    trainer: str,
    placement: str,
    gen: Stage,
    syncs: list[str],
) -> None:
    run = read_run(json_lines(tmp_path / "log", (1, metrics(**timers) | figures)), "verl")
    assert (run.trainer, run.placement) == (trainer, placement)
    inside = run.steps[0].inside
    assert [timer.stage for timer in inside if timer.name == "gen"] == [gen]
    assert [timer.name for timer in inside if timer.stage is Stage.SYNC] == syncs
    assert any(name == "timing_s/gen" for name, _ in run.notes) is ("gen" in timers)


def test_one_step_off_waits_for_the_batch_of_before_by_an_older_name(tmp_path: Path) -> None:
    """What verl 0.5 and 0.6 log of it; a step's `gen` is no more in it."""
    named = {k: v for k, v in metrics(wait_prev_gen=9.0).items() if k != "timing_s/gen"}
    run = read_run(json_lines(tmp_path / "log", (1, named)), "verl")
    assert (run.trainer, run.version) == ("one-step-off", "0.6.1 or older")
    waits = [(one.name, one.seconds) for one in run.steps[0].inside if one.stage is Stage.WAIT]
    assert waits == [("wait_prev_gen", 9.0)]
    assert run.waits_for["wait_prev_gen"] == "rollout"
    assert "wait_prev_gen" in dict(run.not_logged)[Stage.ROLLOUT]


@pytest.mark.parametrize(("took_s", "is_scoring"), [(2.0, True), (1e-3, True), (9e-4, False)])
def test_a_reward_timer_that_holds_the_scoring_is_the_reward(
    tmp_path: Path, took_s: float, is_scoring: bool
) -> None:
    (step,) = read_run(json_lines(tmp_path / "log", (1, metrics(reward=took_s))), "verl").steps
    assert (Stage.REWARD in {timer.stage for timer in step.inside}) is is_scoring


def test_the_configuration_in_a_console_log_tells_the_mode(tmp_path: Path) -> None:
    head = "{'trainer': {'use_v1': True, 'v1': {'trainer_mode': 'colocate_async',\n"
    line = " - ".join(f"{name}:{value!r}" for name, value in (metrics() | {LAG: 1.0}).items())
    (tmp_path / "log").write_text(f"{head}step:1 - {line}\n", "utf-8")
    run = read_run(tmp_path / "log", "verl")
    assert (run.trainer, run.placement) == ("V1 colocate_async", "colocated")
    assert [t.stage for t in run.steps[0].inside if t.name == "gen"] == [Stage.ROLLOUT]


def test_weights_that_move_within_gen_are_unknown(tmp_path: Path) -> None:
    named = {k: v for k, v in metrics().items() if k != "timing_s/update_weights"}
    run = read_run(json_lines(tmp_path / "log", (1, named)), "verl")
    assert run.version == "0.6.1 or older"
    assert Stage.SYNC in {stage for stage, _ in run.not_logged}


def test_a_step_of_v1_s_is_laid_out_behind_the_one_before(tmp_path: Path) -> None:
    """A step whose generation took 0.6 s is logged with 2.02 s of gen, which ends with a poll."""
    log = FIXTURES / "v1_sync.jsonl"
    _, run, summary = imported("verl", log, tmp_path)
    assert "rollout" not in tau(summary)
    assert tau(summary)["wait"] == pytest.approx(2.015, abs=0.01)
    assert "2 s poll" in reasons(summary)["rollout"]
    assert summary.steps.warmup == (1,)  # which holds the start of the agent loops
    assert summary.steps.times[0].untraced_s == pytest.approx(9.9)
    rows = run.sql("select start_ns, end_ns from steps order by start_ns").fetchall()
    assert [a[1] for a in rows[:-1]] == [b[0] for b in rows[1:]]
    testing = run.sql("select start_ns, end_ns from spans where stage = 'eval'").fetchall()[0]
    assert testing == (rows[-1][1], log.stat().st_mtime_ns)
    assert run.meta["end_real_ns"] == log.stat().st_mtime_ns


def test_an_async_trainer_s_event_files_tell_when_and_what_it_waited(tmp_path: Path) -> None:
    """It was killed and began again two steps before."""
    done, run, summary = imported("verl", FIXTURES / "separate_async", tmp_path)
    assert done.trainer == "V1 separate_async"
    assert "rollout" not in tau(summary)
    assert "waited for samples" in reasons(summary)["rollout"]
    assert summary.composition is not None
    assert summary.composition.placement == "async"
    lag = run.sql(f"select max(value) from samples where counter = '{LAG}'")
    assert lag.fetchall() == [(2.0,)]
    assert (done.steps, done.first_step, done.last_step, summary.steps.repeated) == (8, 1, 8, 0)
    first = summary.steps.times[0]
    end_s = first.start_ns / 1e9 + first.step_s
    assert end_s == pytest.approx(1760000002.7804, abs=1e-3)
    # What it did again took 3.8 s the first time.
    assert summary.steps.between_steps_s == pytest.approx(60 + 8 * 0.25 + 3.8, abs=0.1)


def test_timers_that_overlap_keep_their_length(tmp_path: Path) -> None:
    """And a step without a length keeps its counters only."""
    untimed = {k: v for k, v in metrics().items() if k != "timing_s/step"}
    long, odd = metrics(step_s=50.0), metrics(gen=-1.0, step_s=50.0)
    log = json_lines(tmp_path / "log", (1, long), (2, untimed), (3, odd))
    done, run, summary = imported("verl", log, tmp_path)
    assert summary.steps.complete == 2
    assert (tau(summary)["train"], summary.steps.step_s.mean) == (20.0, 50.0)
    assert any("add up to more than the step, 58 s in 50 s" in note for note in done.log_notes)
    unknown = [note for note in done.log_notes if "length the log does not have" in note]
    assert [note.rpartition(": ")[2] for note in unknown] == ["2"]
    assert not summary.steps.times[1].tau_s.get("rollout")
    rows = run.sql("select 1 from samples where counter like 'resp%'")
    assert len(rows.fetchall()) == 3


@pytest.mark.parametrize("value", [-3.0, 1e300, float("nan")])
def test_a_timer_that_no_clock_can_have_shown_is_said(tmp_path: Path, value: float) -> None:
    log = json_lines(tmp_path / "log", *((n, metrics(gen=value, ref=4.0)) for n in (1, 2, 3)))
    done, _, summary = imported("verl", log, tmp_path)
    assert any("timing_s/gen (3)" in note for note in done.log_notes)
    assert "timing_s/gen is never" in reasons(summary)["rollout"]
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
