"""Odd runs, anti-patterns and the readiness checklist: each is told what is odd, and none gets a
verdict that its trace does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.readiness import Control
from rltrace.testing import Process, process, run_of
from rltrace.testing.inside.analysis import (
    ALARM,
    CANNOT_TELL,
    LEARNER,
    NOTE,
    ROLLOUT,
    Lint,
    Summary,
    summarize,
    wrong_with,
)
from rltrace.testing.inside.report import evidence, headline, perfetto
from rltrace.testing.inside.trace import Fate, Finish, Outcome, Stage
from tests.analysis.made import not_none, rows, slow_updates
from tests.analysis.walls.walled import STEPS, job, samples, summary_of, uses, verdicts

LATENCIES_S = [6.0, 3.0, 2.0, 1.0]


def made(**columns: Any) -> Process:
    """A learner that takes four samples of each step."""
    return uses(samples(job(rollout=6, train=4), LATENCIES_S), 4, **columns)


def test_a_learner_that_trains_on_nothing_is_not_well(tmp_path: Path) -> None:
    """However fast its steps are, and whatever they wait for."""
    none = made(fate=int(Fate.STALE))
    (alarm,) = summary_of(tmp_path, none).health.alarms
    assert (alarm.kind, alarm.severity) == ("unused", ALARM)
    assert "trained on none (24 stale)" in alarm.says
    assert "trained on none" in wrong_with(run_of(tmp_path / "again", none))


def test_versions_that_are_counted_in_two_ways_are_said(tmp_path: Path) -> None:
    def later(step: int, place: int) -> int:
        return step + 5

    many = samples(job(rollout=6, train=4), LATENCIES_S, first_version=later, last_version=later)
    (alarm,) = summary_of(tmp_path, uses(many, 4)).health.alarms
    assert (alarm.kind, alarm.severity) == ("versions", NOTE)
    assert alarm.says.startswith("24 of 24 samples")


@pytest.mark.parametrize("fate", [lambda _, i: int(Fate.STALE if i else Fate.TRAINED), -1])
def test_one_that_trains_on_some_or_on_unknown_is_well(tmp_path: Path, fate: Any) -> None:
    assert summary_of(tmp_path, made(fate=fate)).health.alarms == ()


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
    # A wall that costs more than what is none still binds.
    bound = summary_of(tmp_path / "less", job(**{stage: 3, "rollout": 5, "train": 2})).verdict
    assert [wall.name for wall in bound.binding] == [ROLLOUT]


def test_a_line_on_another_stage_than_the_walls_names_it(tmp_path: Path) -> None:
    """Generation is exposed the longest, and half of that is its tail: the learner costs most."""
    summary = summary_of(tmp_path, made())
    assert not_none(summary.verdict.first).name == LEARNER
    assert not_none(summary.binding.stage).stage is Stage.ROLLOUT
    lines = list(evidence(summary))
    (named,) = (i for i, line in enumerate(lines) if "rollout (τ_R) holds the step up most" in line)
    assert "its walls cost less" in lines[named]
    assert "long-tail skew" in lines[named]
    assert lines[named + 1].startswith("rollout is exposed for 6.00 s")


def test_of_several_walls_or_stages_each_is_told_by_its_name(tmp_path: Path) -> None:
    summary = summary_of(tmp_path / "walls", job(rollout=5, train=5))
    said = list(evidence(summary))
    for wall in summary.verdict.binding:
        (at,) = (i for i, line in enumerate(said) if f"you see of {wall.name} (50 %)" in line)
        assert wall.because in said[at + 1]
    assert len(summary.verdict.binding) == 2
    # No stage is as long as generation, and two of the learner's are longer than that.
    summary = summary_of(tmp_path / "stages", job(rollout=4, reference=3, train=3))
    assert headline(summary).startswith("learner FLOPs + memory is the wall: it takes 60 %")
    (line,) = (one for one in evidence(summary) if "rollout (τ_R) holds the step up most" in one)
    assert "reference and train together" in line
    assert "(60 % of it)" in line


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
ISOLATION, DROPPED = "environments without isolation", "dropping long samples silently"
NAIVE = "naive full reload of the weights at each update"


def checks(found: Summary) -> dict[str, Lint | Control]:
    """All lints and controls, by name."""
    of: tuple[Lint | Control, ...] = (*found.verdict.lints, *found.verdict.controls)
    return {one.name: one for one in of}


def one_with(**of_sample: Any) -> list[Process]:
    """A job with one column of its samples that is of interest."""
    rollout = samples(process("rollout"), MANY, **of_sample)
    return [job(rollout=4, train=6), rollout, uses(process("learner"), EACH)]


def dropped(tail_s: float) -> list[Process]:
    """40 samples of each step are trained on, and 10 more of it vanish."""
    rollout = samples(process("rollout"), MANY + [tail_s] * 10, finish=int(Finish.ABORT))
    return [job(rollout=8, train=2), rollout, uses(process("learner"), EACH)]


def failing(step: int, place: int) -> int:
    return int(Finish.STOP if place % 8 else Finish.ERROR)


def reward_workers() -> list[Process]:
    """Two that fail alike."""
    made = [job(rollout=4, train=6)]
    outcome = [0 if i % 10 else int(Outcome.ERROR) for i in range(60)]
    for rank in range(2):
        ids = list(range(rank * 60 + 1, rank * 60 + 61))
        made.append(rows(process("reward", rank=rank), "rewards", start_s=1.0, end_s=2.0, value=0.0,
                         trajectory=ids, outcome=outcome))  # fmt: skip
    return made


def cut_off(step: int, place: int) -> int:
    """One sample of each step ends at the cap, and one of the first step times out."""
    ended = {0: Finish.LENGTH, 1: Finish.STOP if step else Finish.TIMEOUT}
    return int(ended.get(place, Finish.STOP))


@pytest.mark.parametrize(
    ("made", "name", "verdict", "says"),
    [
        ([job(train=10)], "picking a framework before measuring the rollout wall",
         "cannot tell", ["rollout, sync"]),
        (one_with(first_version=-1), "asynchronous training without policy versions", "found", []),
        (one_with(first_version=3), "asynchronous training without policy versions",
         "not found", []),
        (dropped(8.0), DROPPED, "found", ["20 %", "800 tokens", "the others 400"]),
        (dropped(4.0), DROPPED, "not found", []),
        (one_with(token_ids=0, logprobs=0), "making token ids anew from text", "found", []),
        (one_with(token_ids=1, logprobs=1), "making token ids anew from text", "not found", []),
        (one_with(token_ids=-1, logprobs=-1), "making token ids anew from text", "cannot tell", []),
        (one_with(environment=lambda _, i: i % 8, finish=failing), ISOLATION, "found", []),
        (one_with(environment=lambda _, i: i // 8, finish=failing), ISOLATION, "not found", []),
        (reward_workers(), ISOLATION, "not found", ["12 of 120 failed"]),
        ([job(rollout=4, train=6), samples(process("rollout"), MANY, finish=cut_off)],
         "tail controls", "seen", ["1 sample timed out", f"{STEPS} samples ended at the length"]),
        (one_with(token_ids=1, logprobs=0), "replayable trajectories", "not seen", ["log-probs"]),
        # Updates of 6 s of a step of 10: their bytes do not take the time, or do.
        ([slow_updates(10**6)], NAIVE, "not found", ["little for a link"]),
        ([slow_updates(4 * 10**9)], NAIVE, "found", []),
    ],
)  # fmt: skip
def test_what_a_check_finds(
    tmp_path: Path, made: list[Process], name: str, verdict: str, says: list[str]
) -> None:
    settings: dict[str, Any] = {} if name == NAIVE else {"settings": {"placement": "async"}}
    found = checks(summary_of(tmp_path, *made, **settings))[name]
    assert found.verdict == verdict
    assert [words for words in says if words not in found.says] == []
    assert ("little for a link" in found.says) == ("little for a link" in says)


def test_controls_that_were_seen_and_an_empty_run_that_can_tell_nothing(tmp_path: Path) -> None:
    empty = summary_of(tmp_path / "empty").verdict
    assert [one.verdict for one in empty.lints] == ["cannot tell"] * 6
    assert {one.verdict for one in empty.controls} == {"cannot tell", "not seen"}
    rollout = samples(process("rollout"), MANY, token_ids=1, logprobs=1)
    learner = uses(process("learner"), EACH)
    rows(learner, "syncs", start_s=[10 * n + 9.0 for n in range(STEPS)],
         end_s=[10 * n + 10.0 for n in range(STEPS)], version=list(range(STEPS)))  # fmt: skip
    judged = verdicts(process("reward", (Stage.REWARD, 0, 1)), EACH, lambda _, i: i)
    found = summary_of(tmp_path, job(rollout=4, train=5, sync=1), rollout, learner, judged)
    assert {one.name: one.verdict for one in found.verdict.controls} == {
        "versioned weights": "seen",
        "replayable trajectories": "seen",
        "role-level utilisation": "seen",
        "freshness limit": "seen",
        "tail controls": "cannot tell",
        "weight movement by phase": "not seen",
        "reward audits": "not seen",
    }
