"""What an adapter says about the figures that its framework logs itself."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class OwnFigure:
    """A figure of the framework's own that is not what it seems, and what to hold it against.

    - `metrics`: its names in what the framework logs, added up where several are logged; none: the
      framework logs no such figure, which `name` then names.
    - `stages`: what it is taken for: seconds of a step in which any of these stages ran, or of the
      step itself (`step`). With `unit="B"` it is bytes of a weight update.
    - `scale`: how many of the unit (seconds, bytes) one of the framework's is.
    - `since_last`: it is the mean of the steps since it was logged before, not of one step.
    - `reason`: why the two differ, in a few words.

    A figure may read differently in another trainer or version of the framework, so several may
    name the same metrics: the first counts that fits. `versions` is a range such as `">=0.9"`;
    `placements` are those of the report; `beside` is a metric that is logged too; `at_most` is the
    most that its median may be, in the unit.
    """

    metrics: tuple[str, ...]
    stages: tuple[str, ...]
    reason: str
    name: str = ""
    unit: str = "s"
    scale: float = 1.0
    versions: str = ""
    placements: tuple[str, ...] = ()
    beside: str = ""
    at_most: float = math.inf
    since_last: bool = False
