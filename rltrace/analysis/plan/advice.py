"""What follows from a plan: first optimization, risks, when to move on, framework."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rltrace.analysis.lag_priors import prior_for
from rltrace.analysis.plan.frameworks import IN_TURN, OVERLAP, Choice, Launch, choose, launch
from rltrace.analysis.plan.generation import LIMIT
from rltrace.analysis.plan.plan import Plan
from rltrace.analysis.plan.triage import First, first_of
from rltrace.analysis.playbook import Move, moves
from rltrace.analysis.walls.rank import BINDS
from rltrace.analysis.walls.wall import TAIL

_NOTICED = 1.03  # times as fast
_SEVERE = 1.5  # times as long with a barrier
_PLACES = {OVERLAP, IN_TURN,
           "move weights beside generation", "lend idle trainer devices to generation"}  # fmt: skip
"""Moves that are the choice of a placement, which the plan has made."""


@dataclass(frozen=True)
class Advice:
    """What a plan comes to. `launch` are settings of the framework, empty where it has none on
    file."""

    choice: Choice
    first: First | None
    risks: tuple[str, ...]
    move_on: tuple[str, ...]
    launch: tuple[Launch, ...]


def advise(found: Plan) -> Advice:
    """The advice on a plan."""
    # Where two chains are even, nothing binds: what would be first beside them counts.
    dearest = found.walls.binding or found.walls.walls[:2]
    walls = [wall.name for wall in dearest]
    # The tail, where the placement is the answer to it: the framework has to be one, too.
    made = found.parts.rollout
    severe = made.barrier_s > _SEVERE * made.throughput_s
    avoided = [TAIL] if found.parts.kind.streams and severe else []
    choice = choose(found.spec, found.best.name, (*walls, *avoided))
    dear = [wall.name for wall in found.walls.walls if wall.share >= BINDS]
    return Advice(
        choice=choice,
        first=first_of(
            _possible(found, dear), _possible(found, walls[:1]), lambda _: found.placed.load
        ),
        risks=tuple(_risks(found)),
        move_on=tuple(_move_on(found)),
        launch=tuple(launch(found, choice.framework)),
    )


def _possible(found: Plan, walls: list[str]) -> list[Move]:
    """Moves against these walls that are open here: not the choice of a placement, of a stage that
    there is, and with room in the engines' memory."""
    stages = {"", *(cost.stage for cost in found.stages)}
    placed = {"placement", "no_barrier"}
    if found.parts.rollout.engine.because != LIMIT:
        placed.add("slots")
    return [
        move
        for move in moves()
        if move.wall in walls and move.stage in stages
        if move.move not in _PLACES and move.lever not in placed
    ]


def _risks(found: Plan) -> Iterator[str]:
    spec, best = found.spec, found.best
    of = found.parts.rollout.lengths
    prior = prior_for("")
    if best.mean_lag > 0:
        yield (
            f"samples lag by {best.mean_lag:.1f} versions on average, up to {max(best.lags)}: "
            f"plain PPO objectives are run at {prior.held} without remark and doubted from "
            f"{prior.doubtful} on ({prior.source}); measure reward at equal GPU-hours"
        )
    if of.cut_share > 0.05:
        yield (
            f"{100 * of.cut_share:.0f} % of the responses are cut at {of.cap:,.0f} tokens: what is "
            "learned is to be short"
        )
    longest = of.longest(spec.samples) / of.mean
    if longest > 4:
        same = of.longest(spec.group) / of.mean
        yield (
            f"the longest of a batch is {longest:.1f} times the mean (of one prompt's "
            f"{spec.group}: {same:.1f}, if they were unlike): dropping what is late drops what is "
            "long"
        )
    if spec.environment.failures:
        yield (
            f"{100 * spec.environment.failures:g} % of the tool calls fail: a failure that is "
            "scored as a wrong answer is a wrong reward"
        )
    if spec.agentic:
        yield "transcripts tokenized again later differ from what was sampled: keep token ids"
    if found.step_s.high > 1.5 * found.step_s.middle:
        yield "the range is wide: trace a short run of this job and plan with --from-run"
    if spec.multimodal:
        yield "images and audio are not in the costs: their encoders and tokens come on top"


def _move_on(found: Plan) -> Iterator[str]:
    """What has to happen for another design to be better."""
    spec, best = found.spec, found.best
    later = found.needs_lag
    if later is not None:
        gain = best.step_s / later.step_s
        yield (
            f"to {later.name} ({gain:.2f} times faster here) once a run has shown what lag costs: "
            "the reward at equal GPU-hours, not steps an hour"
        )
    faster = [
        row for row in found.rows
        if not row.refused and row.allowed and row.step_s * _NOTICED < best.step_s
    ]  # fmt: skip
    for row in sorted(faster, key=lambda row: row.step_s)[:1]:
        gain = best.step_s / row.step_s
        yield f"to {row.name} when a trace shows the {gain:.2f} times that are predicted for it"
    if found.parts.kind.shared:
        yield "to pools of their own when a trace shows generation waiting for tail or tools"
    if found.parts.moved.mechanism in ("naive", "bucketed"):
        share = found.parts.moved.exposed_s / best.step_s
        yield (
            f"to relays, changes only or RDMA when moving weights takes over a tenth of a step "
            f"(here {100 * share:.1f} %)"
        )
    yield (
        "to more GPUs only while useful tokens for a dollar do not fall: "
        f"`rltrace plan --sweep gpus={spec.gpus}..{4 * spec.gpus}`"
    )
