"""Weights of a device, by the stand-in: host memory in the place of a device's, copied later."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu.stand_in import StandIn
from rltrace.sync import DamagedError, Publisher, Relay, RltraceError, Subscriber, layout_of
from rltrace.testing.inside.sync import folder_of
from tests.patience import PATIENCE_S, until
from tests.sync.pairs import line, pair, running
from tests.sync.test_property import Play

PLAYS = 30

LEARNER = """
import sys, time, torch
from rltrace.sync import Publisher, layout_of
weights = {f"w{i}": torch.zeros(50_000, dtype=torch.bfloat16) for i in range(40)}
publisher = Publisher.open(layout_of(weights), sys.argv[1])
for step in range(int(sys.argv[2])):
    for tensor in weights.values():
        tensor.fill_(step)
    publisher.publish(weights, step)
    print(step, flush=True)
time.sleep(600)
"""
WORKER = """
import sys, torch
from rltrace.sync import Subscriber
weights = {f"w{i}": torch.zeros(50_000, dtype=torch.bfloat16) for i in range(40)}
subscriber = Subscriber.connect(sys.argv[1])
while True:
    subscriber.pull_into(weights)
    print(len({float(v) for t in weights.values() for v in t.unique()}), flush=True)
"""


@pytest.fixture(autouse=True)
def imitated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the host count as a device's, here and in processes that are started."""
    monkeypatch.setenv("RLTRACE_SYNC_DEVICE", "benchmarks.gpu.stand_in")


@pytest.fixture(params=["shm", "cuda"])
def place(request: pytest.FixtureRequest, memory: Path) -> str:
    """Where the weights of a device are published: in the host's memory, or in its own."""
    return f"{request.param}://{memory}/policy"


