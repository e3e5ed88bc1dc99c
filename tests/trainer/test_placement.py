"""Short runs: who runs when, how old the data is, and that every sample is in the books."""

from __future__ import annotations

import dataclasses
import gc
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rltrace.testing.inside.trainer import Reward, RewardWorker, policy_of, task_of
from rltrace.testing.inside.trainer import config_PLACEMENTS as PLACEMENTS
from rltrace.trainer import Ledger, StepRecord, TrainerConfig
from rltrace.trainer import placement as placement_module
from rltrace.trainer.placement import Async
from tests.trainer.conftest import SMALL
from tests.trainer.local import train_locally

pytestmark = pytest.mark.slow

STRICT = ("colocated", "disaggregated")


def run(
    on_step: Callable[[StepRecord], None] | None = None,
    reward: type[RewardWorker] = RewardWorker,
    **settings: Any,
) -> Ledger:
    ledger = train_locally(dataclasses.replace(SMALL, **settings), on_step, reward)
    adds_up(ledger)
    return ledger


def adds_up(ledger: Ledger) -> None:
    """Every sample that ended is trained on, dropped for a reason, or was left over."""
    assert ledger.after is not None
    assert not ledger.events
    records = [*ledger.steps, ledger.after]
    assert [record.step for record in ledger.steps] == list(range(ledger.config.steps))
    assert [record.version for record in ledger.steps] == list(range(ledger.config.steps))
    ended = sum(record.samples for record in records)
    trained = sum(total(record.lags) for record in records)
    dropped = sum(total(record.drops) for record in records)
    assert ended == trained + dropped + ledger.unused
    assert ledger.unused >= 0
    assert ledger.after.tokens_trained == 0
    for record in records:
        assert total(record.finish) == record.samples
        assert total(record.lags_in_flight) == total(record.lags_in_queue) == total(record.lags)
        assert total(record.lags) <= record.tokens_trained
        assert record.lost == 0
    whole = sum(record.tokens_generated for record in records)
    assert sum(record.tokens_trained for record in records) <= whole
    bytes_of_weights = 4 * sum(p.numel() for p in policy_of(ledger.config).parameters())
    assert 4 * ledger.parameters == bytes_of_weights
    # Padding to aligned starts is all that comes on top of the weights. What is overtaken is
    # skipped, and nobody waits for the last version.
    most = ledger.config.rollout_workers * ledger.config.steps * bytes_of_weights * 1.05
    moved = sum(record.sync_bytes for record in records)
    assert moved > 0
    assert moved <= most


def total(counts: Any) -> int:
    return sum(counts.values())


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
        )
        for r in ledger.steps
    ]  # fmt: skip


# --- the four placements -------------------------------------------------------------------------


@pytest.mark.parametrize("placement", STRICT)
def test_a_strict_placement_trains_on_what_the_newest_policy_just_sampled(placement: str) -> None:
    ledger = run(placement=placement)
    for record in ledger.steps:
        assert record.samples == SMALL.prompts * SMALL.samples
        assert set(record.lags) == {0}
        assert set(record.drops) <= {"zero-advantage"}
        assert record.optimizer_updates == SMALL.minibatches
        assert record.reward is not None
        assert 0 < record.reward < 1
        assert record.ess == pytest.approx(1, abs=0.1)
        assert record.sync_bytes == ledger.steps[0].sync_bytes > 0
    assert ledger.unused == 0


def test_one_step_off_trains_on_samples_of_exactly_one_version_ago() -> None:
    ledger = run(placement="one-step-off", steps=5)
    assert [set(record.lags) for record in ledger.steps] == [{0}, {1}, {1}, {1}, {1}]
    assert lags(ledger)[1] == sum(total(r.lags_in_queue) for r in ledger.steps[1:])
    assert {lag for r in ledger.steps for lag in r.lags_in_flight} == {0}
    assert ledger.unused == 0  # no batch is generated for a step that does not come
    assert sum(record.samples for record in ledger.steps) == 5 * SMALL.prompts * SMALL.samples


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_async_never_trains_on_samples_above_its_bound(max_lag: int, partial: bool) -> None:
    ledger = run(
        placement="async", max_lag=max_lag, partial_rollout=partial, steps=8, decode_floor=0.002
    )
    assert max(lags(ledger)) <= max_lag
    if max_lag:
        assert max(lags(ledger)) > 0  # it does overlap
    assert drops(ledger)["stale"] == 0 or max_lag > 0  # nothing begins that must come too late
    if not partial:
        assert {lag for r in ledger.steps for lag in r.lags_in_flight} == {0}


