"""The replay, its parts and its engines, against jobs whose steps can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rltrace.analysis.whatif.replay import Play, replay
from rltrace.analysis.whatif.run_samples import Sequences, fit_engine
from rltrace.testing.inside.analysis import EngineModel as Engine
from rltrace.testing.inside.analysis import StepWorkload as Workload
from rltrace.testing.inside.analysis import SyncModel as Sync
from rltrace.testing.inside.analysis import draft_speed
from rltrace.testing.inside.trace import Stage
from tests.analysis.whatif.played import batch, workload


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


def slots(workers: float, each: float) -> Engine:
    """So many workers, on each of which so many run at once, a token a second."""
    return Engine(workers, each, 1.0, 0.0)


ONE, TWO = slots(1.0, 1.0), slots(1.0, 2.0)
SAMPLES = batch([1, 1, 3, 4], group=2, verdict_s=2)
PARTS = batch([1, 1, 1, 5])


@pytest.mark.parametrize(
    ("load", "step_s"),
    [
        # Waves through slots are list scheduling: the last one may be the longest.
        (workload(batch([4, 1, 1, 2]), train_s=0, engine=TWO), 4),
        (workload(batch([1, 1, 2, 4]), train_s=0, engine=TWO), 5),
        # Two run at 1 + 2 * 0.5 = 2 s a token; then one has the engine alone, at 1.5.
        (workload(batch([2, 4]), train_s=0, engine=Engine(1.0, math.inf, 1.0, 0.5)), 4 + 3),
        # Workers take groups, and evening out moves them; spread, samples run where there is room.
        (workload(batch([4, 4, 1, 1], group=2), train_s=0, engine=slots(2.0, 1.0)), 8),
        (workload(batch([4, 4, 1, 1], group=2), train_s=0,
                  engine=replace(slots(2.0, 1.0), pooled=True)), 5),
        (workload(batch([4, 4], group=2), train_s=0, engine=slots(2.0, 1.0)), 8),
        (workload(batch([4, 4], group=2), train_s=0, engine=slots(2.0, 1.0), spread=True), 4),
        # A tool holds its sample up but no slot.
        (workload(batch([2, 2], env_s=10), train_s=0, engine=ONE), 2 + 10 + 1),
        # One slot. 1 calls its tool at 1 s, 2 runs until 6, then 1 goes on before 3, which waited
        # all along, and ends at 7: from then on the learner works, 10 s for each of three parts.
        (workload(batch([2, 10, 10], env_s=0.5), train_s=30, chunks=3, scoring="sample",
                  engine=ONE), 7 + 30),
        # One judge, 2 s a verdict: all at 4; from 1 on (the first two are a group). Or four.
        (workload(SAMPLES, train_s=0, scoring="batch"), 4 + 8),
        (workload(SAMPLES, train_s=0, scoring="group"), 1 + 8),
        (workload(SAMPLES, train_s=0, scoring="sample"), 1 + 8),
        (workload(batch([1] * 4, verdict_s=2), train_s=0, reward_workers=4), 3),
        # Two calls of two verdicts each keep two judges busy, however many there are.
        (workload(batch([1] * 4, verdict_s=2, group=2), train_s=0, reward_workers=4,
                  judged_in_turn=True), 5),
        # A learner that takes parts: three of them run under the last sample.
        (workload(PARTS, train_s=4, chunks=4, scoring="group"), 5 + 1),
        (workload(PARTS, train_s=4, scoring="group"), 5 + 4),
        # Weights travel beside the learner as far as they are hidden.
        (workload(batch([1, 1]), train_s=4, placement="async", lag_bound=3, sync=Sync(1.0)), 5),
        (workload(batch([1, 1]), train_s=4, placement="async", lag_bound=3, sync=Sync(1.0, 1.0)),
         4),
        # A full engine takes 4 s; a learner of 9 s is the slower side.
        (workload(batch([1, 1, 2, 4]), train_s=9, placement="async", engine=TWO, lag_bound=4), 9),
        # A version takes 6 s to arrive, a step of the learner 2 s. A bound of one lets in a batch
        # for each version that arrives; with room enough three steps pass in the meantime, and of
        # their versions the newest is sent.
        (workload(batch([1, 1]), placement="async", lag_bound=1, sync=Sync(6.0, overlap=1.0)), 6),
        (workload(batch([1, 1]), placement="async", lag_bound=8, sync=Sync(6.0, overlap=1.0)), 2),
    ],
)  # fmt: skip
def test_a_step_is_as_long_as_by_hand(load: Workload, step_s: float) -> None:
    assert replay(load).step_s == pytest.approx(step_s)


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
    load = workload(*batches, train_s=4, placement="async", engine=TWO, lag_bound=bound)
    step_s = replay(load).step_s
    if bound > 1:
        assert step_s == pytest.approx(sum(lengths) / 2, rel=0.02)
    else:  # tools of 30 s: two batches of samples are too few to fill two slots
        assert step_s >= 0.98 * sum(lengths) / 2


@pytest.mark.parametrize("train_s", [3.0, 5.0])
def test_a_bound_that_binds_nobody_is_played_as_a_far_one(train_s: float) -> None:
    """Some jobs state one of thousands, and some count versions by the sample."""
    load = workload(batch([1, 1, 2, 4]), train_s=train_s, placement="async",
                    engine=TWO, drops_stale=True)  # fmt: skip
    far, any_age = (replay(replace(load, lag_bound=bound)) for bound in (32.0, 1e15))
    assert any_age.step_s == pytest.approx(max(4, train_s), rel=0.03)
    assert any_age == far


def test_a_queue_that_still_fills_is_waited_for() -> None:
    load = workload(batch([1] * 4), train_s=4.2, placement="async", lag_bound=8,
                    engine=ONE)  # fmt: skip
    played = replay(load)  # 4 s to make a batch, 4.2 to train on it
    assert played.step_s == pytest.approx(4.2)
    assert played.mean_lag > 7


def test_what_comes_too_late_is_dropped_where_the_job_drops_it() -> None:
    load = workload(batch([1, 1, 1, 9]), train_s=2, placement="async", lag_bound=1)
    kept, dropped = replay(load), replay(replace(load, drops_stale=True))
    assert kept.stale_share == 0
    assert max(kept.lags) > 1
    assert dropped.stale_share > 0
    assert max(dropped.lags) <= 1


def test_unfinished_groups_are_kept_and_end_later() -> None:
    load = workload(batch([1, 1, 1, 5]), train_s=2, placement="colocated")
    waits = replay(load)
    kept = replay(replace(load, keeps_unfinished=True, in_flight=1.5))
    assert waits.step_s == pytest.approx(7)
    assert kept.step_s < waits.step_s
    assert max(kept.lags) > 0


def test_drafts_help_few_sequences_and_none_of_many() -> None:
    assert draft_speed(1, 1.0) == pytest.approx(3.62)
    assert draft_speed(32, 1.0) == pytest.approx(1.70)
    assert draft_speed(33, 1.0) == 1
    assert draft_speed(1, 0.0) == 1


def test_a_sequence_that_waits_for_its_tool_runs_with_nobody() -> None:
    """Batches of 2 and of 8 sequences, at 1 + n / 2 seconds a token; all wait for a tool of 100 s
    after the second of four tokens."""
    count = np.repeat([2, 8], [2, 8])
    batch = np.repeat([0, 1], [2, 8])
    begin_s = 1000.0 * batch
    engine, notes, _ = fit_engine(
        Sequences(
            worker=np.zeros(10, np.int64),
            batch=batch,
            begin_s=begin_s,
            end_s=begin_s + 4 * (1 + count / 2) + 100,
            tokens=np.full(10, 4.0),
            env_s=np.full(10, 100.0),
        )
    )
    assert not notes
    assert (engine.token_s, engine.shared_token_s) == pytest.approx((1.0, 0.5))


def test_a_worker_that_never_ran_two_at_once_runs_one_at_a_time() -> None:
    """Two workers, a sequence after the other on each, with pauses between them."""
    begin_s = np.repeat(5.0 * np.arange(12), 2)
    sequences = Sequences(
        worker=np.tile([0, 1], 12),
        batch=np.arange(24) // 6,
        begin_s=begin_s,
        end_s=begin_s + 2,
        tokens=np.full(24, 20.0),
        env_s=np.zeros(24),
    )
    engine, notes, _ = fit_engine(sequences)
    assert engine.slots == 1
    assert "one at a time" in " ".join(notes)
    one_each = replace(sequences, batch=np.arange(24) // 2)  # no second one was there to run
    assert fit_engine(one_each)[0].slots == np.inf


def any_load(random: np.random.Generator) -> Workload:
    """A job that begins its batches whole, with queues wherever there may be one."""
    engine = Engine(
        workers=float(random.integers(1, 5)),
        slots=float(random.choice([3, 6, math.inf])),
        token_s=random.random(),
        shared_token_s=random.random() * random.integers(2),
        pooled=bool(random.integers(2)),
        drafting=float(random.integers(2)) / 2,
    )
    size = int(random.integers(1, 4))
    batches = [batch(random.exponential(9, 12).tolist(), size) for _ in range(3)]
    verdicts_s = [random.exponential(3, 12) * random.integers(2, size=12) for _ in batches]
    return workload(
        *(replace(one, verdict_s=s) for one, s in zip(batches, verdicts_s, strict=True)),
        train_s=float(random.exponential(9)),
        engine=engine,
        placement=str(random.choice(["colocated", "disaggregated", "one-step-off", "async"])),
        in_batches=True,
        reward_workers=int(random.integers(1, 4)),
        reference_s=float(random.random() * random.integers(3)),
        spread=bool(random.integers(2)),
        chunks=int(random.integers(1, 4)),
        sync=Sync(float(random.random()), float(random.random())),
        lag_bound=float(random.integers(0, 3)),
        drops_stale=bool(random.integers(2)),
        devices={"rollout": 1.0, "train": 1.0},
        cores=float(random.choice([1.0, 9.0])),
        judged_in_turn=bool(random.integers(2)),
    )


@pytest.mark.parametrize("seed", range(60))
def test_what_is_played_by_arithmetic_is_what_its_events_come_to(seed: int) -> None:
    load = any_load(np.random.default_rng(seed))
    by_events = Play(load)
    assert by_events.actors.closed
    by_events.actors.closed = False
    found, events = Play(load).result(), by_events.result()
    assert found.lags == events.lags
    assert found.stages_s == pytest.approx(events.stages_s)
    assert found.beside == pytest.approx(events.beside)
    assert (found.step_s, found.learner_waits_s, found.stale_share) == pytest.approx(
        (events.step_s, events.learner_waits_s, events.stale_share)
    )
    assert found.steps_s == pytest.approx(events.steps_s)
    assert found.most_at_once == events.most_at_once


def test_more_slots_than_ever_were_taken_change_nothing() -> None:
    for seed in range(20):
        load = any_load(np.random.default_rng(seed))
        played = replay(load)
        enough = replace(load.engine, slots=played.most_at_once + 1e-6)
        if played.most_at_once * load.engine.widths[0] >= 1:
            assert replay(replace(load, engine=enough)) == played
