"""Workloads for the replay: made by hand, and of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rltrace.testing.inside.analysis import Constants, Stated, stated, workload_of
from rltrace.testing.inside.analysis import EngineModel as Engine
from rltrace.testing.inside.analysis import SampleBatch as Batch
from rltrace.testing.inside.analysis import StepWorkload as Workload
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import Stage

ALIKE = {"full_slowdown": math.inf, "tail_share": 0.0, "overlap_wait": 0.0, "log_deviation": 0.0,
         "own_devices": 1.0, "train_exponent": 1.0, "rollout_exponent": 1.0, "rest_kept": 1.0,
         "sync_latency_s": 0.0}  # fmt: skip
"""Constants of a world without tails, in which everything scales perfectly."""


def batch(
    tokens: Sequence[float], group: int = 1, env_s: ArrayLike = 0, verdict_s: float = 0
) -> Batch:
    """Samples of these lengths, in groups of so many, with one tool time or one for each."""
    n = len(tokens)
    return Batch(
        np.asarray(tokens, np.float64),
        np.full(n, env_s, np.float64),
        np.full(n, float(verdict_s)),
        tuple(i // group for i in range(n)),
    )


def workload(*batches: Batch, train_s: float = 2.0, **more: Any) -> Workload:
    """A job on one engine without limits, a token of which takes 1 s."""
    given: dict[str, Any] = {
        "placement": "disaggregated",
        "engine": Engine(1.0, math.inf, 1.0, 0.0),
        "serial_s": {Stage.TRAIN: (train_s,)},
        **more,
    }
    return Workload(batches=batches, **given)


def told(placement: str = "colocated", **tables: Any) -> Stated:
    """A stages file by its tables."""
    return stated({"placement": placement, **tables}, "stages.toml")


def of(run: Run) -> Workload:
    """The workload of a run, which no constant changes."""
    return workload_of(run)(Constants())
