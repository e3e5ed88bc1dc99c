"""The trainer's transport from host to host: a relay serves, and the workers' host has another."""

from __future__ import annotations

import pytest
import torch

from rltrace.sync import Publisher, Relay, Subscriber, interface, layout_of
from rltrace.sync.relayed import RelayedPublisher, RelayedSubscriber
from rltrace.trace.errors import RltraceError
from tests.sync.test_shared_memory import model, same


def test_a_subscriber_says_which_way_its_weights_take(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
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
    relayed = RelayedSubscriber(changes)
    subscriber: interface.Subscriber = relayed
    learner: interface.Publisher = publisher
    rollout = model(9)
    state = {"w": torch.randn(300_000).bfloat16(), "b": torch.zeros(3)}
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    for number in (41, 42):
        state["b"] += 1.0
        manifest = learner.publish(number, state)
        kept = {name: tensor.clone() for name, tensor in state.items()}
        assert subscriber.fetch(manifest) is None
        assert subscriber.load(None, manifest, target) == number
        assert same(target, kept)
    with pytest.raises(ValueError, match="do not fit"):
        subscriber.load(None, manifest, rollout)
    # Its process ends, and with it what nobody had fetched.
    relay = publisher._relay
    assert relay is not None
    relay.close()
    lost = learner.publish(43, state)
    with pytest.raises(RltraceError, match="is gone with its learner's end"):
        subscriber.fetch(lost)
    # Another learner in its place has another address; numbers go on.
    second = RelayedPublisher(f"{where}-2", "127.0.0.1")
    manifest = second.publish(44, state)
    subscriber.fetch(manifest)
    assert subscriber.load(None, manifest, target) == 44
    relayed.close()
    for one in (publisher, second):
        if one._relay is not None:
            one._relay.close()
