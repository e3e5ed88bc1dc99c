"""Synthetic runs with known truth, made once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rltrace
from benchmarks.make_trace import Truth, Workload, make
from rltrace.testing.inside.trace import OpenedRun as Run

Made = tuple[Run, Truth]


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    """`synthetic(placement="async", ...)`: a run of that workload, opened, and its truth."""
    made: dict[Workload, tuple[Path, Truth]] = {}

    def run_and_truth(**knobs: Any) -> Made:
        load = Workload(**{"steps": 12, "prompts": 8, "group": 4, **knobs})
        if load not in made:
            path = tmp_path_factory.mktemp("synthetic") / "run"
            made[load] = path, make(path, load)
        path, truth = made[load]
        return rltrace.open_run(path), truth

    return run_and_truth
