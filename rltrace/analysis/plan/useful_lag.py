"""How much lag an asynchronous job has a use for, of what it may have.

A lag bound lets a job begin batches ahead of the learner. That is worth something until the engines
are full, with as many sequences again as are at their tools: what is begun beyond only waits for a
slot and grows old there. By Little's law so many batches are then on their way:

    slots x (decoding + tools) / decoding / samples of a step

and one more is with the learner.
"""

from __future__ import annotations

import math

from rltrace.analysis.plan.costs import Rollout

MOST_PLANNED = 16.0
"""Versions beyond which nothing is planned: twice the 8 at which asynchronous jobs are bounded by
default (verl, prime-rl), and the longer a replay has to be until it is even, the slower it is."""


def useful_lag(made: Rollout, samples: int, asked: float) -> float:
    """The bound to plan with, in policy versions: what is `asked`, or the least that keeps the
    engines of `made` full with steps of so many samples."""
    outside = made.env_s / made.decoding_s if made.decoding_s > 0 else 0.0
    on_their_way = made.engines * made.engine.slots * (1 + outside) / samples
    return min(asked, math.ceil(min(on_their_way, MOST_PLANNED)) + 1.0, MOST_PLANNED)
