"""Spread, waits and own cost; what a draining batch leaves idle, and what is not
said without evidence; what pictures need beyond the summary, in more places."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrace
from benchmarks.synthetic.truth import Truth, known_job
from rltrace.analysis.figures.coverage import (
    ROW_COST_NS,
    SPAN_COST_NS,
    TOKEN_COST_NS,
    OwnCost,
    own_cost,
)
from rltrace.analysis.timeline.waits import waits
from rltrace.analysis.trajectories.tail import SHARES, Tail, distributions, tail
from rltrace.testing import at, process, run_of
from rltrace.testing.handmade_runs import stating
from rltrace.testing.inside.analysis import (
    Summary,
    device_load,
    lag_history,
    read_activity,
    spread,
    spread_of,
    summarize,
    updates_of,
)
from rltrace.testing.inside.trace import Finish, Outcome, Stage
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import compaction_compact as compact
from tests.analysis.made import not_none, rows, steps_of


def test_a_spread_has_quantiles_and_an_interval_of_its_mean() -> None:
    found = spread([1.0, 2.0, 3.0, math.nan])
    assert (found.n, found.mean, found.p50, found.largest) == (3, 2, 2, 3)
    # Student's t with two degrees of freedom: 4.3027 standard errors.
    both = (found.high - found.mean, found.mean - found.low)
    assert both == pytest.approx((4.30265 / math.sqrt(3),) * 2)
    none, one = spread([]), spread([5.0])
    assert (none.n, one.n, one.mean, one.p95) == (0, 1, 5, 5)
    assert np.isnan([none.mean, one.low]).all()


def test_the_database_and_numpy_agree_on_a_spread(tmp_path: Path) -> None:
    values = np.random.default_rng(0).lognormal(6, 1, 101).astype(int)
    engine = process("rollout")
    rows(engine, "trajectories", start_s=1.0, end_s=2.0, trajectory=list(range(101)),
         response_tokens=values.tolist())  # fmt: skip
    found = spread_of(run_of(tmp_path, engine), "response_tokens", "raw_trajectories")
    expected = spread(values)
    for name in ("n", "mean", "p50", "p95", "p99", "largest", "low", "high"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name))


def test_the_tail_is_of_trajectories_that_ended(tmp_path: Path) -> None:
    engine = process("rollout")
    rows(engine, "trajectories", start_s=0.0, first_token_s=[0.5, 0.5, -1, -1],
         end_s=[1.0, 2.0, 9.0, -1], trajectory=[1, 2, 3, 4], response_tokens=[10, 20, 90, -1],
         finish=[Finish.STOP, Finish.STOP, Finish.LENGTH, -1])  # fmt: skip
    rows(engine, "rewards", start_s=[1.0, 2.0], end_s=[1.5, 5.0], trajectory=[1, 2],
         outcome=[Outcome.OK, Outcome.TIMEOUT])  # fmt: skip
    run = run_of(tmp_path, engine)
    found = tail(run, steps_of(run))
    assert (found.latency_s.n, found.latency_s.p50, found.latency_s.largest) == (3, 2, 9)
    assert found.latency_s.tail_ratio == pytest.approx(found.latency_s.p95 / 2)
    assert found.response_tokens.p50 == 20
    assert (found.first_token_s.n, found.first_token_s.mean) == (2, 0.5)
    assert dict(found.finishes) == {"stop": 2, "length": 1}
    assert found.unended == 1
    assert (found.reward_latency_s.n, found.failed_rewards) == (2, 1)


def test_waits_are_by_name_and_role(synthetic: Any) -> None:
    run, truth = synthetic(placement="one-step-off", sigma=0.3, train_s=0.5)
    found = {wait.name: wait for wait in waits(run, steps_of(run))}
    steady = [step for step in truth.steps if not step.warmup]
    waited = sum(s.tau_s["wait"] for s in steady)
    wait = found["queue: rollout"]
    assert (wait.role, wait.processes, wait.spans) == ("driver", 1, len(steady))
    assert wait.process_s == pytest.approx(waited)
    assert wait.share == pytest.approx(waited / sum(s.step_s for s in steady))


def test_threads_that_wait_have_the_time_of_each(tmp_path: Path) -> None:
    steps = [(("step", n), 10 * n, 10 * n + 10) for n in range(6)]
    held_up = [(Stage.WAIT, 10 * n, 10 * n + 6, thread) for n in range(6) for thread in range(4)]
    waiting = process("actor", (Stage.ROLLOUT, 0, 60), *held_up)
    run = run_of(tmp_path, process("driver", *steps), waiting)
    (wait,) = waits(run, steps_of(run))
    assert (wait.processes, wait.threads, wait.spans) == (1, 4, 24)
    assert wait.share == pytest.approx(0.6)


def cost_of(run: Run) -> OwnCost:
    """What recording cost it in its first 10 s."""
    return own_cost(run, read_activity(run), at(10))


def test_own_cost_is_events_times_a_usual_cost_over_wall_time(tmp_path: Path) -> None:
    worker = process("worker", *((Stage.TRAIN, n, n + 0.5) for n in range(10)))
    rows(worker, "uses", time_s=[1.0, 2.0], trajectory=[1, 2])
    found = cost_of(run_of(tmp_path, worker))
    cost_ns = 10 * SPAN_COST_NS + 2 * ROW_COST_NS
    assert (found.events, found.processes, found.calibrated) == (12, 1, False)
    assert found.share == pytest.approx(cost_ns * 1e-9 / 10)
    assert found.event_cost_ns == pytest.approx(cost_ns / 12)


def test_what_a_process_has_timed_of_its_calls_stands_for_its_rows(tmp_path: Path) -> None:
    """Told amid the run, when there were 4 events of the 12; each role's dearest process counts."""
    spans = [(Stage.TRAIN, n, n + 0.5) for n in range(10)]
    workers = [
        rows(process(role, *spans, rank=rank), "uses", time_s=[1.0, 2.0], trajectory=[1, 2])
        for rank, role in enumerate(("rollout", "rollout", "learner"))
    ]
    timed = {"readers_cpu_ns": 40_000_000, "readers_events": 4}
    found = cost_of(stating(run_of(tmp_path, *workers), timed))
    spans_s = 10 * SPAN_COST_NS * 1e-9
    of_one = {"rollout": spans_s + 0.12, "learner": spans_s + 2 * ROW_COST_NS * 1e-9}
    assert found.calibrated
    assert found.cpu_s == pytest.approx(sum(of_one.values()))
    assert found.share == pytest.approx(sum(of_one.values()) / 10)


