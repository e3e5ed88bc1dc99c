"""A workload made to take as long as its run did: the pace of decoding, and what is left over."""

from __future__ import annotations

import math
from dataclasses import replace

from rltrace.analysis.whatif.parts import Parts
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.workload import Workload
from rltrace.trace.vocabulary import Stage

_STARVED = 0.1  # a learner that waits longer than this part of the step is not what binds
_MOST_SCALE = 2.0


def fitted(made: Workload, parts: Parts) -> Workload:
    """The workload whose replay takes as long as the steps did. Decoding is scaled to the measured
    generation, where that has a beginning and an end; what then is left stays as it is."""
    steady = list(parts.steps.steady)
    played = replay(made)
    idle_s = float(parts.breakdown.unattributed_s[steady].mean())
    measured_s = made.measured_step_s
    error = math.log((played.step_s + (made.placement != "async") * idle_s) / measured_s)
    rollout_s = float(parts.breakdown.tau_s[steady, Stage.ROLLOUT].mean())
    replayed_s = played.stages_s.get(Stage.ROLLOUT, 0.0)
    scale = rollout_s / replayed_s if replayed_s else 1.0
    if made.placement == "async":
        scale = measured_s / played.step_s
    faster = _decoding_at(made, min(max(scale, 1 / _MOST_SCALE), _MOST_SCALE))
    starved = made.placement == "async" and played.learner_waits_s > _STARVED * played.step_s
    if made.placement != "async" or (starved and _fits_better(faster, played.step_s)):
        made = faster
    made = replace(made, model_error=error)
    rest_s = made.rest_s + max(0.0, measured_s - replay(made).step_s)
    # The learner of a starved job has time to spare: more of its own would explain nothing.
    return replace(made, rest_s=min(rest_s, max(made.rest_s, idle_s)) if starved else rest_s)


def _decoding_at(made: Workload, scale: float) -> Workload:
    engine = replace(
        made.engine,
        token_s=made.engine.token_s * scale,
        shared_token_s=made.engine.shared_token_s * scale,
    )
    return replace(made, engine=engine)


def _fits_better(made: Workload, before_s: float) -> bool:
    """Whether its replay is nearer to the measured step than one of so many seconds: not where
    verdicts or the lag bound hold the samples up, and not decoding."""
    measured_s = made.measured_step_s
    off = [abs(math.log(step_s / measured_s)) for step_s in (replay(made).step_s, before_s)]
    return off[0] < off[1] / 2
