"""Odd runs: each is told what is odd, and none gets a verdict that its trace does not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.testing.inside.analysis import (
    ALARM,
    CANNOT_TELL,
    LEARNER,
    NOTE,
    ROLLOUT,
    summarize,
    wrong_with,
)
from rltrace.testing.inside.report import evidence, headline, perfetto
from rltrace.testing.inside.trace import Fate, Stage
from rltrace.testing.made import process, rows, run_of
from tests.analysis.walls.walled import job, samples, summary_of, uses

LATENCIES_S = [6.0, 3.0, 2.0, 1.0]


def test_a_learner_that_trains_on_nothing_is_not_well(tmp_path: Path) -> None:
    """However fast its steps are, and whatever they wait for."""
    made = uses(samples(job(rollout=6, train=4), LATENCIES_S), 4, fate=int(Fate.STALE))
    (alarm,) = summary_of(tmp_path, made).health.alarms
    assert (alarm.kind, alarm.severity) == ("unused", ALARM)
    assert "trained on none (24 stale)" in alarm.says
    assert "trained on none" in wrong_with(run_of(tmp_path / "again", made))


def test_a_learner_that_trains_on_some_is_well(tmp_path: Path) -> None:
    def fate(step: int, place: int) -> int:
        return int(Fate.STALE if place else Fate.TRAINED)

    made = uses(samples(job(rollout=6, train=4), LATENCIES_S), 4, fate=fate)
    assert summary_of(tmp_path, made).health.alarms == ()


def test_fates_that_nobody_knows_are_no_alarm(tmp_path: Path) -> None:
    made = uses(samples(job(rollout=6, train=4), LATENCIES_S), 4, fate=-1)
    assert summary_of(tmp_path, made).health.alarms == ()


def test_versions_that_are_counted_in_two_ways_are_said(tmp_path: Path) -> None:
    def later(step: int, place: int) -> int:
        return step + 5

    made = samples(job(rollout=6, train=4), LATENCIES_S, first_version=later, last_version=later)
    (alarm,) = summary_of(tmp_path, uses(made, 4)).health.alarms
    assert (alarm.kind, alarm.severity) == ("versions", NOTE)
    assert alarm.says.startswith("24 of 24 samples")


def test_steps_without_length_tell_no_wall(tmp_path: Path) -> None:
    spans = [(stage, n, n) for n in range(8) for stage in (("step", n), Stage.ROLLOUT, Stage.TRAIN)]
    found = summary_of(tmp_path, process("driver", *spans)).verdict
    assert (found.first, found.confidence, found.balanced) == (None, CANNOT_TELL, False)
    assert "no length" in found.because


@pytest.mark.parametrize("stage", ["other", "data", "checkpoint", "eval"])
def test_where_most_of_the_step_is_no_walls_nothing_is_said_to_bind_or_not(
    tmp_path: Path, stage: str
) -> None:
    found = summary_of(tmp_path, job(**{stage: 9, "rollout": 0.5, "train": 0.5})).verdict
    assert (found.first, found.balanced) == (None, False)
    assert found.because.startswith(f"90 % of the step is {stage}, which is none of the walls")
    (would_tell,) = found.would_tell
    assert ("--hook" in would_tell) == (stage == "other")


def test_a_wall_that_costs_more_than_what_is_none_still_binds(tmp_path: Path) -> None:
    found = summary_of(tmp_path, job(checkpoint=3, rollout=5, train=2)).verdict
    assert [wall.name for wall in found.binding] == [ROLLOUT]


def test_a_line_on_another_stage_than_the_walls_names_it(tmp_path: Path) -> None:
    """Generation is exposed the longest, and half of that is its tail: the learner costs most."""
    summary = summary_of(tmp_path, uses(samples(job(rollout=6, train=4), LATENCIES_S), 4))
    assert summary.verdict.first is not None
    assert summary.verdict.first.name == LEARNER
    assert summary.binding.stage is not None
    assert summary.binding.stage.stage is Stage.ROLLOUT
    lines = list(evidence(summary))
    says = "of single stages, rollout (τ_R) holds the step up most; its walls cost less: "
    named = next(i for i, line in enumerate(lines) if line.startswith(says))
    assert "long-tail skew" in lines[named]
    assert lines[named + 1].startswith("rollout is exposed for 6.00 s")


def test_of_several_walls_each_is_told_by_its_name(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, job(rollout=5, train=5))
    said = list(evidence(summary))
    for wall in summary.verdict.binding:
        (at,) = (i for i, line in enumerate(said) if f"you see of {wall.name} (50 %)" in line)
        assert said[at + 1] == f"its cost is {wall.because}"
    assert len(summary.verdict.binding) == 2


def test_stages_that_are_a_wall_together_are_held_against_the_longest_one(tmp_path: Path) -> None:
    """No stage is as long as generation, and two of the learner's are longer than that."""
    summary = summary_of(tmp_path, job(rollout=4, reference=3, train=3))
    assert headline(summary).startswith("learner FLOPs + memory is the wall: it takes 60 %")
    assert (
        "of single stages, rollout (τ_R) holds the step up most; reference and train together hold "
        "it up for longer (60 % of it)"
    ) in list(evidence(summary))


def test_versions_at_the_end_of_what_a_row_holds_are_told_like_any_other(tmp_path: Path) -> None:
    """A loop that has a hash for a version, say."""
    most = 2**31 - 1
    made = samples(job(rollout=6, train=4), LATENCIES_S, first_version=most, last_version=most)
    made = rows(
        uses(made, 4, version=most),
        "syncs",
        start_s=[1.0, 11.0],
        end_s=[2.0, 12.0],
        version=[0, most],
    )
    run = run_of(tmp_path, made)
    assert summarize(run, predict=False).staleness.largest_lag == 0
    perfetto.write(run, tmp_path / "timeline.pftrace")
    assert [lag for (lag,) in run.sql("select distinct lag from lags").fetchall()] == [0]
