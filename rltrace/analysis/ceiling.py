"""The most that a change may gain: what the run would without the stage that it shortens.

A lever that shortens a stage and changes nothing else gains no more than that stage costs; where a
replay says so it is wrong about who waits for whom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rltrace.analysis.stats.interval import Estimate
from rltrace.analysis.walls.registry import stages_of
from rltrace.analysis.walls.wall import Wall
from rltrace.analysis.whatif import predict
from rltrace.analysis.whatif.levers import LEVERS
from rltrace.analysis.whatif.predict import Prediction, Source, verdict_of
from rltrace.trace.vocabulary import Stage

NO_MORE = "no more is gained than the stage costs that it shortens"
"""What a prediction that was held rests on."""

_PLACES = ("slots", "rollout_workers")


def most_gain(levers: Sequence[str], walls: Sequence[Wall], tools_hold: bool) -> float:
    """The gain of a run without the stages that these levers (`name=value`) shorten, at the upper
    ends of what their walls cost (generation's: with its tail); infinite where that is not known,
    or one of the levers does more than shorten a stage. Where `tools_hold` places of a worker, more
    places save time of tools, too."""
    stages: set[Stage] = set()
    for name in (lever.partition("=")[0] for lever in levers):
        stage = LEVERS[name].within if name in LEVERS else None
        if stage is None:
            return math.inf
        stages |= {stage, Stage.ENV} if tools_hold and name in _PLACES else {stage}
    costs = [w.cost for w in walls if stages & {*stages_of(w.name)} and w.cost.known]
    share = sum(cost.share if math.isnan(cost.high) else cost.high for cost in costs)
    return 1 / (1 - share) if costs and share < 1 else math.inf


def held(found: Prediction, walls: Sequence[Wall], tools_hold: bool) -> Prediction:
    """The prediction, with no end of a gain beyond `most_gain`."""
    most = most_gain(found.levers, walls, tools_hold)
    gain, goodput = found.gain.at_most(most), found.goodput_gain.at_most(most)
    if (gain, goodput) == (found.gain, found.goodput_gain):
        return found
    least_s = found.before_s / most
    step_s = found.step_s.longer(Estimate(least_s, least_s, least_s))
    was = found.goodput_gain.value
    return replace(
        found,
        outcome=verdict_of(goodput),
        step_s=step_s,
        gain=gain,
        goodput_gain=goodput,
        useful_tokens_per_device_s=goodput.times(found.useful_tokens_per_device_s.value / was),
        useful_tokens_per_usd=goodput.times(found.useful_tokens_per_usd.value / was),
        rests_on=(*found.rests_on, NO_MORE),
    )


def ranked(
    source: Source, walls: Sequence[Wall], tools_hold: bool
) -> tuple[list[Prediction], dict[str, str]]:
    """As `predict.ranked`, each held. Errors: `OffTheRun` where nothing can be predicted."""
    predicted, untold = predict.ranked(source)
    found = [held(one, walls, tools_hold) for one in predicted]
    return sorted(found, key=lambda one: -one.goodput_gain.value), untold
