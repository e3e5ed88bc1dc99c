"""The step as measured against the step as its placement composes it from its stages.

Sum where the stages take turns; the longer of the actors' and the learner's chain, plus exposed
weight movement, where they run beside each other (HybridFlow, arXiv 2409.19256). Stages of one
chain that run at once in part are joined by their union. Where even that gives more than the step
that was measured, no formula is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rltrace.analysis.chains import Chain, Seconds
from rltrace.analysis.devices import Described
from rltrace.analysis.framework import is_laid_out
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.staleness import Staleness
from rltrace.trace.vocabulary import STAGE_SYMBOLS, Stage, word

PLACEMENTS = ("colocated", "disaggregated", "one-step-off", "async")

_TAKE_TURNS = 0.1  # chains that overlap for less of the shorter one than this take turns
_APART = 0.03  # and so do stages that overlap for less of the step than this
_SAME_LAG = 0.9


@dataclass(frozen=True)
class Composition:
    """Means over the steady steps, seconds. `overlap_share` is the part of the shorter of the two
    chains during which the other ran too; `placement_source` says how the placement is known.

    `stages_s` adds up the stages' τ, `covered_s` is how long any of them ran: where they differ,
    stages ran at once. `formula` is empty and `composed_s` NaN where no formula fits."""

    placement: str
    placement_source: str
    formula: str
    steps: int
    measured_s: float
    composed_s: float
    actors_s: float
    learner_s: float
    exposed_weights_s: float
    overlap_share: float
    stages_s: float
    covered_s: float

    @property
    def beside(self) -> bool:
        """Whether actors and learner ran beside each other; else the job takes turns."""
        return self.overlap_share > _TAKE_TURNS

    @property
    def difference_s(self) -> float:
        """Measured minus composed, seconds."""
        return self.measured_s - self.composed_s

    @property
    def difference_share(self) -> float:
        """Measured minus composed as a part of the measured step."""
        return self.difference_s / self.measured_s if self.measured_s else math.nan


def compose(analysis: RunAnalysis) -> Composition | None:
    """The composed step of the run; None where there is no step or no stage to compose it from, or
    the time of one takes samples that have no rows."""
    run, steady, breakdown = analysis.run, analysis.steady, analysis.breakdown
    if not steady or breakdown.untold:
        return None
    tau_s = breakdown.tau_s[steady].mean(axis=0)
    exposed_s = breakdown.exposed_s[steady].mean(axis=0)
    # Tool time lies within generation; only what no generation covers prolongs the chain.
    tau_s[Stage.ENV] = breakdown.env_beyond_s[steady].mean()
    # What a formula counts; `other` is structure more often than work.
    of = breakdown.chain_of
    stages = {c: [s for s in Stage if of.get(s) is c and s is not Stage.OTHER] for c in Chain}
    chain_s = {chain: sum(tau_s[s] for s in stages[chain]) for chain in Chain}
    if not any(chain_s.values()):
        return None
    shorter = min(chain_s[Chain.ACTORS], chain_s[Chain.LEARNER])
    overlap_s = float(breakdown.overlap_s[steady].mean())
    overlap_share = float(overlap_s / shorter) if shorter else 0.0
    measured_s = float(breakdown.steps_s[steady].mean())
    stages_s = float(sum(chain_s.values()))
    union_s = dict(zip(Chain, breakdown.chain_s[steady].mean(axis=0).tolist(), strict=True))
    joint = {chain: chain_s[chain] - union_s[chain] > _APART * measured_s for chain in Chain}
    terms = {chain: _terms(tau_s, stages[chain], joint[chain]) for chain in Chain if chain_s[chain]}
    length_s = {c: float(union_s[c] if joint[c] else chain_s[c]) for c in terms}
    weights_s = float(exposed_s[Stage.SYNC] + exposed_s[Stage.SWITCH])
    covered_s = float(breakdown.covered_s[steady].mean())
    beside = overlap_share >= _TAKE_TURNS
    turns = stages_s - covered_s <= _APART * measured_s
    if Chain.WEIGHTS in terms and (beside or not turns):
        length_s[Chain.WEIGHTS] = weights_s
        terms[Chain.WEIGHTS] = f"exposed {terms[Chain.WEIGHTS]}"
    if beside:
        length_s[Chain.ACTORS] = max(length_s[Chain.ACTORS], length_s.pop(Chain.LEARNER))
        terms[Chain.ACTORS] = f"max({terms[Chain.ACTORS]}, {terms.pop(Chain.LEARNER)})"
    composed_s = sum(length_s.values())
    formula = " + ".join(terms[chain] for chain in _ORDER if chain in terms)
    if composed_s > (1 + _APART) * measured_s:
        formula, composed_s = "", math.nan
    placement, source = (
        stated_placement(run)
        or (("placement unknown", "the log tells durations only") if is_laid_out(run) else None)
        or _detected(chain_s, beside, turns, overlap_share, analysis.staleness)
    )
    return Composition(
        placement=placement,
        placement_source=source,
        formula=formula,
        steps=len(steady),
        measured_s=measured_s,
        composed_s=composed_s,
        actors_s=float(chain_s[Chain.ACTORS]),
        learner_s=float(chain_s[Chain.LEARNER]),
        exposed_weights_s=weights_s,
        overlap_share=overlap_share,
        stages_s=stages_s,
        covered_s=covered_s,
    )


_ORDER = (Chain.ACTORS, Chain.LEARNER, Chain.WEIGHTS)


def _terms(tau_s: Seconds, stages: Sequence[Stage], joint: bool) -> str:
    """The stages of a chain that ran: added where they take turns, united where they do not."""
    seen = [STAGE_SYMBOLS.get(s, word(s)) for s in stages if tau_s[s] > 0]
    return f"({' ∪ '.join(seen)})" if joint else " + ".join(seen)


def stated_placement(run: Described) -> tuple[str, str] | None:
    """`(placement, how it is known)` that the run's settings name, or else one of its processes."""
    settings = run.meta.get("settings") or {}
    facts = [process.facts for process in run.processes]
    for source, stated in (("the run's settings", [settings]), ("as the job states", facts)):
        for one in stated:
            if one.get("placement") in PLACEMENTS:
                return str(one["placement"]), source
    return None


def _detected(
    chain_s: dict[Chain, float], beside: bool, turns: bool, overlap_share: float, lags: Staleness
) -> tuple[str, str]:
    if not chain_s[Chain.ACTORS] or not chain_s[Chain.LEARNER]:
        missing = "learner" if chain_s[Chain.ACTORS] else "actors"
        return "placement unknown", f"nothing of the {missing} was seen"
    if not beside and not turns:
        return "colocated", "actors and learner take turns, other stages overlap"
    if not beside:
        return "colocated", "the stages take turns"
    percent = f"the chains overlap for {100 * overlap_share:.0f} % of the shorter"
    counts = {b.lag: b.trajectories for b in lags.by_first_token if b.lag is not None}
    known = sum(counts.values())
    if not known:
        return "disaggregated", f"{percent}; lag unknown, so it may be async"
    if max(counts) <= 0:
        return "disaggregated", f"{percent}, lag 0"
    if counts.get(1, 0) >= _SAME_LAG * known:
        return "one-step-off", f"{percent}, lag 1"
    return "async", f"{percent}, lag {min(counts)} to {max(counts)}"
