"""Short runs: who runs when, how old the data is, and that every sample is in the books."""

from __future__ import annotations

import dataclasses
import gc
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rltrace.testing.inside.trainer import Reward, RewardWorker, policy_of
from rltrace.testing.inside.trainer import config_PLACEMENTS as PLACEMENTS
from rltrace.trainer import Ledger, StepRecord, TrainerConfig
from rltrace.trainer import placement as placement_module
from rltrace.trainer.placement import Async
from tests.trainer.conftest import SMALL
from tests.trainer.local import accounted, total, train_locally

pytestmark = pytest.mark.slow

STRICT = ("colocated", "disaggregated")
BATCH = SMALL.prompts * SMALL.samples


def run(
    on_step: Callable[[StepRecord], None] | None = None,
    reward: type[RewardWorker] = RewardWorker,
    **settings: Any,
) -> Ledger:
    ledger = train_locally(dataclasses.replace(SMALL, **settings), on_step, reward)
    adds_up(ledger)
    return ledger


def adds_up(ledger: Ledger) -> None:
    """Nothing went wrong, and all is in the books."""
    records = accounted(ledger)
    assert not ledger.events
    assert [record.version for record in ledger.steps] == list(range(ledger.config.steps))
    assert ledger.unused >= 0
    assert records[-1].tokens_trained == 0
    for record in records:
        assert total(record.finish) == record.samples
        assert total(record.lags_in_flight) == total(record.lags_in_queue) == total(record.lags)
        assert total(record.lags) <= record.tokens_trained
        assert record.lost == 0
    whole = sum(record.tokens_generated for record in records)
    assert sum(record.tokens_trained for record in records) <= whole
    bytes_of_weights = 4 * sum(p.numel() for p in policy_of(ledger.config).parameters())
    assert 4 * ledger.parameters == bytes_of_weights
    # What is overtaken is skipped, and nobody waits for the last version.
    most = ledger.config.rollout_workers * ledger.config.steps * bytes_of_weights
    moved = sum(record.sync_bytes for record in records)
    assert moved > 0
    assert moved <= most


def lags(ledger: Ledger) -> Counter[int]:
    return sum((Counter(record.lags) for record in ledger.steps), Counter())


def drops(ledger: Ledger) -> Counter[str]:
    return sum((Counter(record.drops) for record in ledger.steps), Counter())


def training(ledger: Ledger) -> list[tuple[Any, ...]]:
    """What the steps did, whatever the clock says. Sums of floats differ in their last bits where
    sequences met in other batches."""
    return [
        (
            pytest.approx(r.reward), r.samples, r.tokens_generated, r.tokens_trained, r.finish,
            r.lags, r.drops, pytest.approx(r.loss, abs=1e-4), pytest.approx(r.kl, abs=1e-5),
            r.optimizer_updates, r.groups, r.groups_with_signal, pytest.approx(r.ess, rel=1e-3),
        )
        for r in ledger.steps
    ]  # fmt: skip


# --- the four placements -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def colocated() -> Ledger:
    return run()


@pytest.mark.parametrize("placement", STRICT)
def test_a_strict_placement_trains_on_what_the_newest_policy_just_sampled(placement: str) -> None:
    seen: list[StepRecord] = []
    ledger = run(seen.append, placement=placement)
    assert seen == ledger.steps
    assert sum(record.seconds for record in seen) <= ledger.seconds
    for record in ledger.steps:
        assert record.samples == BATCH
        assert set(record.lags) == {0}
        assert set(record.drops) <= {"zero-advantage"}
        assert record.optimizer_updates == SMALL.minibatches
        assert record.reward is not None
        assert 0 < record.reward < 1
        assert record.ess == pytest.approx(1, abs=0.1)
        assert record.sync_bytes == ledger.steps[0].sync_bytes > 0
    assert ledger.unused == 0


