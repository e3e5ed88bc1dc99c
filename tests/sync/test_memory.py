"""What is published is what the learner holds, and what is received lands in the memory that is
there: copies, shared memory, reused buffers and ties are told apart or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rltrace.sync import Publisher, Shard, Subscriber, layout_of
from rltrace.trace.errors import RltraceError
from tests.sync.pairs import pair, published

PARAMETERS = {f"layers.{i}.w": torch.full((64, 64), float(i)) for i in range(4)}


def gathered() -> Iterator[tuple[str, torch.Tensor]]:
    """Each parameter in turn, in one buffer."""
    buffer = torch.empty(64, 64)
    for name, tensor in PARAMETERS.items():
        yield name, buffer.copy_(tensor)


class Lazy(dict[str, torch.Tensor]):
    """A mapping that gathers a parameter when it is asked for it."""

    def items(self) -> Any:
        """As `gathered`."""
        return gathered()


@pytest.mark.parametrize("weights", [gathered, lambda: Lazy(dict.fromkeys(PARAMETERS))])
def test_a_stream_that_reuses_a_buffer_is_not_tied(where: str, weights: Any) -> None:
    with pair(where, weights()) as (publisher, subscriber):
        assert (len(subscriber.layout.entries), subscriber.layout.aliases) == (4, ())
        publisher.publish(weights())
        received = {name: torch.zeros(64, 64) for name in PARAMETERS}
        subscriber.pull_into(received)
        assert all(torch.equal(received[name], w) for name, w in PARAMETERS.items())


@pytest.mark.parametrize("kind", [dict, iter])
def test_a_tied_tensor_that_has_changed_is_never_lost(where: str, kind: Any) -> None:
    tied, other = torch.zeros(8, 4), torch.zeros(8, 4)
    with Publisher.open(layout_of({"embed": tied, "head": tied}), where) as publisher:
        version = publisher.publish(kind([("embed", tied), ("head", other)]))
        assert version is not None  # equal as yet, wherever they lie
        other[3, 3] = 1
        for order in (("embed", tied), ("head", other)), (("head", other), ("embed", tied)):
            with pytest.raises(RltraceError, match="embed and head are no longer tied"):
                publisher.publish(kind(list(order)))
        with Subscriber.connect(where) as subscriber:
            assert subscriber.latest() == version


def test_an_untied_policy_comes_to_a_tied_model_where_both_are_equal(where: str) -> None:
    one, other, here = torch.ones(8, 4), torch.ones(8, 4), torch.zeros(8, 4)
    weights, tied = [("embed", one), ("head", other)], {"embed": here, "head": here}
    with pair(where, weights) as (publisher, subscriber):
        publisher.publish(weights)
        subscriber.pull_into(tied)
        assert torch.equal(here, one)
        other[0, 0] = 2
        publisher.publish(weights)
        for take in (subscriber.pull_into, subscriber.stage):
            with pytest.raises(RltraceError, match="share their memory here"):
                take(tied)
        assert torch.equal(here, one)
        assert not subscriber.poisoned


WHOLE = torch.arange(48.0).view(6, 8)


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (lambda w: {"a": w[0:3], "b": w[2:5]}, "a and b overlap"),
        (lambda w: {"a": w[0:3], "b": w[3:6]}, ""),
        (lambda w: {"a": w.view(2, 3, 8)[0], "b": w.view(2, 3, 8)[1]}, ""),
        (lambda w: {"a": w[0::2], "b": w[1::2]}, ""),  # strided, and side by side
        (lambda w: {"a": w[0::2], "b": w[0::2]}, "share their memory"),
        (lambda w: [("a", w[0:3]), ("b", w[1:3], Shard((0, 0), (3, 8)))], "overlap"),
        (lambda w: {"a": w[0:3].numpy(), "b": w[2:5]}, "overlap"),
    ],
)
def test_places_that_overlap_are_refused(where: str, here: Any, said: str) -> None:
    weights = {"a": WHOLE[:3].clone(), "b": WHOLE[3:].clone()}
    target = here(torch.full((6, 8), -1.0))
    with published(where, weights) as subscriber:
        if said:
            with pytest.raises(RltraceError, match=said):
                subscriber.pull_into(target)
            return
        subscriber.pull_into(target)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in target.items())


class Viewing(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.full((8,), value))
        self.register_buffer("steps", torch.full((3,), value))
        self._register_state_dict_hook(
            lambda module, state, *_: {**state, "flat": module.flat.detach().view(2, 4)}
        )


def test_a_models_buffers_and_views_are_its_own(where: str) -> None:
    rollout = Viewing(2.0)
    with published(where, Viewing(1.0)) as subscriber:
        subscriber.pull_into(rollout)
    assert (rollout.flat == 1).all()
    assert (rollout.steps == 1).all()


def test_a_rank_takes_its_part_and_casts(where: str) -> None:
    full = {f"layers.{i}.w": torch.randn(64, 64) for i in range(4)}
    full |= {"embed": torch.randn(100, 64), "n": torch.arange(4)}
    with published(where, full) as subscriber:
        rank = {name: torch.zeros(64, 64) for name in ("layers.0.w", "layers.1.w")}
        with pytest.raises(RltraceError, match="partial=True"):
            subscriber.pull_into(rank)
        subscriber.pull_into(rank, partial=True)
        assert all(torch.equal(tensor, full[name]) for name, tensor in rank.items())
        padded = torch.full((128, 64), -1.0)
        subscriber.pull_into({"embed": padded[:100]}, partial=True)
        assert torch.equal(padded[:100], full["embed"])
        assert (padded[100:] == -1).all()
        half = {"embed": torch.zeros(100, 64, dtype=torch.bfloat16)}
        with pytest.raises(RltraceError, match="cast=True"):
            subscriber.pull_into(half, partial=True)
        subscriber.pull_into(half, partial=True, cast=True)
        assert torch.equal(half["embed"], full["embed"].bfloat16())
        array = {"embed": np.zeros((100, 64), np.float64)}
        subscriber.stage(array, partial=True, cast=True)
        subscriber.commit()
        assert np.array_equal(array["embed"], full["embed"].double().numpy())
        with pytest.raises(RltraceError, match="nobody was not published"):
            subscriber.pull_into({"nobody": torch.zeros(1)}, partial=True)
        with pytest.raises(RltraceError, match=r"n is float32 here and int64 .* published$"):
            subscriber.pull_into({"n": torch.zeros(4)}, partial=True, cast=True)
