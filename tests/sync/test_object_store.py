"""A version published to Ray's object store reaches a model in another process whole."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch

from rltrace.sync.object_store import ObjectStorePublisher, ObjectStoreSubscriber
from rltrace.testing.inside.sync import Publisher, Subscriber
from rltrace.testing.inside.sync import interface_Manifest as Manifest
from rltrace.testing.inside.trainer import (
    RolloutWorker,
    TrainerConfig,
    initial_weights,
    policy_of,
    ray_session,
)

CONFIG = TrainerConfig(model_size=0.024, layers=2, heads=2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    with ray_session(CONFIG):
        yield


class Peeking(RolloutWorker):
    """A rollout worker that lets its weights be seen."""

    async def weights(self) -> tuple[int, dict[str, Any]]:
        state = self.engine.model.state_dict()
        return self.engine.version, {name: tensor.numpy() for name, tensor in state.items()}


@pytest.mark.usefixtures("cluster")
def test_a_worker_in_another_process_holds_the_published_bits_and_version() -> None:
    publisher: Publisher = ObjectStorePublisher()
    state = policy_of(CONFIG).bfloat16().float().state_dict()
    state["head.weight"] += 1.0
    worker = ray.remote(Peeking).remote(CONFIG, 0, initial_weights(CONFIG))
    version, before = ray.get(worker.weights.remote())
    assert version == 0
    assert (before["head.weight"] != state["head.weight"].numpy()).all()

    manifest = publisher.publish(3, state)
    published = {name: tensor.clone() for name, tensor in state.items()}
    state["head.weight"].zero_()  # the learner goes on training at once

    assert ray.get(worker.receive.remote(manifest)) == manifest.bytes
    version, after = ray.get(worker.weights.remote())
    assert version == 3
    for name, tensor in published.items():
        assert torch.equal(torch.from_numpy(after[name].copy()), tensor), name
    assert ray.get(worker.receive.remote(manifest)) == 0  # it has them
    ray.kill(worker)


@pytest.mark.usefixtures("cluster")
def test_a_manifest_counts_the_bytes_that_a_subscriber_reads() -> None:
    state = {"w": torch.arange(1000, dtype=torch.float32), "b": torch.ones(2).bfloat16()}
    manifest: Manifest = ObjectStorePublisher().publish(1, state)
    subscriber: Subscriber = ObjectStoreSubscriber()
    assert manifest.bytes == 4096 + 4
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    buffer = subscriber.fetch(manifest)
    assert len(buffer) == manifest.bytes
    assert not buffer.flags.writeable  # all workers of a node share it
    assert all((tensor == 0).all() for tensor in target.values())  # not before it is loaded
    subscriber.load(buffer, manifest, target)
    assert all(torch.equal(target[name], state[name]) for name in state)


@pytest.mark.usefixtures("cluster")
def test_versions_do_not_touch_each_other() -> None:
    publisher, subscriber = ObjectStorePublisher(), ObjectStoreSubscriber()
    state = {"w": torch.zeros(100)}
    manifests = []
    for version in range(3):
        state["w"].fill_(version)
        manifests.append(publisher.publish(version, state))
    for version in (2, 0, 1):
        target = {"w": torch.empty(100)}
        subscriber.load(subscriber.fetch(manifests[version]), manifests[version], target)
        assert (target["w"] == version).all()


@pytest.mark.usefixtures("cluster")
def test_a_model_that_differs_is_refused_untouched() -> None:
    manifest = ObjectStorePublisher().publish(1, {"w": torch.ones(3)})
    subscriber = ObjectStoreSubscriber()
    target = {"w": torch.zeros(4)}
    with pytest.raises(ValueError, match="other names, shapes or types"):
        subscriber.load(subscriber.fetch(manifest), manifest, target)
    assert (target["w"] == 0).all()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("gbps", "seconds"), [(0.0, 0.0), (0.001, 8.0), (10.0, 0.0008)])
def test_a_paced_link_takes_as_long_as_its_bits_need(
    monkeypatch: pytest.MonkeyPatch, gbps: float, seconds: float
) -> None:
    slept: list[float] = [0.0]
    manifest = ObjectStorePublisher().publish(1, {"w": torch.zeros(250_000)})
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(time, "sleep", slept.append)
    ObjectStoreSubscriber(gbps).fetch(manifest)
    assert slept[-1] == pytest.approx(seconds)