def test_captured_tokens_have_their_part_in_own_cost(tmp_path: Path) -> None:
    had = {"prompt_tokens": [100, 300], "response_tokens": [10, -1]}
    worker = rows(process("worker"), "trajectories", start_s=[1.0, 2.0], **had)
    none = run_of(tmp_path / "none", worker, settings={"capture_tokens": True})
    assert cost_of(none).cpu_s == pytest.approx(2 * ROW_COST_NS * 1e-9)
    rows(
        worker, "captured_tokens", start_s=1.0, trajectory=1, part=[0, 1], position=0, token=[5, 6]
    )
    run = run_of(tmp_path, worker, settings={"capture_tokens": True})
    found = cost_of(run)
    assert found.events == 2
    assert found.share == pytest.approx((2 * ROW_COST_NS + 2 * TOKEN_COST_NS) * 1e-9 / 10)
    compact(run)
    assert cost_of(rltrace.open_run(run.path)) == found


def tail_of(run: Run) -> Tail:
    return tail(run, steps_of(run))


def batches(path: Path) -> Tail:
    """Two steps; in each, four trajectories of 1, 2, 3 and 8 s on two slots, in this order."""
    actor = process("rollout")
    for step in range(2):
        start = 20.0 * step
        actor.spans += process("rollout", (("step", step), start, start + 20)).spans
        rows(actor, "trajectories", start_s=[start, start, start + 1, start + 2],
             end_s=[start + 1, start + 2, start + 4, start + 10],
             trajectory=[10 * step + i for i in range(4)], group=[step, step, 7 + step, 7 + step],
             response_tokens=[10, 20, 30, 80])  # fmt: skip
    return tail_of(run_of(path, actor))


def test_slots_of_a_batch_that_drains(tmp_path: Path) -> None:
    found = not_none(batches(tmp_path).slots)
    assert found.batches == 2
    assert (found.slots.mean, found.samples.mean, found.waves.mean) == (2, 4, 2)
    assert found.span_s.mean == pytest.approx(10)
    assert found.used_share.mean == pytest.approx(14 / 20)
    # The last one begins after 2 s: 8 s of draining, in which another still runs for 2.
    assert found.draining_s.mean == pytest.approx(8)
    assert found.draining_used_share.mean == pytest.approx(10 / 16)
    assert found.no_idle_span_s == pytest.approx(7)


@pytest.mark.parametrize(
    ("start_s", "ends_s", "last_tenth_s"),
    [
        (0.5, [*(1 + 0.1 * i for i in range(18)), 5.0, 10.0], 10 - 2.7),
        (0.0, [*(1.0 + 0.5 * i for i in range(7)), 10.0], 10 - 4),  # of few, the slowest
        (-0.5, [*(1.0 + 0.5 * i for i in range(7)), 10.0], 10 - 4),  # of a rank that began early
    ],
)
def test_the_last_tenth_of_a_batch(
    tmp_path: Path, start_s: float, ends_s: list[float], last_tenth_s: float
) -> None:
    actor, ids = process("rollout", (("step", 0), 0, 20)), list(range(len(ends_s)))
    rows(actor, "trajectories", start_s=start_s, end_s=ends_s, trajectory=ids)
    found = not_none(tail_of(run_of(tmp_path, actor)).slots)
    assert found.last_tenth_s.mean == pytest.approx(last_tenth_s)
    assert found.last_tenth_share.mean == pytest.approx(last_tenth_s / (10 - start_s))


