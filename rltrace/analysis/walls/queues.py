"""Who starves whom: how many samples each role could deliver if it never waited.

A job takes as many samples a second as the slowest of its actors, its verdicts and its learner.
Rates are samples of a step over the time that the role was at work in it, or each process of it
where queues lie between them, so they compare roles that run beside each other; in a placement that
takes turns none of them starves another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.chains import Chain
from rltrace.analysis.walls.wall import Seen
from rltrace.trace.vocabulary import Stage

_ALIKE = 1.1


@dataclass(frozen=True)
class Queues:
    """Samples a second while at work (NaN: not seen). `slowest` is the role that sets the pace,
    `starved` are the roles that could go at least 1.1 times as fast; empty where all take turns."""

    actors: float
    rewards: float
    learner: float
    slowest: str
    starved: tuple[str, ...]


def queues(seen: Seen) -> Queues | None:
    """The rates; None where no sample was recorded, or no step."""
    samples, steady = float(seen.tail.latency_s.n), seen.steady
    if not samples or not steady:
        return None
    breakdown = seen.breakdown
    busy_s = {
        "actors": float(breakdown.tau_s[steady, Stage.ROLLOUT].sum()),
        "rewards": float(breakdown.tau_s[steady, Stage.REWARD].sum()),
        "learner": float(breakdown.chain_s[steady, Chain.LEARNER].sum()),
    }
    if seen.pace is not None and seen.pace.samples:  # by process, with the weights that are sent
        samples = seen.pace.samples
        busy_s |= {
            role.name: role.seconds().middle for role in seen.pace.roles if role.name in busy_s
        }
    rates = {role: samples / s if s else math.nan for role, s in busy_s.items()}
    known = {role: rate for role, rate in rates.items() if not math.isnan(rate)}
    slowest = min(known, key=known.__getitem__) if known else ""
    beside = seen.composition is not None and seen.composition.overlap_share > 0.1
    starved = tuple(
        role for role, rate in known.items() if beside and rate > _ALIKE * known[slowest]
    )
    return Queues(rates["actors"], rates["rewards"], rates["learner"], slowest, starved)
