"""The replay, against jobs whose steps can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from rltrace.analysis.whatif.replay import Play, replay
from rltrace.analysis.whatif.tally import Tally
from rltrace.testing.inside.analysis import Engine, Sync, draft_speed, walls
from rltrace.testing.inside.trace import Stage
from tests.analysis.whatif.played import batch, workload

ROLLOUT, LEARNER, REWARD = "rollout decode", "learner FLOPs + memory", "env/reward latency"


def test_stages_that_take_turns_add_up() -> None:
    load = workload(batch([3, 5, 4]), train_s=2, switch_s=0.5, rest_s=0.25, sync=Sync(1.0))
    for placement in ("colocated", "disaggregated"):
        played = replay(replace(load, placement=placement))
        assert played.step_s == pytest.approx(5 + 2 + 0.5 + 0.25 + 1)
        assert played.lags == {0: 1.0}
        assert played.stages_s[Stage.ROLLOUT] == pytest.approx(5)


@pytest.mark.parametrize(("train_s", "step_s"), [(2, 5), (8, 8)])
def test_one_step_off_is_the_longer_chain_and_a_version_late(train_s: float, step_s: float) -> None:
    load = workload(batch([3, 5]), train_s=train_s, placement="one-step-off", sync=Sync(1.0))
    played = replay(load)
    assert played.step_s == pytest.approx(step_s + 1)  # nothing may be generated while they travel
    assert played.lags == {1: 1.0}
    assert played.learner_waits_s == pytest.approx(max(0, 5 - train_s))


def test_what_ran_beside_what_is_told() -> None:
    load = workload(batch([4]), train_s=1)
    assert set(replay(load).beside.values()) == {0.0}
    together = replay(replace(load, placement="one-step-off")).beside
    assert together == pytest.approx({Stage.ROLLOUT: 1 / 4, Stage.TRAIN: 1.0})


def test_waves_through_slots_are_list_scheduling() -> None:
    load = workload(batch([4, 1, 1, 2]), train_s=0, engine=Engine(1.0, 2.0, 1.0, 0.0))
    assert replay(load).step_s == pytest.approx(4)
    long_last = workload(batch([1, 1, 2, 4]), train_s=0, engine=Engine(1.0, 2.0, 1.0, 0.0))
    assert replay(long_last).step_s == pytest.approx(5)


def test_sequences_share_an_engine_and_the_last_one_has_it_alone() -> None:
    # Two run at 1 + 2 * 0.5 = 2 s a token; then one at 1.5.
    load = workload(batch([2, 4]), train_s=0, engine=Engine(1.0, math.inf, 1.0, 0.5))
    assert replay(load).step_s == pytest.approx(2 * 2 + 2 * 1.5)


def test_workers_take_groups_and_evening_out_moves_them() -> None:
    groups = batch([4, 4, 1, 1], group=2)
    apart = workload(groups, train_s=0, engine=Engine(2.0, 1.0, 1.0, 0.0))
    assert replay(apart).step_s == pytest.approx(8)
    together = replace(apart, engine=replace(apart.engine, pooled=True))
    assert replay(together).step_s == pytest.approx(5)


def test_a_tool_holds_its_sample_up_but_no_slot() -> None:
    load = workload(batch([2, 2], env_s=10), train_s=0, engine=Engine(1.0, 1.0, 1.0, 0.0))
    assert replay(load).step_s == pytest.approx(2 + 10 + 1)


@pytest.mark.parametrize(
    ("scoring", "step_s"),
    # One server, 2 s a verdict: all at 4; from 1 on (group of the first two); from 1 on.
    [("batch", 4 + 8), ("group", 1 + 8), ("sample", 1 + 8)],
)
def test_verdicts_begin_when_the_placement_lets_them(scoring: str, step_s: float) -> None:
    samples = batch([1, 1, 3, 4], group=2, verdict_s=2)
    assert replay(workload(samples, train_s=0, scoring=scoring)).step_s == pytest.approx(step_s)


def test_more_judges_work_side_by_side() -> None:
    samples = batch([1, 1, 1, 1], verdict_s=2)
    assert replay(workload(samples, train_s=0, reward_workers=4)).step_s == pytest.approx(3)


def test_async_runs_at_the_rate_of_the_slower_side() -> None:
    # Work of a batch: 8 tokens on 2 slots, 4 s without a barrier; with one it takes 5.
    slots = Engine(1.0, 2.0, 1.0, 0.0)
    load = workload(batch([1, 1, 2, 4]), placement="async", engine=slots, lag_bound=4)
    assert replay(replace(load, serial_s={Stage.TRAIN: (1.0,)})).step_s == pytest.approx(
        4, rel=0.03
    )
    slow = replay(replace(load, serial_s={Stage.TRAIN: (9.0,)}))
    assert slow.step_s == pytest.approx(9)
    assert slow.mean_lag > 3  # what is ready waits in the queue until the bound stops generation


def test_the_lag_bound_holds_generation_back() -> None:
    load = workload(batch([1, 1, 1, 6]), train_s=3, placement="async")
    steps = [replay(replace(load, lag_bound=bound)) for bound in (0.0, 1.0, 3.0)]
    assert steps[0].step_s == pytest.approx(9)  # no freedom: generation, then training
    assert steps[0].step_s > steps[1].step_s >= steps[2].step_s
    assert steps[2].step_s == pytest.approx(3)
    assert max(steps[1].lags) <= 2


@pytest.mark.parametrize("bound", [1, 4, 16])
@pytest.mark.parametrize("env_s", [0, 30])
def test_a_full_engine_sets_the_pace_at_any_lag_bound(bound: int, env_s: float) -> None:
    """All groups that the bound admits are begun at once; what that gives is soon used up."""
    lengths = [3, 1, 4, 1, 5, 9, 2, 6]
    batches = [batch(lengths[n:] + lengths[:n], group=2, env_s=env_s) for n in range(4)]
    slots = Engine(1.0, 2.0, 1.0, 0.0)
    load = workload(*batches, train_s=4, placement="async", engine=slots, lag_bound=bound)
    step_s = replay(load).step_s
    if bound > 1:
        assert step_s == pytest.approx(sum(lengths) / 2, rel=0.02)
    else:  # tools of 30 s: two batches of samples are too few to fill two slots
        assert step_s >= 0.98 * sum(lengths) / 2


@pytest.mark.parametrize("train_s", [3.0, 5.0])
def test_a_bound_that_binds_nobody_is_played_as_a_far_one(train_s: float) -> None:
    """Some jobs state one of thousands, and some count versions by the sample."""
    load = workload(batch([1, 1, 2, 4]), train_s=train_s, placement="async",
                    engine=Engine(1.0, 2.0, 1.0, 0.0), drops_stale=True)  # fmt: skip
    far, any_age = (replay(replace(load, lag_bound=bound)) for bound in (32.0, 1e15))
    assert any_age.step_s == pytest.approx(max(4, train_s), rel=0.03)
    assert any_age == far


def test_a_queue_that_still_fills_is_waited_for() -> None:
    load = workload(batch([1] * 4), train_s=4.2, placement="async", lag_bound=8,
                    engine=Engine(1.0, 1.0, 1.0, 0.0))  # fmt: skip
    played = replay(load)  # 4 s to make a batch, 4.2 to train on it
    assert played.step_s == pytest.approx(4.2)
    assert played.mean_lag > 7


def test_a_sample_goes_on_after_its_tool_before_others_begin() -> None:
    # One slot. 1 calls its tool at 1 s, 2 runs until 6, then 1 goes on and ends at 7: from then on
    # the learner works, 10 s for each of three parts. 3, which waited all along, begins at 7.
    slot = Engine(1.0, 1.0, 1.0, 0.0)
    load = workload(batch([2, 10, 10], env_s=0.5), train_s=30, chunks=3, scoring="sample",
                    engine=slot)  # fmt: skip
    assert replay(load).step_s == pytest.approx(7 + 30)


def test_the_samples_of_a_group_run_where_there_is_room_if_they_are_spread() -> None:
    load = workload(batch([4, 4], group=2), train_s=0, engine=Engine(2.0, 1.0, 1.0, 0.0))
    assert replay(load).step_s == pytest.approx(8)
    assert replay(replace(load, spread=True)).step_s == pytest.approx(4)


def test_weights_that_the_learner_waits_for_bind_before_its_own_work() -> None:
    load = workload(batch([1, 1]), train_s=2, placement="async", lag_bound=3, sync=Sync(5.0))
    assert walls(load, replay(load)) == ("weight movement",)


@pytest.mark.parametrize(("bound", "step_s"), [(1, 6), (8, 2)])
def test_versions_travel_one_after_the_other_beside_the_learner(bound: int, step_s: float) -> None:
    """A version takes 6 s to arrive, a step of the learner 2 s. A bound of one lets in a batch for
    each version that arrives; with room enough three steps pass in the meantime, and of their
    versions the newest is sent."""
    load = workload(batch([1, 1]), placement="async", lag_bound=bound, sync=Sync(6.0, overlap=1.0))
    assert replay(load).step_s == pytest.approx(step_s)


def test_what_comes_too_late_is_dropped_where_the_job_drops_it() -> None:
    load = workload(batch([1, 1, 1, 9]), train_s=2, placement="async", lag_bound=1)
    kept, dropped = replay(load), replay(replace(load, drops_stale=True))
    assert kept.stale_share == 0
    assert max(kept.lags) > 1
    assert dropped.stale_share > 0
    assert max(dropped.lags) <= 1


def test_a_learner_that_takes_parts_begins_before_the_batch_is_complete() -> None:
    load = workload(batch([1, 1, 1, 5]), train_s=4, chunks=4, scoring="group")
    assert replay(load).step_s == pytest.approx(5 + 1)  # three parts ran under the last sample
    assert replay(replace(load, chunks=1)).step_s == pytest.approx(5 + 4)


def test_unfinished_groups_are_kept_and_end_later() -> None:
    load = workload(batch([1, 1, 1, 5]), train_s=2, placement="colocated")
    waits = replay(load)
    kept = replay(replace(load, keeps_unfinished=True, in_flight=1.5))
    assert waits.step_s == pytest.approx(7)
    assert kept.step_s < waits.step_s
    assert max(kept.lags) > 0


def test_weights_travel_beside_the_learner_as_far_as_they_are_hidden() -> None:
    load = workload(batch([1, 1]), train_s=4, placement="async", lag_bound=3)
    assert replay(replace(load, sync=Sync(1.0, 0.0))).step_s == pytest.approx(5)
    assert replay(replace(load, sync=Sync(1.0, 1.0))).step_s == pytest.approx(4)


def test_the_wall_is_the_slower_chain_and_not_the_longest_stage() -> None:
    # Actors 100 + 100, learner 150: the largest single stage is the learner's, yet it waits.
    samples = batch([100], verdict_s=100)
    load = workload(samples, train_s=150, placement="one-step-off")
    assert walls(load, replay(load))[0] in (ROLLOUT, REWARD)
    turns = replace(load, placement="colocated")
    assert walls(turns, replay(turns)) == (LEARNER,)


def test_chains_that_are_as_long_bind_together() -> None:
    load = workload(batch([100]), train_s=97, placement="one-step-off")
    assert set(walls(load, replay(load))) == {ROLLOUT, LEARNER}
    tools = workload(batch([2], env_s=50), train_s=3)
    assert walls(tools, replay(tools)) == (REWARD,)


def test_drafts_help_few_sequences_and_none_of_many() -> None:
    assert draft_speed(1, 1.0) == pytest.approx(3.62)
    assert draft_speed(32, 1.0) == pytest.approx(1.70)
    assert draft_speed(33, 1.0) == 1
    assert draft_speed(1, 0.0) == 1


@pytest.mark.parametrize("train_s", [9.0, 20.0, 30.0])
@pytest.mark.parametrize(
    "more",
    [
        {"placement": "async", "lag_bound": 2, "drops_stale": True, "sync": Sync(1.0, 0.5)},
        {"placement": "colocated", "keeps_unfinished": True, "in_flight": 1.5},
    ],
)
def test_what_comes_again_is_counted_as_if_it_had_been_played(
    train_s: float, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [batch([3, 9, 5, 4], verdict_s=0.5), batch([2, 7, 7, 6], verdict_s=0.5)]
    load = workload(*batches, train_s=train_s, **more)
    short, long = Play(load), Play(load)
    found = short.result()
    monkeypatch.setattr(Tally, "_repeats", lambda tally: False)
    expected = long.result()
    assert len(short.ends) < len(long.ends)
    assert found.steps_s == pytest.approx(expected.steps_s)
    assert found.stages_s == pytest.approx(expected.stages_s)
    assert found.lags == pytest.approx(expected.lags)
    assert found.learner_waits_s == pytest.approx(expected.learner_waits_s)
    assert found.beside == pytest.approx(expected.beside)
