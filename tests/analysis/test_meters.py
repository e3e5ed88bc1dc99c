"""What the meters stand at is what the report computes, whenever they began to be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rltrace
from benchmarks.make_trace import make
from rltrace.analysis.meters.distribution import Distribution
from rltrace.analysis.meters.stage_time import StageTime
from rltrace.testing.inside.analysis import LiveState, RunMeters, read_activity, trained_in, union
from rltrace.testing.inside.trace import Fate, Rows, Run, Stage, compact, delete_segments, word
from rltrace.testing.made import at, process, rows, run_of
from rltrace.testing.workload import Workload
from tests.analysis.driven import Job

_ALWAYS = 1 << 62


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
@pytest.mark.parametrize("budget", [float("inf"), 1.0])
def test_a_recorded_run_reads_as_its_report(tmp_path: Path, placement: str, budget: float) -> None:
    load = Workload(placement=placement, steps=6, env_s=0.2, unknown_versions=0.1, mixed=0.3)
    make(tmp_path / "run", load)
    run, meters = rltrace.open_run(tmp_path / "run"), RunMeters(tmp_path / "run", budget)

    trained = trained_in(run, 0, _ALWAYS, budget)
    samples = meters.samples
    assert samples.fates[word(Fate.TRAINED)] == trained.samples > 0
    assert samples.trained_tokens == trained.tokens
    assert samples.useful_tokens == trained.useful_tokens
    assert 0 < samples.useful_tokens < samples.trained_tokens
    lags = run.sql(
        "SELECT count(lag), sum(lag), count(*) - count(lag) FROM lags WHERE fate = 'trained'"
    ).fetchall()[0]
    assert (samples.lag.count, samples.lag.sum, samples.unknown_lags) == lags
    assert sum(samples.finishes.values()) == run.rows("trajectories")
    assert sum(samples.generated_tokens.values()) == int(samples.response_tokens.sum)

    steps = run.sql("SELECT count(*), sum(seconds), max(step) FROM steps").fetchall()[0]
    assert (meters.steps.seconds.count, meters.steps.number) == (steps[0], steps[2])
    assert meters.steps.seconds.sum == pytest.approx(steps[1])

    found = {stage: ns / 1e9 for stage, ns in meters.stages.by_stage.items()}
    assert found == pytest.approx(seconds_of_stages(run))
    moved = run.sql("SELECT role, count(*), sum(bytes) FROM syncs GROUP BY role").fetchall()
    assert [(r, meters.weights.seconds[r].count, meters.weights.bytes[r]) for r, _, _ in moved] == [
        (r, n, bytes_) for r, n, bytes_ in moved
    ]
    assert meters.weights.version == run.sql("SELECT max(version) FROM syncs").fetchall()[0][0]


@pytest.mark.parametrize("compacted", [False, True])
def test_groups_with_a_reward_that_is_nan_are_of_no_use_to_anyone(
    tmp_path: Path, compacted: bool
) -> None:
    driver = process("driver", (("step", 0), 0, 10), (Stage.TRAIN, 0, 10))
    ids = list(range(6))
    rows(driver, "trajectories", start_s=[1] * 6, end_s=[2] * 6, trajectory=ids,
         group=[1, 1, 2, 2, 3, 3], response_tokens=[7] * 6)  # fmt: skip
    rows(driver, "rewards", start_s=[2] * 6, end_s=[3] * 6, trajectory=ids, outcome=[0] * 6,
         value=[np.nan, np.nan, 1.0, np.nan, 0.0, 1.0])  # fmt: skip
    rows(driver, "uses", time_s=[4] * 6, trajectory=ids, fate=[Fate.TRAINED] * 6,
         tokens=[7] * 6)  # fmt: skip
    run = run_of(tmp_path, driver)
    samples, shown = RunMeters(run.path).samples, LiveState(run.path).snapshot()
    assert (samples.trained_tokens, samples.useful_tokens) == (42, 14)
    assert shown.window is not None
    assert shown.window.trained.useful_known_tokens == 14
    if compacted:
        compact(run)
        delete_segments(run.path)
        run = rltrace.open_run(run.path)
    trained = trained_in(run, 0, _ALWAYS, float("inf"))
    assert (trained.tokens, trained.useful_tokens, trained.useful_known_tokens) == (42, 14, 14)


def test_a_compacted_run_reads_the_same(tmp_path: Path) -> None:
    make(tmp_path / "run", Workload(placement="async", steps=4))
    before = RunMeters(tmp_path / "run")
    compact(rltrace.open_run(tmp_path / "run"))
    delete_segments(tmp_path / "run")
    after = RunMeters(tmp_path / "run")
    assert after.stages.by_stage == before.stages.by_stage
    assert after.samples.fates == before.samples.fates
    assert after.steps.seconds.count == before.steps.seconds.count == 4


def test_ranks_that_all_record_their_steps_make_one_step_of_each(tmp_path: Path) -> None:
    ranks = [
        process("learner", *((("step", n), n * 10 + r, n * 10 + 9.5) for n in range(4)), rank=r)
        for r in (0, 1)
    ]
    run_of(tmp_path, *ranks)
    meters = RunMeters(tmp_path / "run")
    assert (meters.steps.seconds.count, meters.steps.number) == (4, 3)


def test_a_killed_job_has_nothing_in_progress(tmp_path: Path) -> None:
    killed = process("rollout", (("step", 0), 0, -1), (Stage.ROLLOUT, 1, -1), (Stage.SYNC, 2, 3))
    rows(
        killed,
        "trajectories",
        start_s=[1],
        end_s=[-1],
        trajectory=[7],
        group=[1],
        first_version=[0],
    )
    run_of(tmp_path, killed, end_real_ns=at(4), exit_code=137)
    meters = RunMeters(tmp_path / "run")
    assert meters.job.is_over
    assert (meters.running, meters.in_flight, meters.steps.open_since_ns) == (set(), 0, None)
    # What was open lasted until the last sign of life of its process.
    assert meters.stages.by_stage[Stage.ROLLOUT] == pytest.approx(1e9, rel=1e-6)


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


def test_a_run_read_while_it_grows_comes_to_the_same_as_afterwards(
    job: Job, tmp_path: Path
) -> None:
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
    assert meters.steps.open_since_ns is not None
    assert (meters.steps.number, meters.job.is_over) == (2, False)
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
    assert meters.steps.seconds.count == afterwards.steps.seconds.count == 3
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
    assert (meters.running, meters.steps.open_since_ns) == (set(), None)


def _rows(*spans: tuple[int, int, Stage]) -> dict[str, Rows]:
    """Spans `(start_ns, end_ns, stage)` of process 0 as rows by table."""
    none = np.zeros(0, np.int64)
    columns = {
        "start_ns": np.array([s[0] for s in spans], np.int64),
        "end_ns": np.array([s[1] for s in spans], np.int64),
        "stage": np.array([s[2] for s in spans], np.int64),
        "lane": np.arange(len(spans)),
        "process": np.zeros(len(spans), np.int64),
    }
    empty = Rows({"start_ns": none, "end_ns": none, "process": none})
    tables = dict.fromkeys(("trajectories", "rewards", "syncs"), empty)
    return {"spans": Rows(columns), **tables}


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