@pytest.fixture
def on_device(memory: Path) -> str:
    return f"cuda://{memory}/policy"


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Has the device begin with a copy when the event is set."""
    begun, as_it_is = threading.Event(), StandIn._later

    def later(self: Any, do: Any) -> None:
        as_it_is(self, lambda: (begun.wait(PATIENCE_S), do())[1])

    monkeypatch.setattr(StandIn, "_later", later)
    yield begun
    begun.set()


def model(value: float = 0.0) -> dict[str, torch.Tensor]:
    """Tensors of all ways of a copy: large ones, small ones, odd ones, a cast."""
    kinds = {
        "large": torch.zeros(3 << 20, dtype=torch.bfloat16),
        "larger": torch.zeros(40 << 20, dtype=torch.bfloat16),
        "master": torch.zeros(700_000, dtype=torch.float32),
        "mask": torch.zeros(777, dtype=torch.bool),
        "steps": torch.zeros((), dtype=torch.int64),
        "odd": torch.zeros(3, 5, dtype=torch.float16),
        **{f"small{i}": torch.zeros(1000 + i, dtype=torch.bfloat16) for i in range(50)},
    }
    for tensor in kinds.values():
        tensor.fill_(value)
    return kinds


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], tensor.to(one[name].dtype)) for name, tensor in other.items())


@pytest.mark.parametrize("seed", range(PLAYS))
def test_a_receiver_holds_what_the_learner_held_or_there_is_an_error(
    on_device: str, seed: int
) -> None:
    play = Play(Random(seed), on_device)
    try:
        play.publish()
        for _ in range(4):
            play.pull(damaged=False)
            if play.rand.random() < 0.4:
                play.restart()
            play.learner.change()
            play.publish()
    finally:
        play.close()


def test_weights_of_every_kind_arrive(place: str) -> None:
    learner, worker = model(1), model(9)
    worker["master"] = worker["master"].bfloat16()
    layout = layout_of(learner, dtype="bfloat16", keep=["odd"])
    with Publisher.open(layout, place) as publisher, Subscriber.connect(place) as subscriber:
        for step in (1, 2, 3):
            for tensor in learner.values():
                tensor.fill_(step % 2)
            publisher.publish(learner, step)
            subscriber.pull_into(worker)
            assert equal(worker, learner)
        assert subscriber.pull_into({"large": worker["large"]}, partial=True)
        wide = {"large": worker["large"].float()}
        subscriber.pull_into(wide, partial=True, cast=True)
        assert bool((wide["large"] == 1).all())


def test_a_stream_that_gathers_into_one_buffer_arrives(place: str) -> None:
    learner, worker = model(1), model(9)

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        buffers: dict[Any, torch.Tensor] = {}
        for name, tensor in learner.items():
            kind = tensor.shape, tensor.dtype
            yield name, buffers.setdefault(kind, torch.empty_like(tensor)).copy_(tensor)

    with pair(place, learner) as (publisher, subscriber):
        publisher.publish(gathered())
        subscriber.pull_into(worker)
        assert equal(worker, learner)


def test_a_version_is_there_once_its_copies_are_complete(place: str, late: threading.Event) -> None:
    learner, worker = model(1), model(9)
    with pair(place, learner) as (publisher, subscriber):
        publisher.publish_async(learner)
        time.sleep(0.05)
        assert subscriber.latest() is None
        late.set()
        publisher.gate()
        subscriber.pull_into(worker)
        assert equal(worker, learner)


def test_a_slot_is_leased_until_the_copies_from_it_are_complete(
    place: str, late: threading.Event
) -> None:
    learner, worker = model(1), model(9)
    with pair(place, learner, spare=0) as (publisher, subscriber):
        late.set()
        publisher.publish(learner)
        late.clear()
        pulling = threading.Thread(target=subscriber.pull_into, args=(worker,), daemon=True)
        pulling.start()
        slots = list(folder_of(place).glob("slot-*.safetensors"))
        until(lambda: any(is_leased(path) for path in slots))
        time.sleep(0.1)
        assert any(is_leased(path) for path in slots)
        late.set()
        pulling.join(PATIENCE_S)
        until(lambda: not any(is_leased(path) for path in slots))
        assert equal(worker, learner)


def is_leased(path: Path) -> bool:
    from rltrace.testing.inside.sync import Lock

    return bool(Lock.is_held(path))


def test_a_copy_that_fails_names_no_version_and_the_next_one_is_whole(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, worker = model(1), model(9)
    with pair(place, learner) as (publisher, subscriber):
        publisher.publish(learner)
        with monkeypatch.context() as broken:

            def fail(*_: Any) -> None:
                raise RuntimeError("an illegal address")

            broken.setattr(StandIn, "move", fail)
            with pytest.raises(RuntimeError, match="illegal address"):
                publisher.publish(learner)
        assert subscriber.latest().counter == 1
        publisher.publish(learner)
        subscriber.pull_into(worker)
        assert equal(worker, learner)


def test_a_tensor_that_does_not_fit_is_named(on_device: str) -> None:
    with pair(on_device, {"a": torch.zeros(5), "b": torch.zeros(5)}) as (publisher, subscriber):
        with pytest.raises(RltraceError, match="b has shape"):
            publisher.publish({"a": torch.zeros(5), "b": torch.zeros(6)})
        assert publisher.publish({"a": torch.zeros(5), "b": torch.zeros(5)}).counter == 1
        with pytest.raises(RltraceError, match="c was not published"):
            subscriber.pull_into({"a": torch.zeros(5), "c": torch.zeros(5)}, partial=True)


def test_damage_is_found_before_a_tensor_is_touched(on_device: str) -> None:
    learner, worker = model(1), model(9)
    with pair(on_device, learner) as (publisher, subscriber):
        publisher.publish(learner)
        with subscriber.lease() as views:
            views.torch("small7")[3] = 5  # as no reader should
        with pytest.raises(DamagedError, match="in 1 of"):
            subscriber.pull_into(worker)
        assert all(bool((tensor == tensor.flatten()[0]).all()) for tensor in worker.values())
        with pytest.raises(DamagedError):
            subscriber.stage(worker)
        assert subscriber.pull_into(worker, verify=False)


def test_a_lease_gives_tensors_in_place_and_no_file(on_device: str) -> None:
    with pair(on_device, {"a": torch.ones(5)}) as (publisher, subscriber):
        publisher.publish({"a": torch.ones(5)})
        with subscriber.lease() as views:
            assert views.torch("a").tolist() == [1] * 5
            with pytest.raises(RltraceError, match="device"):
                views["a"]
            with pytest.raises(RltraceError, match="device"):
                _ = views.path


def test_weights_of_a_device_are_served_to_no_other_host(on_device: str) -> None:
    with pytest.raises(RltraceError, match="publish to shm"):
        Relay.serve(on_device)


def test_both_kinds_of_a_policy_may_have_one_name(memory: Path) -> None:
    ones, twos = {"a": torch.ones(5)}, {"a": torch.ones(5) * 2}
    with (
        pair(f"shm://{memory}/policy", ones) as (host, from_host),
        pair(f"cuda://{memory}/policy", twos) as (device, from_device),
    ):
        host.publish(ones)
        device.publish(twos)
        here = {"a": torch.zeros(5)}
        from_host.pull_into(here)
        assert here["a"].tolist() == [1] * 5
        from_device.pull_into(here)
        assert here["a"].tolist() == [2] * 5


def test_updates_allocate_no_slots(on_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, worker = model(1), model(9)
    with pair(on_device, learner) as (publisher, subscriber):
        publisher.publish(learner)
        subscriber.pull_into(worker)
        for call in ("allocate", "open"):
            monkeypatch.setattr(StandIn, call, None)
        publisher.publish(learner)  # the second slot is opened by who pulls it first
        monkeypatch.undo()
        subscriber.pull_into(worker)


def test_a_publisher_that_is_killed_leaves_its_readers_whole_and_a_next_one_goes_on(
    on_device: str,
) -> None:
    here = {f"w{i}": torch.zeros(50_000, dtype=torch.bfloat16) for i in range(40)}
    with running(LEARNER, on_device, "5") as learner:
        assert [line(learner) for _ in range(5)] == list("01234")
        subscriber = Subscriber.connect(on_device)
        first = subscriber.pull_into(here)
        learner.send_signal(signal.SIGKILL)
        learner.wait()
    assert subscriber.pull_into(here) == first  # its memory stays with who has it open
    assert float(here["w7"][0]) == 4
    assert "no learner" in str(subscriber.error)
    with pytest.raises(RltraceError, match="nothing is published"):
        Subscriber.connect(on_device, timeout_s=0.1)
    with running(LEARNER, on_device, "1") as learner:
        assert line(learner) == "0"
        second = subscriber.pull_into(here, newer=True)
        assert second > first
        assert second.run == first.run
        assert float(here["w7"][0]) == 0
        subscriber.close()


@pytest.mark.slow
def test_workers_that_are_killed_hold_nobody_up_and_no_pull_is_torn(on_device: str) -> None:
    with running(LEARNER, on_device, "100000") as learner:
        line(learner)
        for _ in range(3):
            with running(WORKER, on_device) as worker:
                assert {line(worker) for _ in range(5)} == {"1"}
                worker.send_signal(signal.SIGKILL)
                worker.wait()
        learner.send_signal(signal.SIGSTOP)
        learner.send_signal(signal.SIGCONT)
        before = int(line(learner))
        until(lambda: int(line(learner)) > before + 5)


def test_memory_is_freed_once_nobody_has_it_open(on_device: str) -> None:
    weights = {"a": torch.ones(500_000)}
    publisher = Publisher.open(layout_of(weights), on_device)
    subscriber = Subscriber.connect(on_device)
    publisher.publish(weights)
    subscriber.pull_into(weights)
    publisher.close()
    subscriber.pull_into(weights)  # it is kept for who has it open
    assert memories()
    subscriber.close()
    del subscriber
    gc.collect()
    Publisher.open(layout_of(weights), on_device).close()
    assert not memories()


def memories() -> list[str]:
    links = (os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return [link for link in links if "rltrace-device" in link]


def test_a_handle_that_is_not_one_is_an_error(on_device: str) -> None:
    weights = {"a": torch.ones(5)}
    with pair(on_device, weights) as (publisher, subscriber):
        publisher.publish(weights)
        for file in folder_of(on_device).glob("*.device"):
            about = json.loads(file.read_text())
            file.write_text(json.dumps({**about, "handle": b"1 1 1".hex()}))
        with pytest.raises(RltraceError, match="gone with their publisher"):
            subscriber.pull_into(weights)
        for file in folder_of(on_device).glob("*.device"):
            file.write_text("{}")
        with pytest.raises(RltraceError, match="does not say where"):
            subscriber.pull_into(weights)


def test_without_a_gpu_the_error_says_so(on_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLTRACE_SYNC_DEVICE")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RltraceError, match="GPU"):
        Publisher.open(layout_of({"a": np.zeros(3)}), on_device)
    assert not folder_of(on_device).exists()
