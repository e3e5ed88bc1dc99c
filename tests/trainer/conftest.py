"""A policy small enough to be made in every test, and a Ray session shared by those that train."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from rltrace.testing.inside.trainer import TrainerConfig, ray_session
from tests.trainer.forked_workers import forked_workers

SMALL = TrainerConfig(
    steps=3, prompts=4, samples=4, model_size=0.024, layers=2, heads=2, max_running=5, minibatches=2
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """As in the trainer: such small products are slower on several, and far slower on busy ones."""
    torch.set_num_threads(1)


@pytest.fixture
def small() -> TrainerConfig:
    """Settings of a run that takes a second."""
    return SMALL


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of the trainer's own kind, for runs one after the other, whose actors import
    torch once for all."""
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    with forked_workers(), ray_session(SMALL):
        yield
