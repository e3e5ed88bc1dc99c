"""What the meters stand at is what the report computes, whenever they began to be read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.synthetic.truth import known_job
from rltrace.analysis.live.run_meters import StageMeter as StageTime
from rltrace.analysis.live.sample_meter import Histogram as Distribution
from rltrace.testing import at, process, run_of
from rltrace.testing.inside.analysis import RunMeters, read_activity, trained_in, union
from rltrace.testing.inside.trace import Fate, Rows, Stage, word
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.analysis.driven import Job
from tests.analysis.made import compacted, rows


def seconds_of_stages(run: Run) -> dict[Stage, float]:
    """τ of each stage over the whole run, by the report's own code."""
    activity = read_activity(run)
    found: dict[Stage, float] = {}
    for since, until, intervals in activity.slices(activity.first_ns, activity.last_ns + 1):
        merged = union(intervals)
        length = np.minimum(merged.end, until) - np.maximum(merged.start, since)
        for code, ns in zip(merged.group.tolist(), length.tolist(), strict=True):
            found[Stage(code)] = found.get(Stage(code), 0.0) + max(ns, 0) / 1e9
    return found


@pytest.mark.parametrize("placement", ["colocated", "async"])
@pytest.mark.parametrize("budget", [math.inf, 1.0])
def test_a_recorded_run_reads_as_its_report(tmp_path: Path, placement: str, budget: float) -> None:
    knobs = {"steps": 6, "env_s": 0.2, "unknown_versions": 0.1, "mixed": 0.3}
    run, _ = known_job(tmp_path / "run", placement=placement, **knobs)
    meters = RunMeters(run.path, budget)

    trained = trained_in(run, 0, 1 << 62, budget)
    samples = meters.samples
    assert samples.fates[word(Fate.TRAINED)] == trained.samples > 0
    assert samples.trained_tokens == trained.tokens
    assert samples.useful_tokens == trained.useful_tokens
    assert 0 < samples.useful_tokens < samples.trained_tokens
    counts = "count(lag), sum(lag), count(*) - count(lag)"
    (lags,) = run.sql(f"SELECT {counts} FROM lags WHERE fate = 'trained'").fetchall()
    assert (samples.lag.count, samples.lag.sum, samples.unknown_lags) == lags
    assert sum(samples.finishes.values()) == run.rows("trajectories")
    assert sum(samples.generated_tokens.values()) == int(samples.response_tokens.sum)

    steps = run.sql("SELECT count(*), sum(seconds), max(step) FROM steps").fetchall()[0]
    assert (meters.step_s.count, meters.step) == (steps[0], steps[2])
    assert meters.step_s.sum == pytest.approx(steps[1])

    found = {stage: ns / 1e9 for stage, ns in meters.stages.by_stage.items()}
    assert found == pytest.approx(seconds_of_stages(run))
    moved = run.sql("SELECT role, count(*), sum(bytes) FROM syncs GROUP BY role").fetchall()
    weights = meters.weights
    assert [(r, weights.seconds[r].count, weights.bytes[r]) for r, _, _ in moved] == moved
    assert weights.version == run.sql("SELECT max(version) FROM syncs").fetchall()[0][0]

    after = RunMeters(compacted(run).path, budget)
    assert after.stages.by_stage == meters.stages.by_stage
    assert after.samples.fates == samples.fates
    assert after.step_s.count == steps[0] == 6


def test_a_killed_job_has_nothing_in_progress(tmp_path: Path) -> None:
    killed = process("rollout", (("step", 0), 0, -1), (Stage.ROLLOUT, 1, -1), (Stage.SYNC, 2, 3))
    rows(killed, "trajectories", start_s=1, end_s=-1, trajectory=7, group=1, first_version=0)
    meters = RunMeters(run_of(tmp_path, killed, end_real_ns=at(4), exit_code=137).path)
    assert meters.job.is_over
    assert (meters.running, meters.in_flight, meters.step_since_ns) == (set(), 0, None)
    # What was open lasted until the last sign of life of its process.
    assert meters.stages.by_stage[Stage.ROLLOUT] == pytest.approx(1e9, rel=1e-6)
    # Ranks that all record their steps make one step of each.
    steps = [[(("step", n), n * 10 + r, n * 10 + 9.5) for n in range(4)] for r in (0, 1)]
    ranks = [process("learner", *spans, rank=rank) for rank, spans in enumerate(steps)]
    meters = RunMeters(run_of(tmp_path / "ranks", *ranks).path)
    assert (meters.step_s.count, meters.step) == (4, 3)