def test_shares_of_batches_that_differ_are_those_of_all_their_time(tmp_path: Path) -> None:
    actor = process("rollout", (("step", 0), 0, 20), (("step", 1), 20, 40))
    rows(actor, "trajectories", start_s=[0, 0, 20, 20], end_s=[10, 2, 24, 24],
         trajectory=[1, 2, 3, 4])  # fmt: skip
    found = not_none(tail_of(run_of(tmp_path, actor)).slots)
    span_s = found.span_s.mean
    assert found.used_share.mean == pytest.approx(found.no_idle_span_s / span_s) != 0.8
    assert found.last_tenth_share.mean == pytest.approx(found.last_tenth_s.mean / span_s)


def test_generation_that_never_stops_has_no_batches(tmp_path: Path) -> None:
    """Of two slots one is always at work."""
    actor = process("rollout", (("step", 0), 0, 10), (("step", 1), 10, 20))
    starts = [0.0, 2.5, 5.0, 7.5, 10.0, 12.5, 15.0]
    rows(actor, "trajectories", start_s=starts, end_s=[at + 5 for at in starts],
         trajectory=list(range(7)))  # fmt: skip
    slots = not_none(tail_of(run_of(tmp_path, actor)).slots)
    assert (slots.batches, slots.slots.mean) == (0, 2)


Seen = tuple[Run, Summary, Truth]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    path = tmp_path_factory.mktemp("pictured") / "run"
    run, truth = known_job(path, placement="async", nodes=2, unknown_versions=0.1,
                           steps=25, prompts=8, group=4)  # fmt: skip
    return run, summarize(run), truth


def test_distributions_are_those_of_the_tail(seen: Seen) -> None:
    run, summary, _ = seen
    found = distributions(run, steps_of(run))
    tail = summary.tail
    of_tail = (tail.response_tokens, tail.latency_s, tail.reward_latency_s)
    assert [one.unit for one in found] == ["tokens", "s", "s"]
    for one, known in zip(found, of_tail, strict=True):
        values = dict(zip(SHARES, one.values, strict=True))
        assert one.n == known.n
        told = [values[share] for share in (0.5, 0.95, 0.99, 1.0)]
        assert told == pytest.approx([known.p50, known.p95, known.p99, known.largest])


@pytest.mark.parametrize("columns", [5, 100])
@pytest.mark.parametrize("most_rows", [2, 12])
def test_lags_of_all_steps_are_those_of_the_run(seen: Seen, columns: int, most_rows: int) -> None:
    run, summary, _ = seen
    history = not_none(lag_history(run, steps_of(run), columns, most_rows))
    assert len(history.steps) <= columns
    assert len(history.lags) <= most_rows
    bars = {bar.lag: bar.trajectories for bar in summary.staleness.by_first_token}
    for n, (low, high) in enumerate(history.lags):
        expected = sum(bars.get(lag, 0) for lag in range(low, high + 1))
        assert sum(step.counts[n] for step in history.steps) == expected
    assert sum(step.unknown for step in history.steps) == bars[None] > 0


def test_updates_are_those_of_the_summary(seen: Seen) -> None:
    run, summary, truth = seen
    updates, told = updates_of(run), not_none(summary.syncs)
    assert len(updates) == told.recorded_updates
    assert [one.version for one in updates] == sorted(one.version for one in updates)
    steady = [one.seconds for one in updates[-told.updates :]]
    assert np.mean(steady) == pytest.approx(told.update_s.mean, rel=1e-6)
    assert {one.bytes for one in updates} == {truth.sync_bytes}


def test_gpus_are_as_busy_as_their_samples_say(seen: Seen) -> None:
    run, _, truth = seen
    first, last = run.sql("select min(time_ns), max(time_ns) from raw_samples").fetchall()[0]
    loads = device_load(run, first, last, 40)
    assert len(loads) == truth.gpus
    for load in loads:
        mean, n = run.sql(
            "select avg(value) / 100, count(*) from samples where counter = 'gpu/busy_percent' "
            f"and host = '{load.host}' and device = {load.device}"
        ).fetchall()[0]
        assert load.busy_share == pytest.approx(mean)
        assert load.samples == n
        assert np.nanmean(load.busy) == pytest.approx(mean, rel=0.1)
        assert np.isnan(load.most_memory_bytes), "nobody recorded it"


def test_updates_outside_of_the_steps_are_in_no_figure(tmp_path: Path) -> None:
    late = process("learner", *((("step", n), 4 * n, 4 * n + 4) for n in range(4)))
    rows(late, "syncs", start_s=500.0, end_s=501.0, version=1, role=0, bytes=10)
    found = not_none(summarize(run_of(tmp_path, late)).syncs)
    assert (found.recorded_updates, found.updates, found.phases_s) == (1, 0, ())
