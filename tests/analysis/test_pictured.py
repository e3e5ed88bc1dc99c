"""What pictures need beyond the summary says the same as the summary, in more places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rltrace
from benchmarks.make_trace import Workload, make
from rltrace.analysis.device_load import device_load, in_flight
from rltrace.analysis.step_shapes import PARTS, step_shapes
from rltrace.testing.inside.analysis import (
    SHARES,
    Summary,
    distributions,
    find_steps,
    lag_history,
    read_activity,
    summarize,
    updates_of,
)
from rltrace.testing.inside.trace import Run, Stage, word
from rltrace.testing.made import at, process, run_of, turns

LOAD = Workload(placement="async", steps=25, prompts=8, group=4, unknown_versions=0.1, nodes=2)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Summary]:
    path = tmp_path_factory.mktemp("pictured") / "run"
    make(path, LOAD)
    run = rltrace.open_run(path)
    return run, summarize(run)


def test_distributions_are_those_of_the_tail(seen: tuple[Run, Summary]) -> None:
    run, summary = seen
    activity = read_activity(run)
    found = distributions(run, find_steps(run, (activity.first_ns, activity.last_ns)))
    tail = summary.tail
    of_tail = (tail.response_tokens, tail.latency_s, tail.verdict_s)
    assert [one.unit for one in found] == ["tokens", "s", "s"]
    for one, spread in zip(found, of_tail, strict=True):
        values = dict(zip(SHARES, one.values, strict=True))
        assert one.n == spread.n
        told = [values[share] for share in (0.5, 0.95, 0.99, 1.0)]
        assert told == pytest.approx([spread.p50, spread.p95, spread.p99, spread.largest])


@pytest.mark.parametrize("columns", [5, 100])
@pytest.mark.parametrize("most_rows", [2, 12])
def test_lags_of_all_steps_are_those_of_the_run(
    seen: tuple[Run, Summary], columns: int, most_rows: int
) -> None:
    run, summary = seen
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    history = lag_history(run, steps, columns, most_rows)
    assert history is not None
    assert len(history.steps) <= columns
    assert len(history.lags) <= most_rows
    bars = {bar.lag: bar.trajectories for bar in summary.staleness.by_first_token}
    for n, (low, high) in enumerate(history.lags):
        expected = sum(bars.get(lag, 0) for lag in range(low, high + 1))
        assert sum(step.counts[n] for step in history.steps) == expected
    assert sum(step.unknown for step in history.steps) == bars[None] > 0


def test_updates_are_those_of_the_summary(seen: tuple[Run, Summary]) -> None:
    run, summary = seen
    assert summary.syncs is not None
    updates = updates_of(run)
    assert len(updates) == summary.syncs.recorded
    assert [one.version for one in updates] == sorted(one.version for one in updates)
    steady = [one.seconds for one in updates[-summary.syncs.updates :]]
    assert np.mean(steady) == pytest.approx(summary.syncs.update_s.mean, rel=1e-6)
    assert {one.bytes for one in updates} == {LOAD.sync_bytes}


def test_what_is_in_flight_adds_up_to_all_latencies(seen: tuple[Run, Summary]) -> None:
    run, _ = seen
    first, last, spent = run.sql(
        "select min(start_ns), max(end_ns), sum(end_ns - start_ns) / 1e9 from raw_trajectories"
    ).fetchall()[0]
    flying = in_flight(run, first, last, 50)
    assert flying.sum() * (last - first) / 50e9 == pytest.approx(float(spent), rel=1e-6)
    assert not len(in_flight(run, last + 1, last + 2, 10))


def test_gpus_are_as_busy_as_their_samples_say(seen: tuple[Run, Summary]) -> None:
    run, _ = seen
    first, last = run.sql("select min(time_ns), max(time_ns) from raw_samples").fetchall()[0]
    loads = device_load(run, first, last, 40)
    assert len(loads) == LOAD.gpus
    for load in loads:
        mean, n = run.sql(
            "select avg(value) / 100, count(*) from samples where counter = 'gpu/busy_percent' "
            f"and host = '{load.host}' and device = {load.device}"
        ).fetchall()[0]
        assert load.busy_share == pytest.approx(mean)
        assert load.samples == n
        assert np.nanmean(load.busy) == pytest.approx(mean, rel=0.1)
        assert np.isnan(load.most_memory_bytes), "nobody recorded it"


def test_shapes_say_when_a_stage_ran(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", *turns(4, 4, 6, 6)))
    activity = read_activity(run)
    steps = find_steps(run, (at(0), at(40)))
    shapes = step_shapes(activity, steps, 10)
    assert shapes is not None
    assert [word(stage) for stage in shapes.stages] == ["rollout", "train"]
    for n, rollout_s in enumerate((4, 4, 6, 6)):
        cut = PARTS * rollout_s // 10
        assert shapes.busy[n, 0] == pytest.approx([1.0] * cut + [0.0] * (PARTS - cut))
        assert shapes.busy[n, 1] == pytest.approx([0.0] * cut + [1.0] * (PARTS - cut))
    assert shapes.mean_busy[0, PARTS // 2] == pytest.approx(0.5)
    few = step_shapes(activity, steps, 2)
    assert few is not None
    assert few.places == (0, 3)
    assert Stage.ROLLOUT in few.stages