def test_a_value_at_a_bound_is_at_most_that() -> None:
    made = Distribution((0, 1, 2.5))
    made.add([0, 1, 1, 2, 100])
    assert made.cumulative() == [1, 3, 4, 5]
    assert (made.count, made.sum) == (5, 104)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path / "run")
    yield started
    started.is_killed()


@pytest.mark.parametrize("remembered", [1 << 17, 4])
def test_a_run_read_while_it_grows_comes_to_the_same_as_afterwards(
    job: Job, tmp_path: Path, remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rltrace.analysis.live.sample_meter._REMEMBERED", remembered)
    monkeypatch.setattr("rltrace.analysis.live.run_meters.SPARING", 0)
    monkeypatch.setattr("rltrace.analysis.live.run_meters._HELD_NS", 0)  # however slow the machine
    meters = RunMeters(tmp_path / "run")
    before = dict(meters.stages.by_stage)
    for n in range(3):
        job.does("step", n)
        job.does("begin", "rollout")
        meters.look()
        assert {stage for _, stage in meters.running} == {Stage.ROLLOUT}
        job.does("begin", "env")  # within it, in the same lane: its time is not rollout's
        meters.look()
        job.does("end")
        job.does("sample", f"a{n}", n, 1.0)
        job.does("sample", f"b{n}", n, 0.0)
        meters.look()
        job.does("end")
        job.does("begin", "train")
        job.does("use", f"a{n}", n + 1)
        job.does("use", f"b{n}", n + 1)
        meters.look()
        job.does("end")
        assert all(ns >= before.get(stage, 0) for stage, ns in meters.stages.by_stage.items())
        before = dict(meters.stages.by_stage)
    assert meters.step_since_ns is not None
    assert (meters.step, meters.job.is_over) == (2, False)
    job.ends()
    meters.look()
    meters.look()

    afterwards = RunMeters(tmp_path / "run")
    assert afterwards.job.is_over
    assert meters.stages.by_stage == pytest.approx(afterwards.stages.by_stage, rel=1e-3)
    assert meters.stages.by_stage.keys() >= {Stage.ROLLOUT, Stage.ENV, Stage.TRAIN}
    for samples in (meters.samples, afterwards.samples):
        assert samples.fates == {"trained": 6}
        assert samples.useful_tokens == 60
        assert (samples.lag.count, samples.lag.sum) == (6, 6)
    assert meters.step_s.count == afterwards.step_s.count == 3
    assert (meters.running, meters.in_flight, meters.waiting()) == (set(), 0, 0)


def test_a_job_that_is_killed_is_known_to_be_over(job: Job, tmp_path: Path) -> None:
    job.does("step", 0)
    job.does("begin", "rollout")
    meters = RunMeters(tmp_path / "run")
    assert not meters.job.is_over
    assert meters.running
    job.is_killed()
    meters.look()
    assert meters.job.is_over
    assert (meters.running, meters.step_since_ns) == (set(), None)


def _rows(*spans: tuple[int, int, Stage]) -> dict[str, Rows]:
    """Spans `(start_ns, end_ns, stage)` of process 0 as rows by table."""
    start, end, stage = np.array(spans, np.int64).reshape(-1, 3).T
    lane, process = np.arange(len(spans)), np.zeros(len(spans), np.int64)
    times = {"start_ns": start, "end_ns": end, "process": process}
    empty = Rows({name: column[:0] for name, column in times.items()})
    tables = dict.fromkeys(("trajectories", "rewards", "syncs"), empty)
    return {"spans": Rows({**times, "stage": stage, "lane": lane}), **tables}


def test_a_row_that_is_stored_late_adds_what_its_stage_had_not_been_given() -> None:
    time = StageTime()
    time.add(_rows(), _rows((0, -1, Stage.ROLLOUT)), np.array([100]), 100)
    assert time.by_stage == {Stage.ROLLOUT: 100}
    # The same span goes on, and two are stored only now: one within it, one from before.
    late = _rows((40, 60, Stage.ROLLOUT), (20, 50, Stage.REWARD))
    time.add(late, _rows((0, -1, Stage.ROLLOUT)), np.array([200]), 200)
    assert time.by_stage == {Stage.ROLLOUT: 200, Stage.REWARD: 30}
    time.add(_rows((0, 150, Stage.ROLLOUT)), _rows(), np.array([300]), 300)
    assert time.by_stage == {Stage.ROLLOUT: 200, Stage.REWARD: 30}
