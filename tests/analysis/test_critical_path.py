"""The critical path: that of played jobs, of which it is known what let each thing start, what it
rests on, and what it says where that is missing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrace
from benchmarks.synthetic.job import Job, play_job
from benchmarks.synthetic.job_trace import PathTruth, make_job, path_truth
from benchmarks.synthetic.workload import PLACEMENTS
from rltrace.analysis.timeline.interval_lookup import Lane
from rltrace.testing import Process, between, process, run_of
from rltrace.testing.inside.analysis import (
    MOST_SPANS,
    CriticalPath,
    PathSegment,
    RunAnalysis,
    find_path,
    read_activity,
    stretches,
    summarize,
)
from rltrace.testing.inside.hooks import Design
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import Stage, word
from tests.analysis.made import not_none, rows, steps_of


def path_of(run: Run) -> CriticalPath | None:
    return RunAnalysis(run).critical_path


def segments_of(run: Run, most_spans: int = MOST_SPANS) -> tuple[PathSegment, ...]:
    """The stretches of the path of a run that has one."""
    found = find_path(RunAnalysis(run), most_spans)
    assert not isinstance(found, str), found
    return found


def made(folder: Path, job: Job) -> tuple[Run, PathTruth]:
    """The run of a job, and its truth."""
    truth = make_job(folder / "run", job)
    return rltrace.open_run(folder / "run"), truth


def drawn(seed: int) -> Job:
    """A job of any shape."""
    draw = random.Random(seed)
    placement = draw.choice(PLACEMENTS)
    scored = ["sample", "group", "batch"][: 2 + (placement != "async")]
    whole = {"steps": (3, 6), "groups": (1, 8), "samples": (1, 6), "engines": (1, 3),
             "verifiers": (1, 3), "max_lag": (0, 4)}  # fmt: skip
    one_of = {"slots": [1, 2, 4, 64], "verdicts_at_once": [1, 2, 8], "scored_by": scored,
              "chunks": [1, 1, 2, 4], "generate_s": [0.3, 1.0, 3.0], "tail": [0.1, 0.6, 1.2],
              "tools_s": [0.0, 0.5], "verdict_s": [0.01, 0.1, 0.6], "reference_s": [0.05, 0.4],
              "train_s": [0.2, 1.0, 4.0], "publish_s": [0.02, 0.5], "load_s": [0.02, 0.5],
              "hand_over_s": [0.0, 0.002]}  # fmt: skip
    knobs: dict[str, Any] = {name: draw.randint(*ends) for name, ends in whole.items()}
    knobs |= {name: draw.choice(values) for name, values in one_of.items()}
    return Job(placement, seed=seed, **knobs)


BEHIND = Job("async", verdict_s=0.6, verifiers=1, generate_s=0.5)  # verdicts are far behind


@pytest.mark.parametrize("job", [*map(drawn, range(24)), BEHIND])
def test_the_path_of_any_job_is_exact_and_as_long_as_its_steps(job: Job, tmp_path: Path) -> None:
    run, truth = made(tmp_path, job)
    path = not_none(path_of(run))
    assert path.is_traced
    total: Counter[str] = Counter()
    for step, known in zip(path.steps_s, truth.steps_s, strict=True):
        assert step == pytest.approx(known, abs=0.01 * sum(known.values()))
        total.update(step)
    assert [one.stage for one in path.shares] == sorted(total, key=total.__getitem__)[::-1]
    found = segments_of(run)
    assert all(a.end_ns == b.start_ns for a, b in pairwise(found))
    assert found[-1].end_ns == truth.end_ns
    length_s = (found[-1].end_ns - found[0].start_ns) / 1e9
    assert total.total() == pytest.approx(length_s)


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


LONG = Job("disaggregated", steps=48, groups=6, engines=3, verifiers=2, tail=0.6, seed=7)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_path_that_is_followed_in_stretches_is_that_of_the_whole_run(
    placement: str, tmp_path: Path
) -> None:
    run, truth = made(tmp_path, replace(LONG, placement=placement))
    whole = segments_of(run)
    parts = segments_of(run, most_spans=len(whole))
    assert len(stretches(read_activity(run), steps_of(run), len(whole))) > 3
    assert parts == whole
    assert parts[-1].end_ns == truth.end_ns


STEPS = 4


def beside(used: Sequence[int] = range(1, STEPS)) -> list[Process]:
    """Steps of 10 s: the learner trains from 0 to 9 on what the actors made in the step before, in
    bursts that end just before it begins, and generation leads to it only in the first step."""
    driver = process("driver", *((("step", n), 10 * n, 10 * n + 10) for n in range(STEPS)))
    learner = process("learner", *((Stage.TRAIN, 10 * n + 0.5, 10 * n + 9) for n in range(STEPS)))
    actors, ids = process("rollout"), list(range(1, STEPS + 1))
    rows(actors, "trajectories", start_s=[10 * n - 9.5 for n in ids],
         end_s=[10 * n + 0.2 for n in ids], trajectory=ids, group=-1)  # fmt: skip
    rows(driver, "uses", time_s=[10 * n + 9.5 for n in ids[:-1]], trajectory=list(used),
         step=ids[:-1], fate=0)  # fmt: skip
    return [driver, learner, actors]


def test_a_wait_leads_to_its_sample_and_what_nothing_explains_is_unknown(tmp_path: Path) -> None:
    run = run_of(tmp_path, *beside())
    path, found = segments_of(run), not_none(path_of(run))
    last = [s for s in path if s.stage is Stage.ROLLOUT][-1]
    took_s = (last.end_ns - last.start_ns) / 1e9
    assert (last.what, took_s) == ("the last sample of the step", pytest.approx(9.7))
    assert not_none(summarize(run, predict=False).critical_path).shares == found.shares
    assert found.segments == len(path) > 4
    assert found.unknown_share > 0
    assert {share.stage: share.share for share in found.shares}["unknown"] == found.unknown_share
    for step in found.steps_s:
        assert sum(step.values()) == pytest.approx(10)
    probe = {"probe": Design(("rollout", "train"), 0.05, 1).settings()}  # computes by the path
    probed = summarize(run_of(tmp_path / "probed", *beside(), settings=probe), predict=False).probe
    shares = {stage.name: stage.computed_share for stage in not_none(probed).stages}
    assert shares == pytest.approx({"rollout": 0.7275, "train": 0.2125})
    logged = run_of(tmp_path / "log", *beside(), imported={"trainer": "any", "kind": "jsonl"})
    assert path_of(logged) is None


@pytest.mark.parametrize(
    ("missing", "used", "because"),
    [
        ("uses", range(1, STEPS), "no use of a sample by the learner was recorded"),
        ("trajectories", range(1, STEPS), "no trajectory was recorded"),
        (
            "",
            [77, 78, 79],
            ("no use", "only 0 %"),
        ),  # samples whose generation was not seen are not followed
    ],
)
def test_without_what_it_rests_on_there_is_none_and_it_says_why(
    tmp_path: Path, missing: str, used: Sequence[int], because: Any
) -> None:
    made = beside(used)
    for one in made:
        one.columns.pop(missing, None)
    found = not_none(path_of(run_of(tmp_path, *made)))
    assert not found.is_traced
    assert found.because.startswith(because)
    assert found.shares == ()


def test_a_lane_answers_as_a_look_at_all_its_intervals_does() -> None:
    rng = np.random.default_rng(3)
    start = rng.integers(0, 200, 60)
    end = start + rng.integers(0, 30, 60)
    lane = Lane(start, end, np.arange(60))
    real = end > start
    for moment in range(-5, 240):
        before = end[real & (end <= moment)]
        found = lane.ended(moment)
        assert (end[found] if found >= 0 else None) == (before.max() if len(before) else None)
        under_way = end[real & (start < moment) & (end > moment)]
        found = lane.open(moment)
        assert (end[found] if found >= 0 else None) == (under_way.max() if len(under_way) else None)
        rests = bool(lane.rests_at(np.array([moment]))[0])
        assert rests == (not len(under_way)) == (lane.busy_since(moment) == moment)


def test_a_queue_beside_generation_is_no_explanation(tmp_path: Path) -> None:
    """Requests that wait in an engine's queue while it generates others hold nothing else up."""
    driver, learner, actors = beside()
    alone = process("queue", (Stage.OTHER, 0, 40))
    actors.span(between(0, 40), "queue", Stage.OTHER, -1, lane=5)
    actors.span(between(0, 40), "generate", Stage.ROLLOUT, -1, lane=6)
    busy = segments_of(run_of(tmp_path / "busy", driver, learner, actors))
    assert not [s for s in busy if s.stage is Stage.OTHER]
    known = segments_of(run_of(tmp_path / "alone", *beside(), alone))
    assert [s for s in known if s.stage is Stage.OTHER]
    # Verdicts that end before they begin, samples used before they were made: no end is lost.
    judge = process("reward")
    rows(judge, "rewards", start_s=[5, 30], end_s=[4, 31], trajectory=[1, 1])
    found = not_none(path_of(run_of(tmp_path / "odd", *beside(), judge)))
    assert sum(sum(step.values()) for step in found.steps_s) == pytest.approx(10 * STEPS)
