"""All ranks take a version on, or none does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from rltrace.sync import (
    PoisonedError,
    Publisher,
    Subscriber,
    Version,
    commit_together,
    layout_of,
)
from rltrace.sync.version import Manifest
from rltrace.trace.errors import RltraceError

LAYOUT = layout_of({"w": np.zeros(300_000, dtype=np.float32), "b": np.zeros(3)})


class OnLostDevice(torch.Tensor):
    """A tensor on a device that fails the next `failures` copies to it."""

    failures = 0

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.copy_ and cls.failures:
            cls.failures -= 1
            raise RuntimeError("the device is lost")
        return super().__torch_function__(function, types, args, kwargs)


class Rank:
    """A rank with tensors of its own, in this process."""

    def __init__(self, where: str) -> None:
        self.subscriber = Subscriber.connect(where)
        # With gaps, so that torch copies the one, and plain memory copies the other.
        self.tensors = {"w": torch.zeros(300_000), "b": torch.zeros(6).double()[::2]}
        self.commit, self.abort = self.subscriber.commit, self.subscriber.abort

    def loses_its_device(self, failures: int) -> None:
        OnLostDevice.failures = failures
        self.tensors["b"] = self.tensors["b"].as_subclass(OnLostDevice)

    def stage(self, version: Version) -> Manifest:
        return self.subscriber.stage(self.tensors, version)

    def holds(self, value: float) -> bool:
        return all(bool((tensor == value).all()) for tensor in self.tensors.values())


@pytest.fixture
def publisher(where: str) -> Iterator[Publisher]:
    with Publisher.open(LAYOUT, where) as opened:
        yield opened


@pytest.fixture
def ranks(publisher: Publisher, where: str) -> Iterator[list[Rank]]:
    made = [Rank(where) for _ in range(3)]
    yield made
    for rank in made:
        rank.subscriber.close()


def publish(publisher: Publisher, value: float) -> Version:
    weights = {"w": np.full(300_000, value, np.float32), "b": np.full(3, float(value))}
    return publisher.publish(weights)


def test_all_ranks_take_the_version_on(publisher: Publisher, ranks: list[Rank]) -> None:
    version = publish(publisher, 1)
    manifest = commit_together(ranks, version)
    assert manifest.version == version
    assert all(rank.holds(1) for rank in ranks)
    assert {rank.subscriber.applied for rank in ranks} == {manifest}


def test_nothing_is_overwritten_before_the_commit(publisher: Publisher, ranks: list[Rank]) -> None:
    version = publish(publisher, 1)
    ranks[0].stage(version)
    publish(publisher, 2)
    publish(publisher, 3)
    assert ranks[0].holds(0)
    assert ranks[0].commit().version == version
    assert ranks[0].holds(1)
    with pytest.raises(RltraceError, match="nothing is staged"):
        ranks[0].commit()


def test_where_one_rank_cannot_stage_none_changes(publisher: Publisher, ranks: list[Rank]) -> None:
    version = publish(publisher, 1)
    lost = ranks[1].tensors.pop("b")
    with pytest.raises(RltraceError, match=r"rank 1: .* b was published"):
        commit_together(ranks, version)
    assert all(rank.holds(0) for rank in ranks)
    ranks[1].tensors["b"] = lost
    commit_together(ranks, version)
    assert all(rank.holds(1) for rank in ranks)


@pytest.mark.parametrize(
    ("error", "said"), [(EOFError(), "EOFError$"), (OSError(32, "Broken pipe"), "Broken pipe")]
)
def test_a_rank_that_died_is_told_by_what_its_pipe_gives(
    publisher: Publisher,
    ranks: list[Rank],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    said: str,
) -> None:
    monkeypatch.setattr(ranks[1], "stage", Mock(side_effect=error))
    version = publish(publisher, 1)
    with pytest.raises(RltraceError, match=f"rank 1: .*{said}"):
        commit_together(ranks, version)
    assert all(rank.holds(0) for rank in ranks)
    with pytest.raises(RltraceError, match="no rank"):
        commit_together([], version)


def test_a_rank_whose_copy_fails_applies_again_from_its_own_host(
    publisher: Publisher, ranks: list[Rank]
) -> None:
    for failures in (1, 2, 3):
        ranks[2].loses_its_device(failures)
        commit_together(ranks, publish(publisher, failures))
        assert all(rank.holds(failures) for rank in ranks)
        assert not any(rank.subscriber.poisoned for rank in ranks)


def test_a_rank_that_cannot_apply_is_poisoned_until_a_version_is_applied(
    publisher: Publisher, ranks: list[Rank]
) -> None:
    ranks[0].loses_its_device(100)
    with pytest.raises(PoisonedError, match=r"2 of 3 ranks: rank 0: .*the device is lost"):
        commit_together(ranks, publish(publisher, 1))
    assert ranks[0].subscriber.poisoned
    assert ranks[1].holds(1)
    OnLostDevice.failures = 0
    commit_together(ranks, publish(publisher, 2))
    assert all(rank.holds(2) for rank in ranks)
    assert not ranks[0].subscriber.poisoned
