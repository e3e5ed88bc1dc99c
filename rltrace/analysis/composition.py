"""The step as measured against the step as the placement's formula composes it from its stages.

Sum where the stages take turns (colocated, or disaggregated and strictly on policy); the longer of
the actors' and the learner's chain, plus exposed weight movement, where they run beside each other
(HybridFlow, arXiv 2409.19256, and the async systems after it). The difference is what the formula
does not know: partial overlap, idle time, stages that were not seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.chains import CHAIN_OF, Chain
from rltrace.analysis.stages import Breakdown
from rltrace.analysis.staleness import Staleness
from rltrace.analysis.steps import Steps
from rltrace.trace.vocabulary import STAGE_SYMBOLS, Stage, word

if TYPE_CHECKING:
    from rltrace.trace.run import Run

PLACEMENTS = ("colocated", "disaggregated", "one-step-off", "async")

_TAKE_TURNS = 0.1  # chains that overlap for less of the shorter one than this take turns
_SAME_LAG = 0.9


@dataclass(frozen=True)
class Composition:
    """Means over the steady steps, seconds. `overlap_share` is the part of the shorter of the two
    chains during which the other ran too; `placement_source` says how the placement is known."""

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

    @property
    def difference_s(self) -> float:
        """Measured minus composed, seconds."""
        return self.measured_s - self.composed_s

    @property
    def difference_share(self) -> float:
        """Measured minus composed as a part of the measured step."""
        return self.difference_s / self.measured_s if self.measured_s else math.nan


def compose(
    run: Run, steps: Steps, breakdown: Breakdown, staleness: Staleness
) -> Composition | None:
    """The composed step of `run`; None where there is no step or no stage to compose it from."""
    steady = list(steps.steady)
    if steps.whole_run or not steady:
        return None
    tau_s = breakdown.tau_s[steady].mean(axis=0)
    exposed_s = breakdown.exposed_s[steady].mean(axis=0)
    # Tool time lies within generation; only what no generation covers prolongs the chain.
    tau_s[Stage.ENV] = breakdown.env_beyond_s[steady].mean()
    chain_s = {chain: sum(tau_s[s] for s in _stages(chain)) for chain in Chain}
    if not any(chain_s.values()):
        return None
    shorter = min(chain_s[Chain.ACTORS], chain_s[Chain.LEARNER])
    overlap_s = float(breakdown.overlap_s[steady].mean())
    overlap_share = float(overlap_s / shorter) if shorter else 0.0
    stated = str((run.meta.get("settings") or {}).get("placement") or "")
    beside = overlap_share >= _TAKE_TURNS
    placement, source = (
        (stated, "the run's settings")
        if stated in PLACEMENTS
        else _detected(beside, overlap_share, staleness)
    )
    weights_s = float(exposed_s[Stage.SYNC] + exposed_s[Stage.SWITCH])
    if beside:
        composed_s = max(chain_s[Chain.ACTORS], chain_s[Chain.LEARNER]) + weights_s
        formula = (
            f"max({_terms(tau_s, _stages(Chain.ACTORS))}, {_terms(tau_s, _stages(Chain.LEARNER))})"
            f" + exposed {_terms(tau_s, _stages(Chain.WEIGHTS))}"
        )
    else:
        composed_s = sum(chain_s.values())
        formula = _terms(tau_s, [s for chain in _ORDER for s in _stages(chain)])
    return Composition(
        placement=placement,
        placement_source=source,
        formula=formula,
        steps=len(steady),
        measured_s=float(breakdown.steps_s[steady].mean()),
        composed_s=float(composed_s),
        actors_s=float(chain_s[Chain.ACTORS]),
        learner_s=float(chain_s[Chain.LEARNER]),
        exposed_weights_s=weights_s,
        overlap_share=overlap_share,
    )


_ORDER = (Chain.ACTORS, Chain.LEARNER, Chain.WEIGHTS)


def _stages(chain: Chain) -> list[Stage]:
    """The stages of a chain that a formula counts; `other` is structure more often than work."""
    return [s for s in Stage if CHAIN_OF.get(s) is chain and s is not Stage.OTHER]


def _terms(tau_s: np.ndarray[tuple[int], np.dtype[np.float64]], stages: Iterable[Stage]) -> str:
    seen = [STAGE_SYMBOLS.get(s, word(s)) for s in stages if tau_s[s] > 0]
    return " + ".join(seen) or "0"


def _detected(beside: bool, overlap_share: float, staleness: Staleness) -> tuple[str, str]:
    if not beside:
        return "colocated", "the stages take turns"
    percent = f"the chains overlap for {100 * overlap_share:.0f} % of the shorter"
    counts = {b.lag: b.trajectories for b in staleness.by_first_token if b.lag is not None}
    known = sum(counts.values())
    if not known:
        return "disaggregated", f"{percent}; lag unknown, so it may be async"
    if max(counts) <= 0:
        return "disaggregated", f"{percent}, lag 0"
    if counts.get(1, 0) >= _SAME_LAG * known:
        return "one-step-off", f"{percent}, lag 1"
    return "async", f"{percent}, lag {min(counts)} to {max(counts)}"
