"""Agent observability: what the policy sampled, and how likely it was, cannot be reconstructed.

Where an engine's token ids are lost, the learner trains on tokens that nobody sampled; where its
log-probs are lost, they are computed anew, by another program and under other weights. At lag 0
that costs a pass. At a lag it costs the ratio itself: it reads 1, so the lag can neither be
corrected nor seen, and nobody can show that such a token counts. These tokens are the wall's cost,
or the time of the pass that stands in, where that is all.
"""

from __future__ import annotations

import numpy as np

from rltrace.analysis.walls.captured import Captured
from rltrace.analysis.walls.cost import relief_s
from rltrace.analysis.walls.wall import (
    CANNOT_TELL,
    LIKELY,
    OBSERVABILITY,
    UNKNOWN,
    WEAK,
    Cost,
    Figure,
    Seen,
    Wall,
    proportion,
    share_of_steps,
)
from rltrace.trace.vocabulary import Stage

SYMPTOM = "token ids or log-probs have to be made anew"
_VERSIONS = "the policy version of each sample: a hook where samples are made and trained on"
_FLAGS = "whether the server's token ids and log-probs are kept: a hook where an episode ends"


def stands_in(seen: Seen) -> bool:
    """Whether the log-prob pass replaces what generation computed and nobody kept."""
    kept = seen.kept
    return kept.logprobs_known > 0 and kept.logprobs_kept < kept.logprobs_known / 2


def observability(seen: Seen) -> Wall:
    """The test."""
    kept = seen.kept
    evidence = _evidence(seen, kept)
    if not kept.trajectories or not (kept.ids_known or kept.logprobs_known):
        why = "nobody recorded what was kept of the samples that were trained on"
        return Wall(OBSERVABILITY, CANNOT_TELL, UNKNOWN, SYMPTOM, why, evidence, (_FLAGS,))
    if kept.unsure_tokens > kept.tokens / 2:
        why = "log-probs are made anew, and whether that hides a lag is unknown"
        return Wall(OBSERVABILITY, CANNOT_TELL, UNKNOWN, SYMPTOM, why, evidence, (_VERSIONS,))
    lost = proportion(kept.lost_tokens / kept.tokens if kept.tokens else 0.0, kept.trajectories)
    because = "tokens whose ratio nobody can trust: what was sampled, or how likely, was lost"
    cost = lost
    if not kept.lost_tokens:
        because = "nothing was lost that is needed"
        cost = Cost(0.0, 0.0, lost.high, kept.trajectories)
    if stands_in(seen) and not kept.lost_tokens:
        passes = share_of_steps(relief_s(seen, (Stage.LOGPROB,)), seen.steps_s)
        if passes.known:
            cost = passes
            because = "the pass that stands in for log-probs which generation did not keep"
    known = min(kept.ids_known, kept.logprobs_known) == kept.trajectories
    missing = () if known else (_FLAGS,)
    confidence = LIKELY if known else WEAK
    return Wall(OBSERVABILITY, confidence, cost, SYMPTOM, because, evidence, missing)


def _evidence(seen: Seen, kept: Captured) -> tuple[Figure, ...]:
    found = []
    for name, n, of in (
        ("trajectories with the server's token ids", kept.ids_kept, kept.ids_known),
        ("trajectories with the server's log-probs", kept.logprobs_kept, kept.logprobs_known),
        ("tokens whose ratio cannot be trusted", kept.lost_tokens, kept.tokens),
    ):
        if of:
            found.append(Figure(name, n / of, "share", of))
    if stands_in(seen):
        exposed = seen.breakdown.exposed_s[seen.steady, Stage.LOGPROB]
        if len(exposed):
            found.append(
                Figure("exposed pass that stands in", float(np.mean(exposed)), "s a step",
                       len(exposed))
            )  # fmt: skip
    return tuple(found)
