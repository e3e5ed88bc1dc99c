"""How long steps waited for a stage: as computed, and as the probe measured it where it did.

What is computed rests on which chain ran alone, or on the critical path where that was followed.
A probe delays stages and needs no such rule (`rltrace.analysis.probe`). Where its interval leaves
the computed share out, and by more than a little, the measured share takes its place; where it
holds it, the computed one, which is known more sharply, stands confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.binding import ALIKE, FEWEST_STEPS
from rltrace.analysis.chains import Seconds
from rltrace.analysis.probe import HALF_WIDTH, IN_FULL
from rltrace.analysis.regression import Estimate
from rltrace.analysis.walls.wall import Seen
from rltrace.trace.vocabulary import Stage

_MOST = 0.8  # of what a wall's stages take: then they count as measured


@dataclass(frozen=True)
class Measured:
    """A stage that the probe delayed. `share` of the step was measured to wait for it, `computed`
    is what its exposed time or the critical path (`computed_by`) says. `contradicts` and `agrees`:
    neither where the interval is too wide to tell."""

    stage: Stage
    name: str
    share: Estimate
    computed: float
    computed_by: str

    @property
    def contradicts(self) -> bool:
        """Whether the computed share is outside of the interval, and far from its middle."""
        far = abs(self.share.value - self.computed) >= ALIKE
        return far and not self.share.contains(self.computed)

    @property
    def agrees(self) -> bool:
        """Whether a sharp interval holds the computed share, or nearly."""
        return not self.contradicts and self.share.half_width <= HALF_WIDTH


def measured(seen: Seen) -> tuple[Measured, ...]:
    """The stages whose share was measured. None of those whose doses were given in part only."""
    if seen.probe is None or len(seen.steps_s) < FEWEST_STEPS:
        return ()
    return tuple(
        Measured(
            one.stage,
            one.name,
            one.share,
            one.computed_share,
            seen.probe.computed_by,
        )
        for one in seen.probe.stages
        if one.share.known and one.given >= IN_FULL
    )


def corrections(seen: Seen) -> dict[Stage, Measured]:
    """The stages of which the probe contradicts what was computed."""
    return {one.stage: one for one in measured(seen) if one.contradicts}


def is_measured(seen: Seen, stages: Iterable[Stage]) -> bool:
    """Whether most of what these stages take was measured: confirmed, or put right."""
    told = {one.stage for one in measured(seen) if one.agrees or one.contradicts}
    whole = {stage: float(held_up_s(seen, [stage]).sum()) for stage in stages}
    return 0 < _MOST * sum(whole.values()) <= sum(s for stage, s in whole.items() if stage in told)


def held_up_s(seen: Seen, stages: Iterable[Stage]) -> Seconds:
    """Seconds by steady step in which it waited for these stages."""
    right = corrections(seen)
    total = np.zeros(len(seen.steady))
    for stage in stages:
        seconds = _computed_s(seen, stage)
        if stage in right:
            seconds = _scaled(seconds, right[stage].share.value * seen.steps_s)
        total += seconds
    return total


def _scaled(computed_s: Seconds, measured_s: Seconds) -> Seconds:
    """The measured seconds, spread over the steps as the computed ones are. A stage may have been
    computed to take nothing; then all steps have their part. Noise may measure less than none."""
    whole = max(0.0, float(measured_s.sum()))
    if not computed_s.sum() > 0:
        return np.clip(measured_s, 0.0, None)
    scaled: Seconds = computed_s * (whole / float(computed_s.sum()))
    return scaled


def _computed_s(seen: Seen, stage: Stage) -> Seconds:
    if seen.followed is not None:
        return seen.followed.seconds_of(stage, seen.steady)
    exposed: Seconds = seen.breakdown.exposed_s[seen.steady, stage]
    return exposed
