"""What follows from a plan: the first optimization, risks, and a framework with its options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rltrace.analysis.freshness import prior_for
from rltrace.analysis.plan.frameworks import Choice, Launch, choose, launch
from rltrace.analysis.plan.generation import LIMIT
from rltrace.analysis.plan.plan import Plan
from rltrace.analysis.plan.triage import First, first_of


@dataclass(frozen=True)
class Advice:
    """What a plan comes to. `launch` are settings of the framework."""

    choice: Choice
    first: First | None
    risks: tuple[str, ...]
    launch: tuple[Launch, ...]


def advise(found: Plan) -> Advice:
    choice = choose(found)
    stages = [cost.stage for cost in found.stages]
    # The placement is chosen already, and more slots need room in the engines' memory.
    settled = {"placement", "no_barrier"}
    if found.parts.rollout.engine.because != LIMIT:
        settled.add("slots")
    return Advice(
        choice=choice,
        first=first_of(found.binding, stages, lambda _: found.placed.load, settled),
        risks=tuple(_risks(found)),
        launch=launch(found, choice.framework),
    )


def _risks(found: Plan) -> Iterator[str]:
    best, of, prior = found.best, found.parts.rollout.lengths, prior_for("")
    if best.mean_lag > 0:
        yield (
            f"samples lag by {best.mean_lag:.1f} versions, {max(best.lag_shares)} at most: "
            f"plain PPO is used at {prior.held} and in doubt from {prior.doubtful} on; compare the "
            "reward at equal GPU-hours"
        )
    if of.cut_share > 0.05:
        yield (
            f"{100 * of.cut_share:.0f} % of the responses are cut at {of.cap:,.0f} tokens, so the "
            "policy learns to be short"
        )
    if found.step_s.high > 1.5 * found.step_s.value:
        yield "the range is wide: trace a short run of this job, then plan with --from-run"
