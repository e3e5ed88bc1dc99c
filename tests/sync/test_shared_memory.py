"""The trainer's transports over shared memory, and from host to host by relays: a version reaches a
model whole, under its number."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch

from rltrace.sync import Publisher, Relay, Subscriber, layout_of
from rltrace.sync.relayed import RelayedPublisher, RelayedSubscriber
from rltrace.sync.shared_memory import SharedMemoryPublisher, SharedMemorySubscriber
from rltrace.testing.inside.sync import JoinedFiles, Lock, folder_of, place_of
from rltrace.testing.inside.trace import RltraceError
from tests.sync.relays import until


def model(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(40, 30, generator=generator), "b": torch.randn(3, generator=generator)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_model_gets_the_bits_and_the_number_of_what_was_published(where: str) -> None:
    publisher, subscriber = SharedMemoryPublisher(where), SharedMemorySubscriber()
    learner, rollout = model(0), model(1)
    manifest = publisher.publish(41, learner)
    published = {name: tensor.clone() for name, tensor in learner.items()}
    learner["w"].zero_()  # the learner goes on training at once
    assert (manifest.version, manifest.bytes) == (41, 4 * (40 * 30 + 3))
    assert subscriber.load(subscriber.fetch(manifest), manifest, rollout) == 41
    assert same(rollout, published)


def test_a_worker_that_comes_late_gets_the_newest_under_its_own_number(where: str) -> None:
    publisher, subscriber = SharedMemoryPublisher(where), SharedMemorySubscriber()
    rollout = model(9)
    manifests = [publisher.publish(n, model(n)) for n in range(1, 5)]
    assert subscriber.load(None, manifests[0], rollout) == 4
    assert same(rollout, model(4))


def test_a_learner_that_takes_over_goes_on_with_its_own_numbers(where: str) -> None:
    first, subscriber = SharedMemoryPublisher(where), SharedMemorySubscriber()
    rollout = model(9)
    subscriber.load(None, first.publish(7, model(7)), rollout)
    del first  # as the kernel does for one that was killed
    manifest = SharedMemoryPublisher(where).publish(8, model(8))
    assert subscriber.load(None, manifest, rollout) == 8
    assert same(rollout, model(8))


def test_a_subscriber_says_which_way_it_takes(where: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="rltrace.sync")
    with Publisher.open(layout_of(model(0)), where) as publisher:
        publisher.publish(model(0))
        with Subscriber.connect(where) as here, Relay.serve(where) as relay:
            assert "is of this host" in here.explain()
            assert where.removeprefix("shm://") in here.explain()
            with Subscriber.connect(relay.address) as there:
                assert f"{relay.address} is served over TCP" in there.explain()
                said = [here.explain(), there.explain()]
    assert [record.getMessage() for record in caplog.records] == said


@pytest.mark.parametrize("changes", [False, True])
def test_models_get_each_version_and_a_learner_that_dies_says_so(where: str, changes: bool) -> None:
    publisher = RelayedPublisher(where, "127.0.0.1")
    subscriber = RelayedSubscriber(changes)
    rollout = model(9)
    state = {"w": torch.randn(300_000).bfloat16(), "b": torch.zeros(3)}
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    for number in (41, 42):
        state["b"] += 1.0
        manifest = publisher.publish(number, state)
        kept = {name: tensor.clone() for name, tensor in state.items()}
        assert subscriber.fetch(manifest) is None
        assert subscriber.load(None, manifest, target) == number
        assert same(target, kept)
    with pytest.raises(ValueError, match="do not fit"):
        subscriber.load(None, manifest, rollout)
    # Its process ends, and with it what nobody had fetched.
    publisher._relay.close()
    lost = publisher.publish(43, state)
    with pytest.raises(RltraceError, match="is gone with its learner's end"):
        subscriber.fetch(lost)
    # Another learner in its place has another address; numbers go on.
    second = RelayedPublisher(f"{where}-2", "127.0.0.1")
    manifest = second.publish(44, state)
    subscriber.fetch(manifest)
    assert subscriber.load(None, manifest, target) == 44
    subscriber.close()
    second._relay.close()


def learn(where: str, control: Any) -> None:
    """A learner's process: publishes the weights of each version that it is asked for."""
    publisher = RelayedPublisher(where, "127.0.0.1")
    while True:
        number = control.recv()
        control.send(publisher.publish(number, {"w": torch.full((1000,), float(number))}))


class Learner:
    """A learner that can be killed."""

    def __init__(self, where: str) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._control, theirs = spawning.Pipe()
        self._process = spawning.Process(target=learn, args=(where, theirs))
        self._process.start()

    def publish(self, number: int) -> Any:
        self._control.send(number)
        return self._control.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._control.close()


def has_relay(place: str) -> bool:
    files = JoinedFiles(place)
    return files.relay.exists() and Lock.is_held(files.relay)


def test_a_dead_learners_relay_goes_once_all_workers_have_the_next(where: str) -> None:
    workers = [RelayedSubscriber(changes=True) for _ in range(2)]
    state = {"w": torch.zeros(1000)}
    learner = Learner(where)
    try:
        old = learner.publish(1)
        for worker in workers:
            worker.fetch(old)
            assert worker.load(None, old, state) == 1
        old_place = place_of(old.location.address)
        learner.kill()
        learner = Learner(where)
        new = learner.publish(2)
        new_place = place_of(new.location.address)
        assert new_place != old_place

        workers[0].fetch(new)
        assert has_relay(old_place)  # the other worker may still load from there
        assert workers[1].load(None, old, state) == 1
        workers[1].fetch(new)
        until(lambda: not has_relay(old_place), "the dead learner's relay to end")
        until(lambda: not folder_of(old_place).exists(), "its memory to be free")

        assert has_relay(new_place)
        for worker in workers:
            worker.fetch(old)  # of a call that was overtaken: nobody is there any more
            state["w"].zero_()
            assert worker.load(None, old, state) == 2
            assert (state["w"] == 2.0).all()
    finally:
        learner.kill()
        for worker in workers:
            worker.close()
