"""Anti-patterns, looked for in the trace: each found, not found, or what would tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.trace.vocabulary import Finish

FOUND, NOT_FOUND, CANNOT_TELL = "found", "not found", "cannot tell"

_FEWEST = 30
_SURE = 2.58  # standard errors of the difference of two means: 1 % by chance
_SILENT_SHARE = 0.01


@dataclass(frozen=True)
class Lint:
    """One anti-pattern: whether the run has it, the evidence in a sentence, why it fails and what
    is better."""

    name: str
    verdict: str
    says: str
    why: str
    better: str


def lint(analysis: RunAnalysis) -> tuple[Lint, ...]:
    looks = {
        "asynchronous training without policy versions": (
            _no_versions,
            "Learning cannot be told from noise of stale data: the ratio is of unknown policies.",
            "Record the policy version of each sample, first and last token, and its lag.",
        ),
        "dropping long samples silently": (
            _silent_drops,
            "Long reasoning is trained away.",
            "Make time limits and length filters explicit, and record each drop with its reason.",
        ),
        "making token ids anew from text": (
            _retokenized,
            "Ids and log-probs drift from what was sampled: the loss and every ratio are off.",
            "Keep token ids and log-probs where the server generates them.",
        ),
    }
    return tuple(Lint(name, *look(analysis), *reason) for name, (look, *reason) in looks.items())


def _no_versions(analysis: RunAnalysis) -> tuple[str, str]:
    lags = analysis.staleness
    if not lags.trajectories:
        return CANNOT_TELL, "nobody recorded which samples were trained on"
    unknown = lags.trajectories - lags.known
    if not unknown:
        return NOT_FOUND, "the version of every trained sample is known"
    says = (
        f"the version of {_percent(unknown / lags.trajectories)} of the trained samples is unknown"
    )
    if analysis.placement in ("colocated", "disaggregated"):
        return NOT_FOUND, f"{says}; {analysis.placement} takes turns"
    if analysis.placement in ("one-step-off", "async"):
        return FOUND, f"{says}, in a placement that is {analysis.placement}"
    return CANNOT_TELL, f"{says}, and so is the placement"


def _silent_drops(analysis: RunAnalysis) -> tuple[str, str]:
    """Samples without a fate that are surely longer than those with one, or were cut off."""
    rows = analysis.run.ask_columns("""
        select is_met, response_tokens::double, coalesce(finish, -1) from sample_lives
        where is_generated and trajectory is not null and response_tokens is not null
    """)
    used, tokens, finish = (np.ma.filled(np.ma.asarray(c), 0) for c in rows.values())
    used = used.astype(np.bool_)
    if not used.any():
        return CANNOT_TELL, "nobody recorded what became of the samples"
    gone = ~used
    part = _percent(float(gone.mean()))
    if gone.mean() < _SILENT_SHARE or gone.sum() < _FEWEST:
        return NOT_FOUND, f"{part} of the samples have no recorded fate"
    long, usual = tokens[gone].mean(), tokens[used].mean()
    lengths = f"{long:,.0f} tokens long in the mean, the others {usual:,.0f}"
    error = math.sqrt(tokens[gone].var() / gone.sum() + tokens[used].var() / used.sum())
    if long - usual > _SURE * error:
        cut = np.isin(finish[gone], (Finish.ABORT, Finish.TIMEOUT, Finish.LENGTH))
        says = f"{part} of the samples vanish without a reason, {lengths}"
        return FOUND, f"{says}; {_percent(float(cut.mean()))} of them were cut off"
    return NOT_FOUND, f"{part} of the samples have no recorded fate, and are not longer: {lengths}"


def _retokenized(analysis: RunAnalysis) -> tuple[str, str]:
    kept = analysis.kept
    if not kept.ids_known:
        return CANNOT_TELL, "whether token ids were kept was not recorded"
    lost = 1 - kept.ids_kept / kept.ids_known
    says = f"token ids of {_percent(lost)} of the trained samples were not kept"
    return FOUND if lost > 0 else NOT_FOUND, says


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 or not share else f"{100 * share:.1f} %"
