"""A process of a job and the rows that it records."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.vocabulary import Stage

Column = NDArray[np.generic]
Interval = tuple[int, int]

SpanRow = tuple[int, int, str, int, int, int, int, int, int, int, int]

SECOND = 1_000_000_000
START_NS = 1_790_000_000 * SECOND
MAIN_LANE = 1


@dataclass
class Process:
    """One process of the job and the rows that it records (Unix ns; names as text)."""

    role: str
    rank: int
    node: int
    devices: tuple[int, ...] = ()
    spans: list[SpanRow] = field(default_factory=list)
    columns: dict[str, list[dict[str, Column]]] = field(default_factory=dict)

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