def test_async_lets_sequences_go_on_under_new_weights() -> None:
    ledger = run(placement="async", max_lag=3, steps=8, decode_floor=0.01, max_running=2)
    assert max(lag for r in ledger.steps for lag in r.lags_in_flight) > 0


def test_async_has_work_in_flight_when_it_ends_and_counts_it() -> None:
    ledger = run(placement="async", max_lag=4, steps=3, update_floor=0.05)
    assert ledger.unused + total(ledger.after.drops if ledger.after else {}) > 0


# --- the same seed -------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", [*STRICT, "one-step-off"])
def test_the_same_seed_gives_the_same_run_and_another_seed_another(placement: str) -> None:
    """One-step-off too: what it generates does not depend on how long the learner takes."""
    first = run(placement=placement)
    assert training(run(placement=placement)) == training(first)
    other = run(placement=placement, seed=1, steps=1)
    assert other.steps[0].reward != first.steps[0].reward


def test_placements_and_numbers_of_workers_do_not_change_what_is_learned_on_policy() -> None:
    expected = training(run())
    assert training(run(placement="disaggregated")) == expected
    assert training(run(rollout_workers=1, reward_workers=2, max_running=16)) == expected
    assert training(run(reference_side="learner")) == expected
    disaggregated = run(placement="disaggregated", reference_side="learner")
    assert training(disaggregated) == expected


# --- what is left out ----------------------------------------------------------------------------


@pytest.mark.parametrize("placement", STRICT)
def test_oversampling_cuts_the_groups_that_come_last(placement: str) -> None:
    ledger = run(placement=placement, oversample=2.0, decode_floor=0.005, max_running=4)
    for record in ledger.steps:
        assert record.samples == 2 * SMALL.prompts * SMALL.samples
        assert record.drops["filtered"] == SMALL.prompts * SMALL.samples
    finish = sum((Counter(r.finish) for r in ledger.steps), Counter())
    assert finish["abort"] > 0
    assert finish["abort"] <= drops(ledger)["filtered"]


class FailsFast(RewardWorker):
    """No verdict for half of the groups, at once; the others take their time."""

    def verify(self, trajectory: Any) -> Reward:
        if int(trajectory.group.rpartition("/")[2]) % 2:
            return Reward(trajectory.id, float("nan"), "none", "error")
        time.sleep(0.01)
        return super().verify(trajectory)


def test_a_group_that_fails_is_not_ready_while_others_may_succeed() -> None:
    ledger = run(placement="disaggregated", oversample=2.0, reward=FailsFast)
    for record in ledger.steps:
        assert record.drops["filtered"] == SMALL.prompts * SMALL.samples
        assert "failed" not in record.drops


def test_where_too_few_groups_succeed_failed_ones_fill_up() -> None:
    ledger = run(placement="disaggregated", oversample=1.5, reward=FailsFast)
    for record in ledger.steps:  # 3 of 6 groups succeed, 4 are taken
        assert record.drops["failed"] == SMALL.samples
        assert record.drops["filtered"] == 2 * SMALL.samples


def test_without_a_verifier_oversampling_ends_too() -> None:
    ledger = run(
        placement="colocated", oversample=2.0, reward=NoVerifier, task="expression", symbols=5
    )
    assert all(record.tokens_trained == 0 for record in ledger.steps)
    ledger = run(oversample=2.0, timeout=0.005, decode_floor=0.03, steps=1)
    assert ledger.steps[0].drops["filtered"] == SMALL.prompts * SMALL.samples
    assert ledger.steps[0].drops["failed"] > 0  # none of them had the time to end


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
    used = 2 * SMALL.prompts * SMALL.samples
    # the group in work, and one more that was asked for before the last step was over
    assert Judged.verdicts <= used + ledger.unused // 2


