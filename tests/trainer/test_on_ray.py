"""Every placement as a job on Ray: actors in processes of their own, weights in its store."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import ray
from ray.util import placement_group_table

from rltrace.testing.inside.sync import shared_memory
from rltrace.testing.inside.trainer import actor_pools as crew
from rltrace.trainer import Ledger, TrainerError, train
from tests.patience import until
from tests.trainer.conftest import SMALL
from tests.trainer.test_placement import Broken, adds_up, lags, training

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


def until_nothing_is_left() -> None:
    """A host's relay ends a moment after the last worker that used it."""
    jobs = tuple(f"trainer-{group}" for group in placement_group_table())  # of this cluster
    assert jobs
    until(
        lambda: not any(place.name.startswith(jobs) for place in shared_memory().glob("*")),
        "the end of the places of this cluster's jobs",
    )


@pytest.mark.parametrize(
    ("sync", "placement"),
    [
        ("bucketed", "colocated"),
        ("bucketed", "one-step-off"),
        ("bucketed", "async"),
        pytest.param("delta", "colocated", marks=pytest.mark.slow),
        pytest.param("relay", "one-step-off", marks=pytest.mark.slow),
    ],
)
def test_the_job_is_the_same_however_weights_travel(
    colocated: Ledger, sync: str, placement: str
) -> None:
    ledger = run(sync=sync, placement=placement, max_lag=1)  # so that one has to arrive
    if placement == "colocated":
        assert training(ledger) == training(colocated)
        sent = [sum(record.sync_bytes for record in one.steps) for one in (ledger, colocated)]
        assert sent[0] == pytest.approx(sent[1], rel=0.05)  # as weights, whatever was sent of them
    assert max(lags(ledger)) == (placement != "colocated")
    until_nothing_is_left()


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
    counted = rf"{have} CPUs .* {have + 1}, .* bundles of {bundles}, .* nodes of {have} "
    with pytest.raises(TrainerError, match=counted):
        run(placement=placement, rollout_workers=have - 2)
