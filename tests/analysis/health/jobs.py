"""Jobs of steps one after the other, and the alarms that come of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rltrace.testing.inside.analysis import Health, summarize
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import Stage


def health_of(run: Run) -> Health:
    return summarize(run, predict=False).health


def kinds(found: Health) -> list[tuple[str, str]]:
    return [(alarm.kind, alarm.severity) for alarm in found.alarms]


def steps(*lengths_s: float, stage: Stage = Stage.TRAIN) -> list[tuple[Any, ...]]:
    """Steps one after the other, each all of a stage."""
    ends = np.cumsum(lengths_s).tolist()
    spans: list[tuple[Any, ...]] = []
    for n, (length, end) in enumerate(zip(lengths_s, ends, strict=True)):
        spans += [(("step", n), end - length, end), (stage, end - length, end)]
    return spans
