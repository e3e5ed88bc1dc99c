"""Odd runs, anti-patterns and the readiness checklist: each is told what is odd, and none gets a
verdict that its trace does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.testing import Process, process, run_of
from rltrace.testing.inside.analysis import (
    ALARM,
    CANNOT_TELL,
    NOTE,
    ROLLOUT,
    summarize,
    wrong_with,
)
from rltrace.testing.inside.report import perfetto, sentences, walls_section
from rltrace.testing.inside.trace import Fate, Finish, Outcome, Stage
from tests.analysis.made import rows
from tests.analysis.walls.walled import job, samples, summary_of, uses, verdicts

LATENCIES_S = [6.0, 3.0, 2.0, 1.0]


def made(**columns: Any) -> Process:
    """A learner that takes four samples of each step."""
    return uses(samples(job(rollout=6, train=4), LATENCIES_S), 4, **columns)


def test_a_learner_that_trains_on_nothing_is_not_well(tmp_path: Path) -> None:
    """However fast its steps are, and whatever they wait for."""
    none = made(fate=int(Fate.STALE))
    (alarm,) = summary_of(tmp_path, none).health.alarms
    assert (alarm.kind, alarm.severity) == ("unused", ALARM)
    assert "none of the 24 samples" in alarm.says
    assert "trained on none" in wrong_with(run_of(tmp_path / "again", none))


def test_versions_that_are_counted_in_two_ways_are_said(tmp_path: Path) -> None:
    def later(step: int, place: int) -> int:
        return step + 5

    many = samples(job(rollout=6, train=4), LATENCIES_S, first_version=later, last_version=later)
    found = summary_of(tmp_path, uses(many, 4)).health.alarms
    (alarm,) = [one for one in found if one.kind == "versions"]
    assert alarm.severity == NOTE
    assert alarm.says.startswith("24 of 24 samples")


@pytest.mark.parametrize("fate", [lambda _, i: int(Fate.STALE if i else Fate.TRAINED), -1])
def test_one_that_trains_on_some_or_on_unknown_is_well(tmp_path: Path, fate: Any) -> None:
    assert summary_of(tmp_path, made(fate=fate)).health.ok


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
    assert (found.first, found.balanced, found.other_work) == (None, False, stage)
    assert found.because.startswith(f"90 % of the step is {stage}, which is none of the walls")
    (would_tell,) = found.would_tell
    assert ("--hook" in would_tell) == (stage == "other")
    # A wall that costs more than what is none still binds.
    bound = summary_of(tmp_path / "less", job(**{stage: 3, "rollout": 5, "train": 2})).verdict
    assert [wall.name for wall in bound.binding] == [ROLLOUT]


def test_where_most_of_the_time_is_between_the_steps_no_wall_binds(tmp_path: Path) -> None:
    def driver(rest_s: float) -> Process:
        spans: list[tuple[Any, ...]] = []
        for n in range(6):
            at = (2 + rest_s) * n
            spans += [(("step", n), at, at + 2), (Stage.ROLLOUT, at, at + 1.5)]
            spans += [(Stage.TRAIN, at + 1.5, at + 2), (Stage.EVAL, at + 2, at + 2 + rest_s)]
        return process("driver", *spans)

    found = summary_of(tmp_path / "most", driver(8)).verdict
    assert (found.first, found.balanced) == (None, False)
    assert "77 % of the time passes between the steps, in eval" in found.because
    some = summary_of(tmp_path / "some", driver(0.5)).verdict
    assert [wall.name for wall in some.binding] == [ROLLOUT]


def test_of_several_walls_each_is_told_by_its_name(tmp_path: Path) -> None:
    summary = summary_of(tmp_path / "walls", job(rollout=5, train=5))
    for wall in summary.verdict.binding:
        assert f"{wall.name} (" in next(sentences(summary))
        assert [one for one in walls_section(summary.verdict).notes if wall.because in one]
    assert len(summary.verdict.binding) == 2


def test_versions_at_the_end_of_what_a_row_holds_are_told_like_any_other(tmp_path: Path) -> None:
    """A loop that has a hash for a version, say."""
    most = 2**31 - 1
    many = samples(job(rollout=6, train=4), LATENCIES_S, first_version=most, last_version=most)
    rows(uses(many, 4, version=most), "syncs", start_s=[1.0, 11.0], end_s=[2.0, 12.0],
         version=[0, most])  # fmt: skip
    run = run_of(tmp_path, many)
    assert summarize(run, predict=False).staleness.largest_lag == 0
    perfetto.write(run, tmp_path / "timeline.pftrace")
    assert [lag for (lag,) in run.sql("select distinct lag from lags").fetchall()] == [0]


EACH = 40
MANY = [4.0] * EACH
DROPPED = "silent drops"


def one_with(**of_sample: Any) -> list[Process]:
    """A job with one column of its samples that is of interest."""
    rollout = samples(process("rollout"), MANY, **of_sample)
    return [job(rollout=4, train=6), rollout, uses(process("learner"), EACH)]


def dropped(tail_s: float, finish: int = Finish.ABORT, outcome: int = Outcome.OK) -> list[Process]:
    """40 samples of each step are trained on, and 10 more of it, of one outcome, are not."""
    rollout = samples(process("rollout"), MANY + [tail_s] * 10, finish=int(finish))
    judge = verdicts(process("reward"), EACH + 10, lambda n, i: 1.0)
    judge.columns["rewards"][0]["outcome"] = [int(outcome) * (i % 50 >= EACH) for i in range(300)]
    return [job(rollout=8, train=2), rollout, judge, uses(process("learner"), EACH)]


@pytest.mark.parametrize(
    ("made", "kind", "found", "says"),
    [
        (one_with(first_version=-1), "no versions", True, ["100%"]),
        (one_with(first_version=3), "no versions", False, []),
        (dropped(8.0), DROPPED, True, ["20%", "800 tokens", "the others 400"]),
        (dropped(4.0), DROPPED, False, []),
        (dropped(8.0, finish=Finish.ERROR), DROPPED, False, []),
        (dropped(8.0, outcome=Outcome.ERROR), DROPPED, False, []),
        (one_with(token_ids=0, logprobs=0), "made anew", True, ["100%"]),
        (one_with(token_ids=1, logprobs=1), "made anew", False, []),
        (one_with(token_ids=-1, logprobs=-1), "made anew", False, []),
        (one_with(finish=int(Finish.LENGTH)), "truncated", True, ["100%"]),
        (one_with(finish=int(Finish.STOP)), "truncated", False, []),
        (one_with(finish=int(Finish.ERROR)), "aborted", True, ["100%"]),
    ],
)  # fmt: skip
def test_what_is_done_wrong_is_noted(
    tmp_path: Path, made: list[Process], kind: str, found: bool, says: list[str]
) -> None:
    health = summary_of(tmp_path, *made, settings={"placement": "async"}).health
    said = [one.says for one in health.alarms if one.kind == kind]
    assert bool(said) == found
    assert [words for words in says if words not in said[0]] == []
