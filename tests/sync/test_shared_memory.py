"""The trainer's transport over shared memory: a version reaches a model whole, under its number."""

from __future__ import annotations

import torch

from rltrace.sync.shared_memory import SharedMemoryPublisher, SharedMemorySubscriber


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