def test_one_step_off_trains_on_samples_of_exactly_one_version_ago(colocated: Ledger) -> None:
    ledger = run(placement="one-step-off", steps=5)
    assert [set(record.lags) for record in ledger.steps] == [{0}, {1}, {1}, {1}, {1}]
    assert lags(ledger)[1] == sum(total(r.lags_in_queue) for r in ledger.steps[1:])
    assert {lag for r in ledger.steps for lag in r.lags_in_flight} == {0}
    assert ledger.unused == 0  # no batch is generated for a step that does not come
    assert sum(record.samples for record in ledger.steps) == 5 * BATCH
    one, strict = ledger.steps[0], colocated.steps[0]  # beside it, the next batch is generated
    assert (one.tokens_trained, one.lags) == (strict.tokens_trained, strict.lags)
    assert one.loss == pytest.approx(strict.loss, abs=1e-4)
    # What it generates does not depend on how long the learner takes.
    assert training(run(placement="one-step-off", steps=5)) == training(ledger)


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_async_never_trains_on_samples_above_its_bound(max_lag: int, partial: bool) -> None:
    settings = {"max_lag": max_lag, "partial_rollout": partial, "decode_floor": 0.01}
    ledger = run(placement="async", steps=8, max_running=2, **settings)
    assert max(lags(ledger)) <= max_lag
    if max_lag:
        assert max(lags(ledger)) > 0  # it does overlap
    assert drops(ledger)["stale"] == 0 or max_lag > 0  # nothing begins that must come too late
    in_flight = {lag for r in ledger.steps for lag in r.lags_in_flight}
    assert in_flight == {0} if not partial else max_lag < 3 or max(in_flight) > 0


# --- the same seed -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"placement": "disaggregated"},
        {"rollout_workers": 1, "reward_workers": 2, "max_running": 16},
        {"reference_side": "learner"},
        {"placement": "disaggregated", "reference_side": "learner"},
    ],
)
def test_who_works_where_does_not_change_what_is_learned_on_policy_but_the_seed_does(
    colocated: Ledger, settings: dict[str, Any]
) -> None:
    assert training(run(**settings)) == training(colocated)
    assert run(**settings, seed=1, steps=1).steps[0].reward != colocated.steps[0].reward


# --- what is left out ----------------------------------------------------------------------------


@pytest.mark.parametrize("placement", STRICT)
def test_oversampling_cuts_the_groups_that_come_last(placement: str) -> None:
    """A share of a group is rounded up."""
    ledger = run(placement=placement, oversample=1.9, decode_floor=0.005, max_running=4)
    for record in ledger.steps:
        assert record.samples == 2 * BATCH
        assert record.drops["filtered"] == BATCH
    finish = sum((Counter(r.finish) for r in ledger.steps), Counter())
    assert finish["abort"] > 0
    assert finish["abort"] <= drops(ledger)["filtered"]


class FailsFast(RewardWorker):
    """No verdict for half of the groups, at once; the others take their time."""

    def verify(self, trajectory: Any) -> Reward:
        if int(trajectory.group.rpartition("/")[2]) % 2:
            return Reward(trajectory.id, float("nan"), "none", "error", *[time.monotonic_ns()] * 2)
        time.sleep(0.01)
        return super().verify(trajectory)


@pytest.mark.parametrize(("oversample", "filtered", "failed"), [(2.0, 4, 0), (1.5, 2, 1)])
def test_a_group_that_fails_fills_up_only_where_too_few_succeed(
    oversample: float, filtered: int, failed: int
) -> None:
    """Four groups are taken."""
    ledger = run(placement="disaggregated", oversample=oversample, reward=FailsFast)
    for record in ledger.steps:
        assert record.drops["filtered"] == filtered * SMALL.samples
        assert record.drops.get("failed", 0) == failed * SMALL.samples


class Judged(RewardWorker):
    """Counts its verdicts."""

    verdicts = 0

    def verify(self, trajectory: Any) -> Reward:
        time.sleep(0.02)
        Judged.verdicts += 1
        return super().verify(trajectory)


def test_async_does_not_wait_for_verdicts_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judged, "verdicts", 0)
    ledger = run(placement="async", max_lag=8, steps=2, reward=Judged)
    assert ledger.unused > 5 * SMALL.samples  # most of them are with the verifier
    used = 2 * BATCH
    # the group in work, and one more that was asked for before the last step was over
    assert Judged.verdicts <= used + ledger.unused // 2


def test_a_run_whose_first_step_fails_leaves_no_work_behind() -> None:
    class Never(Async):
        async def step(self, number: int) -> StepRecord:
            raise KeyError("before anything has begun")

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as seen:
        patch.setitem(placement_module.PLACEMENTS, "async", Never)
        with pytest.raises(KeyError, match="before anything"):
            run(placement="async")
        gc.collect()
    assert not seen


