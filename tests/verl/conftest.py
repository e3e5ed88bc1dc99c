"""Traced jobs of verl, one of each kind, each run once for all tests by `make test-verl`."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.verl.jobs import JOBS, QUICK, Finished, make_assets, train

collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py"]
"""They run by `make test-verl`, where verl is installed."""

ASKED = QUICK if os.environ.get("QUICK") else tuple(JOBS)


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model, tokenizer and prompts."""
    return make_assets(tmp_path_factory.mktemp("assets") / "sums")


@pytest.fixture(scope="session")
def finished(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Finished]:
    """The finished job of a name, traced unless asked otherwise; each is run once."""

    @functools.cache
    def job(name: str, traced: bool = True) -> Finished:
        return train(JOBS[name], assets, tmp_path_factory.mktemp(name), traced)

    return job
