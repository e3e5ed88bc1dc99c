"""The critical path of played jobs, of which it is known what let each thing start."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic.job import Job, play_job
from benchmarks.synthetic.job_trace import path_truth
from rltrace.testing.inside.trace import Stage, word
from rltrace.testing.workload import PLACEMENTS
from tests.analysis.paths import (
    largest_error,
    made,
    path_of,
    seconds_by_stage,
    segments_of,
    stretches_of,
)

EXACT = 0.01

WALLS: dict[str, dict[str, Any]] = {
    "rollout": {"generate_s": 3.0},
    "env": {"tools_s": 3.0, "generate_s": 0.3},
    "reward": {"verdict_s": 0.6, "verifiers": 1, "generate_s": 0.5},
    "train": {"train_s": 8.0, "generate_s": 0.5},
    "sync": {"publish_s": 3.0, "load_s": 2.0, "generate_s": 0.3, "train_s": 0.3, "max_lag": 0},
}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("wall", WALLS)
def test_shares_are_exact_in_every_placement(wall: str, placement: str, tmp_path: Path) -> None:
    run, truth = made(tmp_path, Job(placement, **WALLS[wall]))
    path = path_of(run)
    assert path is not None
    assert path.is_traced
    assert largest_error(path, truth) < EXACT
    if placement != "one-step-off":  # where generation of the next batch may outlast the wall
        assert path.shares[0].stage == wall
    for step, known in zip(path.steps_s, truth.steps_s, strict=True):
        assert step == pytest.approx(known, abs=EXACT * sum(known.values()))


def drawn(seed: int) -> Job:
    """A job of any shape."""
    draw = random.Random(seed)
    placement = draw.choice(PLACEMENTS)
    return Job(
        placement=placement,
        seed=seed,
        steps=draw.randint(3, 6),
        groups=draw.randint(1, 8),
        samples=draw.randint(1, 6),
        engines=draw.randint(1, 3),
        slots=draw.choice([1, 2, 4, 64]),
        verifiers=draw.randint(1, 3),
        verdicts_at_once=draw.choice([1, 2, 8]),
        scored_by=draw.choice(["sample", "group", "batch"][: 2 + (placement != "async")]),
        chunks=draw.choice([1, 1, 2, 4]),
        max_lag=draw.randint(0, 4),
        generate_s=draw.choice([0.3, 1.0, 3.0]),
        tail=draw.choice([0.1, 0.6, 1.2]),
        tools_s=draw.choice([0.0, 0.5]),
        verdict_s=draw.choice([0.01, 0.1, 0.6]),
        reference_s=draw.choice([0.05, 0.4]),
        train_s=draw.choice([0.2, 1.0, 4.0]),
        publish_s=draw.choice([0.02, 0.5]),
        load_s=draw.choice([0.02, 0.5]),
        hand_over_s=draw.choice([0.0, 0.002]),
    )


@pytest.mark.parametrize("seed", range(24))
def test_the_path_of_any_job_is_exact_and_as_long_as_its_steps(seed: int, tmp_path: Path) -> None:
    run, truth = made(tmp_path, drawn(seed))
    path = path_of(run)
    assert path is not None
    assert largest_error(path, truth) < EXACT
    stretches = segments_of(run)
    assert all(a.end_ns == b.start_ns for a, b in pairwise(stretches))
    assert stretches[-1].end_ns == truth.end_ns
    length_s = (stretches[-1].end_ns - stretches[0].start_ns) / 1e9
    assert sum(seconds_by_stage(path).values()) == pytest.approx(length_s)


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_stage_costs_what_its_stretches_on_the_path_say(seed: int, tmp_path: Path) -> None:
    """Played again with each activity of a stage a little longer, the steps take longer by as many
    times that as the path has stretches of the stage: not at all where it has none."""
    job = drawn(seed)
    run, truth = made(tmp_path, job)
    stretches = Counter(segment.stage for segment in segments_of(run))
    little = 100  # ns: less than any slack
    for stage in (Stage.ROLLOUT, Stage.REWARD, Stage.REFERENCE, Stage.TRAIN, Stage.SYNC):
        again = path_truth(play_job(replace(job, longer_ns=((stage, little),))))
        later = again.end_ns - again.start_ns - (truth.end_ns - truth.start_ns)
        assert later == little * stretches[stage], word(stage)


def test_what_has_slack_may_take_longer_and_what_has_none_may_not(tmp_path: Path) -> None:
    """The next batch is made beside training, which takes far longer."""
    job = Job("one-step-off", train_s=6.0, generate_s=0.5, tail=0.3)
    run, _ = made(tmp_path, job)
    stretches = Counter(segment.stage for segment in segments_of(run))
    assert stretches[Stage.TRAIN] == job.steps
    assert not stretches[Stage.REWARD]

    def length_s(**changes: Any) -> float:
        truth = path_truth(play_job(replace(job, **changes)))
        return (truth.end_ns - truth.start_ns) / 1e9

    tenth = 100_000_000
    assert length_s(longer_ns=((Stage.REWARD, tenth),)) == length_s()
    longer_s = length_s(longer_ns=((Stage.TRAIN, tenth),)) - length_s()
    assert longer_s == pytest.approx(0.1 * job.steps)


LONG = Job("disaggregated", steps=48, groups=6, engines=3, verifiers=2, tail=0.6, seed=7)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_path_that_is_followed_in_stretches_is_that_of_the_whole_run(
    placement: str, tmp_path: Path
) -> None:
    run, truth = made(tmp_path, replace(LONG, placement=placement))
    whole = segments_of(run)
    parts = segments_of(run, most_spans=len(whole))
    assert len(stretches_of(run, most_spans=len(whole))) > 3
    assert parts == whole
    assert parts[-1].end_ns == truth.end_ns
    assert all(a.end_ns == b.start_ns for a, b in pairwise(parts))
