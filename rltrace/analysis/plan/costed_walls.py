"""What each wall would cost a plan: the part of the step by which it would be shorter if what the
wall takes took none and everything else stayed as it is; the currency of the verdict on a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rltrace.analysis.binding import ALIKE
from rltrace.analysis.plan.placements import PARTIAL, Parts
from rltrace.analysis.walls.rank import BINDS
from rltrace.analysis.walls.wall import (
    ENV_REWARD,
    FRESHNESS,
    LEARNER,
    OBSERVABILITY,
    ROLLOUT,
    SPARSE_REWARD,
    TAIL,
    WEIGHTS,
)


@dataclass(frozen=True)
class CostedWall:
    """A wall: its cost as a share of the step (NaN: the shape does not tell), and why."""

    name: str
    share: float
    because: str


@dataclass(frozen=True)
class Walls:
    """All walls, the dearest first, those that cannot be told last; `binding` are the first and
    those that cost as much within 5 points, none where nothing costs 10 % (`balanced`)."""

    walls: tuple[CostedWall, ...]

    @property
    def binding(self) -> tuple[CostedWall, ...]:
        """Those that bind."""
        known = [wall for wall in self.walls if not math.isnan(wall.share)]
        if not known or known[0].share < BINDS:
            return ()
        least = max(BINDS, known[0].share - ALIKE)
        return tuple(wall for wall in known if wall.share >= least)

    @property
    def balanced(self) -> bool:
        """Whether nothing binds."""
        return not self.binding


def costed(parts: Parts) -> Walls:
    """The walls of a placement on one split."""
    made = parts.rollout
    tail_s = max(0.0, made.barrier_s - made.throughput_s)
    rate = made.engine.tokens_per_s(made.running)
    streams = parts.kind.played == "async" or parts.kind.name == PARTIAL
    share = _share_of(parts)
    tools_s = made.barrier_s - made.decode_s
    found = [
        CostedWall(
            ROLLOUT,
            share(rollout=replace(made, barrier_s=tail_s, throughput_s=0.0, decoding_s=0.0)),
            f"{made.throughput_s:,.0f} s of decoding at {rate:,.0f} tokens/s an engine",
        ),
        CostedWall(
            TAIL,
            0.0 if streams else share(rollout=replace(made, barrier_s=made.barrier_s - tail_s)),
            f"a batch waits {tail_s:,.0f} s longer than its work takes"
            + (", which this placement does not" if streams else ""),
        ),
        CostedWall(
            ENV_REWARD,
            share(
                rollout=replace(
                    made,
                    barrier_s=made.barrier_s - tools_s,
                    throughput_s=made.untooled_s,
                    reward_s=0.0,
                    env_group_s=0.0,
                    env_pool_s=0.0,
                )
            ),
            f"verdicts {made.reward_s:,.1f} s a step, tools {made.env_s:,.1f} s a trajectory",
        ),
        CostedWall(
            LEARNER,
            share(learner=replace(parts.learner, serial_s={})),
            f"{parts.learner.total_s:,.0f} s of training and its passes",
        ),
        CostedWall(
            WEIGHTS,
            share(switch_s=0.0, exposed_sync_s=0.0),
            f"{parts.switch_s + parts.exposed_sync_s:,.1f} s of switching and moving weights",
        ),
        CostedWall(FRESHNESS, math.nan, _freshness(parts.lag_bound)),
        CostedWall(SPARSE_REWARD, math.nan, "how many groups succeed is only seen in a run"),
        CostedWall(OBSERVABILITY, math.nan, "what the engine's server keeps is only seen in a run"),
    ]  # fmt: skip
    known = [wall for wall in found if not math.isnan(wall.share)]
    rest = [wall for wall in found if math.isnan(wall.share)]
    return Walls((*sorted(known, key=lambda wall: -wall.share), *rest))


def _share_of(parts: Parts) -> Callable[..., float]:
    def share(**changes: Any) -> float:
        return max(0.0, 1 - replace(parts, **changes).step_s / parts.step_s)

    return share


def _freshness(lag_bound: float) -> str:
    if lag_bound == 0:
        return "strictly on policy: none"
    return f"samples lag by about {lag_bound:g} versions: only a run's ESS tells what that costs"
