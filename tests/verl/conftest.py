"""Traced jobs of verl, one of each kind, each run once for all tests by `make test-verl`."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.verl.jobs import JOBS, QUICK, Finished, make_assets, train

ASKED = QUICK if os.environ.get("QUICK") else tuple(JOBS)


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model, tokenizer and prompts."""
    if importlib.util.find_spec("verl") is None:
        pytest.skip("verl is not installed here: make test-verl")
    return make_assets(tmp_path_factory.mktemp("assets") / "sums")


@pytest.fixture(scope="session")
def finished(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Finished]:
    """The finished job of a name, traced unless asked otherwise; each is run once."""

    @functools.cache
    def job(name: str, traced: bool = True) -> Finished:
        return train(JOBS[name], assets, tmp_path_factory.mktemp(name), traced)

    return job