def test_responses_that_were_cut_off_are_judged_but_not_trained_on_if_that_is_asked_for() -> None:
    kept, dropped = (run(steps=1, max_response=7, drop_truncated=d) for d in (False, True))
    cut = kept.steps[0].finish["length"]
    assert cut > 0
    assert drops(kept)["truncated"] == 0
    assert drops(dropped)["truncated"] == cut
    assert kept.steps[0].reward == dropped.steps[0].reward
    assert total(dropped.steps[0].lags) <= dropped.steps[0].samples - cut


@pytest.mark.parametrize(("oversample", "filtered"), [(1.0, 0), (2.0, BATCH)])
def test_samples_out_of_time_are_recorded_as_failed(oversample: float, filtered: int) -> None:
    ledger = run(steps=1, timeout=0.02, decode_floor=0.03, oversample=oversample)
    record = ledger.steps[0]
    assert record.drops.get("filtered", 0) == filtered
    assert record.drops["failed"] > 0
    if not filtered:
        assert record.finish.keys() <= {"timeout", "stop"}
        assert record.drops["failed"] == record.finish["timeout"]


class NoVerifier(RewardWorker):
    """Every verifier process hangs or cannot be started."""

    def __init__(self, config: TrainerConfig, index: int) -> None:
        super().__init__(config, index)
        self.task.shell = "/nowhere/sh"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("placement", "oversample"), [*((name, 1.0) for name in PLACEMENTS), ("colocated", 2.0)]
)
def test_a_verifier_that_breaks_down_is_recorded_and_the_run_goes_on(
    placement: str, oversample: float
) -> None:
    settings = {"task": "expression", "symbols": 5, "steps": 2, "oversample": oversample}
    ledger = run(reward=NoVerifier, placement=placement, **settings)
    for record in ledger.steps:
        assert (record.reward, record.loss, record.kl) == (None, None, None)
        assert (record.optimizer_updates, record.tokens_trained, record.lags) == (0, 0, {})
        assert set(record.drops) <= {"failed", "filtered" if oversample > 1 else "stale"}
        assert record.drops["failed"] > 0


# --- what is trained -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"recompute_old": True},
        {"objective": "decoupled"},
        {"objective": "tis"},
        {"retokenize": True, "merges": 3},
        {"retokenize": True, "objective": "tis", "reference_side": "learner"},
        {"reward_latency": 0.001, "link_gbps": 0.1, "update_floor": 0.001, "reward_workers": 2},
    ],
)
def test_every_way_of_training_runs_beside_generation(settings: dict[str, Any]) -> None:
    ledger = run(placement="async", max_lag=2, steps=4, **settings)
    assert all(record.optimizer_updates > 0 for record in ledger.steps)
    assert all(record.loss is not None and np.isfinite(record.loss) for record in ledger.steps)


def test_the_policy_learns_and_without_a_learning_rate_it_does_not() -> None:
    easy = {
        "steps": 30, "task": "copy", "symbols": 3, "shortest": 2, "longest": 2, "max_response": 6,
        "prompts": 8, "samples": 8, "max_running": 32, "model_size": 0.1, "learning_rate": 3e-3,
        "minibatches": 4,
    }  # fmt: skip
    assert rise(run(**easy)) > 0.3
    assert rise(run(**easy, placement="async", max_lag=2)) > 0.25
    assert abs(rise(run(**easy | {"learning_rate": 0.0}))) < 0.1


def rise(ledger: Ledger) -> float:
    """Mean reward of the last five steps minus the first five."""
    rewards = [record.reward for record in ledger.steps if record.reward is not None]
    return float(np.mean(rewards[-5:]) - np.mean(rewards[:5]))


# --- the run as a whole --------------------------------------------------------------------------


class Broken(RewardWorker):
    """Breaks down as no verifier may: the run cannot go on."""

    def verify(self, trajectory: Any) -> Any:
        raise LookupError("a bug of the task")


def interrupt(record: StepRecord) -> None:
    if record.step == 1:
        raise KeyError("the caller's own")


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_bug_in_a_worker_or_in_the_caller_ends_the_run_instead_of_hanging_it(
    placement: str,
) -> None:
    with pytest.raises(LookupError, match="a bug of the task"):
        run(reward=Broken, placement=placement)
    with pytest.raises(KeyError, match="the caller's own"):
        run(interrupt, placement=placement, steps=50)
