"""What a played-out workload consists of: processes, batches of samples, steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.vocabulary import Stage

Ints = NDArray[np.int64]
Column = NDArray[np.generic]
Interval = tuple[int, int]

SpanRow = tuple[int, int, str, int, int, int, int, int, int, int, int]

SECOND = 1_000_000_000
START_NS = 1_790_000_000 * SECOND
MAIN_LANE = 1
WEIGHTS_LANE = 2  # an engine takes new weights in on a thread of its own


@dataclass
class Process:
    """One process of the job and the rows that it records (Unix ns; names as text)."""

    role: str
    rank: int
    node: int
    devices: tuple[int, ...] = ()
    spans: list[SpanRow] = field(default_factory=list)
    columns: dict[str, list[dict[str, Column]]] = field(default_factory=dict)
    inner: list[Interval] = field(default_factory=list)  # where extra inner spans go

    def span(
        self,
        interval: Interval,
        name: str,
        stage: Stage,
        step: int,
        *,
        phase: int = -1,
        lane: int = MAIN_LANE,
        tokens: int = -1,
        size: int = -1,
    ) -> None:
        """The policy version is the step's."""
        self.spans.append((*interval, name, int(stage), phase, step, step, lane, tokens, size, -1))

    def rows(self, table: str, **columns: Column) -> None:
        self.columns.setdefault(table, []).append(columns)


@dataclass
class PlayedBatch:
    """The samples generated during one step; arrays of shape (samples,)."""

    step: int
    trajectory: Ints
    group: Ints
    tokens: Ints
    start: Ints
    end: Ints
    env: Ints
    worker: Ints
    alive: NDArray[np.bool_]
    first_version: Ints
    used_step: Ints
    fate: Ints
    value: NDArray[np.float64]


@dataclass
class StepPlan:
    """One step: its window and, by stage, the union of the stage's intervals."""

    step: int
    window: Interval
    warmup: bool
    stages: dict[Stage, list[Interval]] = field(default_factory=dict)


@dataclass
class Timeline:
    processes: list[Process]
    steps: list[StepPlan]
    batches: list[PlayedBatch]


def period_ns(steps: list[StepPlan]) -> int:
    """From the beginning of the first step to the end of the last, ns."""
    return steps[-1].window[1] - steps[0].window[0]
