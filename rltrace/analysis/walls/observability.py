"""Token fidelity: what the policy sampled, and how likely, cannot be reconstructed.

Where an engine's token ids are lost, the learner trains on tokens that nobody sampled. Where its
log-probs are lost, another program computes them anew. At lag 0 that costs a pass; at a lag the
weights are others, so the ratio reads 1 and nobody can show that such a token counts. These tokens
are the wall's cost, or the time of the pass, where that is all.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.walls import wall as w
from rltrace.analysis.walls.attribute import attribute, held_up_s
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.read.trajectory_lifecycle import TRAINED_SAMPLES
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Stage

SYMPTOM = "token ids or log-probs have to be computed again"
_VERSIONS = "the policy version of each sample: a hook where samples are made and trained on"
_FLAGS = "whether the engine's token ids and log-probs are kept: a hook where an episode ends"


def stands_in(analysis: RunAnalysis) -> bool:
    """Whether the log-prob pass replaces what generation computed and nobody kept."""
    kept = analysis.kept
    return kept.logprobs_known > 0 and kept.logprobs_kept < kept.logprobs_known / 2


@w.register(w.OBSERVABILITY)
def observability(analysis: RunAnalysis) -> w.Wall:
    kept = analysis.kept
    evidence = _evidence(analysis, kept)
    if not kept.trajectories or not (kept.ids_known or kept.logprobs_known):
        why = "nobody recorded what was kept of the samples that were trained on"
        # Without tools and lag nothing but the pass that stands in can be in vain.
        most, seen = 1.0, {row.stage for row in analysis.stages}
        if analysis.placement == "colocated" and Stage.ENV not in seen:
            held_s = held_up_s(analysis, [Stage.LOGPROB])
            most = float(held_s.sum() / analysis.steps_s.sum()) if len(held_s) else 1.0
        return w.cannot_tell(w.OBSERVABILITY, SYMPTOM, why, _FLAGS, evidence=evidence, at_most=most)
    if kept.unsure_tokens > kept.tokens / 2:
        why = "log-probs are computed again, and whether that hides a lag is unknown"
        return w.cannot_tell(w.OBSERVABILITY, SYMPTOM, why, _VERSIONS, evidence=evidence)
    cost = w.proportion(kept.lost_tokens / kept.tokens if kept.tokens else 0.0, kept.trajectories)
    because = "tokens with a ratio that cannot be trusted: their ids or log-probs were lost"
    if not kept.lost_tokens:
        because = "no token ids or log-probs were lost"
        cost = w.Cost(0.0, 0.0, cost.high, kept.trajectories)
    if stands_in(analysis) and not kept.lost_tokens:
        passes = attribute(analysis, (Stage.LOGPROB,)).cost
        if passes.known:
            because = "the pass that computes the log-probs which generation did not keep"
            cost = passes
    known = min(kept.ids_known, kept.logprobs_known) == kept.trajectories
    confidence, missing = (w.LIKELY, ()) if known else (w.WEAK, (_FLAGS,))
    return w.Wall(w.OBSERVABILITY, confidence, cost, SYMPTOM, because, evidence, missing)


def _evidence(analysis: RunAnalysis, kept: Captured) -> tuple[w.Figure, ...]:
    counts = (
        ("trajectories with the server's token ids", kept.ids_kept, kept.ids_known),
        ("trajectories with the server's log-probs", kept.logprobs_kept, kept.logprobs_known),
        ("tokens with a ratio that cannot be trusted", kept.lost_tokens, kept.tokens),
    )
    found = [w.Figure(name, n / of, "share", of) for name, n, of in counts if of]
    exposed_s = analysis.breakdown.exposed_s[analysis.steady, Stage.LOGPROB]
    if stands_in(analysis) and len(exposed_s):
        name = "exposed pass that computes log-probs"
        found.append(w.Figure(name, float(exposed_s.mean()), "s a step", len(exposed_s)))
    return tuple(found)


# --- what was kept of the samples that were trained on: token ids and log-probs of the server

_SQL = packaged_toml("analysis/data/queries.toml")
_RENEWED: str = _SQL["renewed"].format(Stage=Stage)
"""Samples whose log-probs were made anew under the very weights that sampled them, before any
update (TRL's with `num_iterations` or `steps_per_generation` above what one update takes), which
hides no lag. Nothing says which samples a pass was over: the last before the first use has the
latest weights that the sample's own can have had, so others can only make it count as lost."""


@dataclass(frozen=True)
class Captured:
    """Trajectories of the whole run that were trained on: all, of how many each is known, and of
    these how many kept the server's own. `lost_tokens` of `tokens` have no ratio that could be
    trusted: log-probs lost and made anew under later weights, or token ids lost; of `unsure_tokens`
    the log-probs are lost and the lag is unknown."""

    trajectories: int
    ids_known: int
    ids_kept: int
    logprobs_known: int
    logprobs_kept: int
    tokens: int
    lost_tokens: int
    unsure_tokens: int


def captured(run: OpenedRun) -> Captured:
    row = run.ask(f"{TRAINED_SAMPLES}, {_RENEWED}, {_SQL['captured_tokens']}")[0]
    return Captured(*(int(value) for value in row))