def test_prompts_of_a_batch_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Counter[str] = Counter()
    kind = type(task_of(SMALL))
    make = kind.prompts

    def also(task: Any, count: int, seed: str) -> list[tuple[int, ...]]:
        made[seed] += 1
        return make(task, count, seed)

    monkeypatch.setattr(kind, "prompts", also)
    run()
    assert made == {f"{SMALL.seed}/{batch}": 1 for batch in range(SMALL.steps)}


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


def test_a_share_of_a_group_is_rounded_up_when_oversampling() -> None:
    ledger = run(oversample=1.1, steps=1)
    assert ledger.steps[0].samples == (SMALL.prompts + 1) * SMALL.samples


def test_responses_that_were_cut_off_are_judged_but_not_trained_on_if_that_is_asked_for() -> None:
    kept, dropped = (run(steps=1, max_response=7, drop_truncated=d) for d in (False, True))
    cut = kept.steps[0].finish["length"]
    assert cut > 0
    assert drops(kept)["truncated"] == 0
    assert drops(dropped)["truncated"] == cut
    assert kept.steps[0].reward == dropped.steps[0].reward
    assert total(dropped.steps[0].lags) <= dropped.steps[0].samples - cut


def test_samples_out_of_time_are_recorded_as_failed() -> None:
    ledger = run(steps=1, timeout=0.02, decode_floor=0.03)
    record = ledger.steps[0]
    assert record.finish.keys() <= {"timeout", "stop"}
    assert record.drops["failed"] == record.finish["timeout"] > 0


class NoVerifier(RewardWorker):
    """Every verifier process hangs or cannot be started."""

    def __init__(self, config: TrainerConfig, index: int) -> None:
        super().__init__(config, index)
        self.task.shell = "/nowhere/sh"  # type: ignore[attr-defined]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_verifier_that_breaks_down_is_recorded_and_the_run_goes_on(
    placement: str,
) -> None:
    ledger = run(reward=NoVerifier, placement=placement, task="expression", symbols=5, steps=2)
    for record in ledger.steps:
        assert (record.reward, record.loss, record.kl) == (None, None, None)
        assert (record.optimizer_updates, record.tokens_trained, record.lags) == (0, 0, {})
        assert set(record.drops) <= {"failed", "stale"}
        assert record.drops["failed"] > 0
    assert np.isnan(ledger.reward_rise())


def test_tools_that_fail_cost_their_samples_and_no_more() -> None:
    ledger = run(
        task="lookup", symbols=3, longest=2, max_response=12, warm_start=40, env_failure_rate=0.4,
        placement="async", steps=3, env_latency=0.001, env_tail=1.0,
    )  # fmt: skip
    errors = sum(r.finish.get("error", 0) for r in ledger.steps)
    assert errors > 0
    assert drops(ledger)["failed"] > 0
    assert sum(lags(ledger).values()) > 0


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
    assert run(**easy).reward_rise() > 0.3
    assert run(**easy, placement="async", max_lag=2).reward_rise() > 0.25
    assert abs(run(**easy | {"learning_rate": 0.0}).reward_rise()) < 0.1


# --- the run as a whole --------------------------------------------------------------------------


def test_every_step_is_reported_as_it_ends_and_the_ledger_is_written_as_json() -> None:
    seen: list[StepRecord] = []
    ledger = run(seen.append)
    assert seen == ledger.steps
    written = json.loads(ledger.to_json())
    assert written["config"]["seed"] == SMALL.seed
    assert [s["tokens_trained"] for s in written["steps"]] == [r.tokens_trained for r in seen]
    assert written["steps"][0]["lags"] == {"0": seen[0].lags[0]}
    assert sum(record.seconds for record in seen) <= ledger.seconds


@pytest.mark.parametrize("placement", ["one-step-off", "async"])
def test_an_error_in_the_middle_ends_the_run(placement: str) -> None:
    def interrupt(record: StepRecord) -> None:
        if record.step == 1:
            raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="the caller's own"):
        run(interrupt, placement=placement, steps=50)


class Broken(RewardWorker):
    """Breaks down as no verifier may: the run cannot go on."""

    def verify(self, trajectory: Any) -> Any:
        raise LookupError("a bug of the task")


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_bug_in_a_worker_ends_the_run_instead_of_hanging_it(
    placement: str,
) -> None:
    with pytest.raises(LookupError, match="a bug of the task"):
        run(reward=Broken, placement=placement)
