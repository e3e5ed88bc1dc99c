"""A version published to Ray's object store reaches a model in another process whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch

from rltrace.sync.interface import Manifest, Publisher, Subscriber
from rltrace.sync.object_store import ObjectStorePublisher, ObjectStoreSubscriber
from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.roles import RolloutWorker, policy_of
from rltrace.trainer.run import ray_session

CONFIG = TrainerConfig(width=32, layers=2, heads=2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    with ray_session(CONFIG):
        yield


class Peeking(RolloutWorker):
    """A rollout worker that lets its weights be seen."""

    def weights(self) -> tuple[int, dict[str, Any]]:
        state = self.engine.model.state_dict()
        return self.engine.version, {name: tensor.numpy() for name, tensor in state.items()}


@pytest.mark.usefixtures("cluster")
def test_a_worker_in_another_process_holds_the_published_bits_and_version() -> None:
    publisher: Publisher = ObjectStorePublisher()
    state = policy_of(CONFIG).bfloat16().float().state_dict()
    state["head.weight"] += 1.0
    worker = ray.remote(Peeking).remote(CONFIG, 0)
    version, before = ray.get(worker.weights.remote())
    assert version == 0
    assert (before["head.weight"] != state["head.weight"].numpy()).all()

    manifest = publisher.publish(3, state)
    published = {name: tensor.clone() for name, tensor in state.items()}
    state["head.weight"].zero_()  # the learner goes on training at once

    assert ray.get(worker.receive.remote(manifest)) == 3
    version, after = ray.get(worker.weights.remote())
    assert version == 3
    for name, tensor in published.items():
        assert torch.equal(torch.from_numpy(after[name].copy()), tensor), name
    ray.kill(worker)


@pytest.mark.usefixtures("cluster")
def test_a_manifest_counts_the_bytes_that_a_subscriber_reads() -> None:
    state = {"w": torch.arange(1000, dtype=torch.float32), "b": torch.ones(2).bfloat16()}
    manifest: Manifest = ObjectStorePublisher().publish(1, state)
    subscriber: Subscriber = ObjectStoreSubscriber()
    assert manifest.bytes == 4096 + 4
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    assert subscriber.receive(manifest, target) == 1
    assert all(torch.equal(target[name], state[name]) for name in state)
