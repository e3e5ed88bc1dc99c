"""Weights that go from relay to relay in a job on Ray, and learners that die on the way."""

from __future__ import annotations

import dataclasses
import time

import pytest
from ray.util import placement_group_table

from rltrace.testing.inside.sync import shared_memory
from rltrace.trainer import train
from tests.patience import PATIENCE_S
from tests.trainer.conftest import SMALL
from tests.trainer.test_faults import SLOW, check, killing
from tests.trainer.test_placement import adds_up, training

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


def nothing_is_left() -> None:
    """A host's relay ends a moment after the last worker that used it."""
    jobs = tuple(f"trainer-{group}" for group in placement_group_table())  # of this cluster
    assert jobs
    give_up = time.monotonic() + PATIENCE_S
    while any(place.name.startswith(jobs) for place in shared_memory().glob("*")):
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_weights_that_go_from_relay_to_relay_make_the_same_job() -> None:
    naive, delta = (train(dataclasses.replace(SMALL, sync=sync)) for sync in ("naive", "delta"))
    assert training(delta) == training(naive)
    sent = [sum(record.sync_bytes for record in ledger.steps) for ledger in (naive, delta)]
    assert sent[0] == pytest.approx(sent[1], rel=0.05)  # as weights, whatever was sent of them
    adds_up(train(dataclasses.replace(SMALL, sync="relay", placement="one-step-off")))
    nothing_is_left()


@pytest.mark.parametrize("sync", ["bucketed", "delta"])
def test_a_learner_may_be_killed_however_weights_travel(sync: str) -> None:
    """Another one takes over its slots, and serves them where it is asked to."""
    config = dataclasses.replace(SLOW, placement="async", sync=sync)
    ledger = train(config, on_step=killing({1: ("learner",)}))
    check(ledger, config)
    assert [event for event in ledger.events if event.startswith("learner worker 0 died")]
    nothing_is_left()
