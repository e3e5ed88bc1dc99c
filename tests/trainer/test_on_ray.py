"""Every placement as a job on Ray: actors in processes of their own, weights in its store."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import ray
from ray.util import placement_group_table

from rltrace.testing.inside.sync import shared_memory
from rltrace.testing.inside.trainer import RewardWorker, crew
from rltrace.trainer import Ledger, TrainerError, train
from tests.trainer.conftest import SMALL
from tests.trainer.test_placement import adds_up, lags, training

pytestmark = pytest.mark.usefixtures("cluster")


def run(**settings: Any) -> Ledger:
    ledger = train(dataclasses.replace(SMALL, **settings))
    adds_up(ledger)
    return ledger


@pytest.fixture(scope="module")
def colocated(cluster: None) -> Ledger:
    return run()


def test_the_same_seed_gives_the_same_run_on_separate_devices(colocated: Ledger) -> None:
    assert set(lags(colocated)) == {0}
    assert colocated.unused == 0
    assert training(run(placement="disaggregated", reference_side="learner")) == training(colocated)


def test_the_first_step_of_a_job_one_step_off_is_that_of_a_strict_one(colocated: Ledger) -> None:
    ledger = run(placement="one-step-off")
    assert [set(record.lags) for record in ledger.steps] == [{0}, {1}, {1}]
    one, other = ledger.steps[0], colocated.steps[0]  # beside it, the next batch is generated
    assert (one.tokens_trained, one.lags) == (other.tokens_trained, other.lags)
    assert one.loss == pytest.approx(other.loss, abs=1e-4)


@pytest.mark.parametrize("max_lag", [0, 2])
def test_a_job_that_generates_all_the_time_keeps_its_bound(max_lag: int) -> None:
    ledger = run(placement="async", max_lag=max_lag, steps=8, recompute_old=True, retokenize=True)
    assert max(lags(ledger)) <= max_lag
    assert all(record.optimizer_updates > 0 for record in ledger.steps)


@pytest.mark.parametrize("placement", ["colocated", "async"])
def test_weights_through_shared_memory_make_the_same_job(colocated: Ledger, placement: str) -> None:
    ledger = run(sync="bucketed", placement=placement, max_lag=1)  # so that one has to arrive
    if placement == "colocated":
        assert training(ledger) == training(colocated)
    assert max(lags(ledger)) <= 1
    assert sum(record.sync_bytes for record in ledger.steps) > 0
    places = {f"trainer-{group}" for group in placement_group_table()}  # of this cluster's jobs
    assert len(places) > 1
    assert not places & {place.name for place in shared_memory().glob("*")}


class Broken(RewardWorker):
    """Breaks down as no verifier may: the run cannot go on."""

    def verify(self, trajectory: Any) -> Any:
        raise LookupError("a bug of the task")


def test_a_bug_in_a_worker_ends_the_job_and_leaves_the_cluster_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(crew, "RewardWorker", Broken)
        with pytest.raises(LookupError, match="a bug of the task"):
            run(placement="async")
    assert len(run(steps=1).steps) == 1


@pytest.mark.parametrize(("placement", "bundles"), [("colocated", "6"), ("async", "2, 1, 1, 1, 1")])
def test_too_small_a_cluster_is_refused(placement: str, bundles: str) -> None:
    have = int(ray.cluster_resources()["CPU"])
    sentence = (
        f"the Ray cluster has {have} CPUs but the job needs {have + 1}, one for each actor, in"
        f" bundles of {bundles}, and no arrangement on nodes of {have} holds them: start a larger"
        " cluster or ask for fewer workers"
    )
    with pytest.raises(TrainerError, match=f"^{sentence}$"):
        run(placement=placement, rollout_workers=have - 2)
