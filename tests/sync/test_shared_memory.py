"""The trainer's transports over shared memory, and from host to host by relays: a version reaches a
model whole, under its number."""

from __future__ import annotations

import pytest
import torch

from rltrace.sync.transports import (
    RelayedPublisher,
    RelayedSubscriber,
    SharedMemoryPublisher,
    SharedMemorySubscriber,
)
from rltrace.testing.inside.sync import JoinedFiles, Lock, folder_of, place_of
from rltrace.testing.inside.trace import RltraceError
from tests.patience import until


def model(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(40, 30, generator=generator), "b": torch.randn(3, generator=generator)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_who_comes_late_gets_the_newest_and_who_takes_over_goes_on_in_its_own_numbers(
    where: str,
) -> None:
    publisher, subscriber = SharedMemoryPublisher(where), SharedMemorySubscriber()
    rollout = model(9)
    manifests = [publisher.publish(n, model(n)) for n in range(1, 5)]
    assert (manifests[3].version, manifests[3].bytes) == (4, 4 * (40 * 30 + 3))
    assert subscriber.load(subscriber.fetch(manifests[0]), manifests[0], rollout) == 4
    assert same(rollout, model(4))
    del publisher  # as the kernel does for one that was killed
    manifest = SharedMemoryPublisher(where).publish(8, model(8))
    assert subscriber.load(None, manifest, rollout) == 8
    assert same(rollout, model(8))


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
    with pytest.raises(RltraceError, match="do not fit"):
        subscriber.load(None, manifest, rollout)
    # Its process ends, and with it what nobody had fetched.
    publisher._relay.close()
    lost = publisher.publish(43, state)
    with pytest.raises(RltraceError, match="is gone with its learner's end"):
        subscriber.fetch(lost)
    subscriber.close()


def has_relay(place: str) -> bool:
    files = JoinedFiles(place)
    return files.relay.exists() and Lock.is_held(files.relay)


def test_a_dead_learners_relay_goes_once_all_workers_have_the_next(where: str) -> None:
    workers = [RelayedSubscriber(changes=True) for _ in range(2)]
    state = {"w": torch.zeros(1000)}
    dead, learner = (RelayedPublisher(f"{where}-{n}", "127.0.0.1") for n in (1, 2))
    try:
        old = dead.publish(1, {"w": torch.full((1000,), 1.0)})
        for worker in workers:
            worker.fetch(old)
            assert worker.load(None, old, state) == 1
        old_place = place_of(old.location.address)
        dead._relay.close()
        new = learner.publish(2, {"w": torch.full((1000,), 2.0)})
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
        learner._relay.close()
        for worker in workers:
            worker.close()
