"""A version published to Ray's object store reaches a model in another process whole: in one flat
buffer, bit for bit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import ray
import torch

from rltrace.sync.object_store import ObjectStorePublisher, ObjectStoreSubscriber
from rltrace.testing.inside.sync import PublishedVersion as Manifest
from rltrace.testing.inside.sync import layout_of, pack, unpack
from rltrace.testing.inside.trace import RltraceError
from rltrace.testing.inside.trainer import TrainerConfig, ray_session

State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    with ray_session(TrainerConfig()):
        yield


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


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def loaded(manifest: Manifest, held: State) -> tuple[int, int, State]:
    """What a subscriber in another process reads, and holds then."""
    subscriber = ObjectStoreSubscriber()
    buffer = subscriber.fetch(manifest)
    assert not buffer.flags.writeable  # all workers of a node share it
    return len(buffer), subscriber.load(buffer, manifest, held), held


@pytest.mark.usefixtures("cluster")
def test_all_types_and_shapes_arrive_bit_for_bit_here_and_in_another_process() -> None:
    generator = torch.Generator().manual_seed(0)
    state = {
        "float32": torch.randn(5, 7, generator=generator),
        "bfloat16": torch.randn(3, 3, generator=generator).bfloat16(),
        "scalar": torch.tensor(-0.0),
        "strange": torch.tensor([float("nan"), float("inf"), 1e-45]),
        "transposed": torch.randn(4, 6, generator=generator).T,
        "counts": torch.arange(3),
        "empty": torch.empty(0, 4),
    }
    manifest = ObjectStorePublisher().publish(3, state)
    published = {name: raw(tensor) for name, tensor in state.items()}
    state["float32"].zero_()  # the learner goes on training at once
    for load in (loaded, lambda *given: ray.get(ray.remote(loaded).remote(*given))):
        blank = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        size, version, held = load(manifest, blank)
        assert size == manifest.bytes == sum(len(part) for part in published.values())
        assert version == 3
        assert {name: raw(tensor) for name, tensor in held.items()} == published


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
    with pytest.raises(RltraceError, match="11 bytes .* 12" if missing else "do not fit"):
        unpack(pack(source, layout)[: 12 - missing], layout, other)
    assert not any(tensor.any() for tensor in other.values())
