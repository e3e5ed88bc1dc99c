"""A version published to Ray's object store reaches a model in another process whole: in one flat
buffer, bit for bit."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch

from rltrace.sync.object_store import ObjectStorePublisher, ObjectStoreSubscriber
from rltrace.testing.inside.sync import ALIGNMENT_BYTES, Publisher, Subscriber, pack, unpack
from rltrace.testing.inside.sync import flat_layout_of as layout_of
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
    buffer = subscriber.fetch(manifest)
    assert len(buffer) == manifest.bytes
    assert not buffer.flags.writeable  # all workers of a node share it


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("gbps", "seconds"), [(0.0, 0.0), (0.001, 8.0), (10.0, 0.0008)])
def test_a_paced_link_takes_what_its_bits_need(
    monkeypatch: pytest.MonkeyPatch, gbps: float, seconds: float
) -> None:
    slept: list[float] = [0.0]
    manifest = ObjectStorePublisher().publish(1, {"w": torch.zeros(250_000)})
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(time, "sleep", slept.append)
    ObjectStoreSubscriber(gbps).fetch(manifest)
    assert slept[-1] == pytest.approx(seconds)


def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "float32": torch.randn(5, 7, generator=generator),
        "bfloat16": torch.randn(3, 3, generator=generator).bfloat16(),
        "scalar": torch.tensor(-0.0),
        "strange": torch.tensor([float("nan"), float("inf"), 1e-45]),
        "transposed": torch.randn(4, 6, generator=generator).T,
        "counts": torch.arange(3),
        "empty": torch.empty(0, 4),
    }


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def test_all_types_and_shapes_arrive_bit_for_bit_from_a_read_only_buffer() -> None:
    source = state()
    layout = layout_of(source)
    buffer = pack(source, layout)
    buffer.setflags(write=False)
    target = {name: torch.zeros_like(tensor) for name, tensor in source.items()}
    unpack(buffer, layout, target)
    for name, tensor in source.items():
        assert raw(target[name]) == raw(tensor), name


def test_tensors_start_aligned_and_do_not_overlap() -> None:
    layout = layout_of(state())
    assert all(entry.offset % ALIGNMENT_BYTES == 0 for entry in layout)
    for before, after in itertools.pairwise(layout):
        assert before.offset + before.bytes <= after.offset


@pytest.mark.parametrize(
    ("other", "missing"),
    [
        ({"w": torch.zeros(4)}, 0),
        ({"v": torch.zeros(3)}, 0),
        ({"w": torch.zeros(3).double()}, 0),
        ({"w": torch.zeros(3)}, 1),
    ],
)
def test_another_model_or_a_cut_buffer_is_refused_untouched(
    other: dict[str, torch.Tensor], missing: int
) -> None:
    source = {"w": torch.ones(3)}
    layout = layout_of(source)
    with pytest.raises(ValueError, match="11 bytes .* 12" if missing else "other names, shapes"):
        unpack(pack(source, layout)[: 12 - missing], layout, other)
    assert not any(tensor.any() for tensor in other.values())
