"""Whether the job has the seven controls that a platform for RL needs, as far as a trace tells. One
that never had to act leaves no trace, so it is "cannot tell" more often than "not seen"."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.trace.vocabulary import Phase, Stage, word

SEEN, NOT_SEEN, CANNOT_TELL = "seen", "not seen", "cannot tell"

_ROLES = (Stage.ROLLOUT, Stage.REWARD, Stage.TRAIN, Stage.SYNC)


@dataclass(frozen=True)
class Control:
    """One control: "seen", "not seen" or "cannot tell", and on which evidence."""

    name: str
    verdict: str
    says: str


def readiness(analysis: RunAnalysis) -> tuple[Control, ...]:
    looks = {
        "versioned weights": _versions,
        "replayable trajectories": _replayable,
        "role-level utilisation": _roles,
        "freshness limit": _freshness,
        "tail controls": _tail,
        "weight movement by phase": _sync_phases,
        "reward audits": _audits,
    }
    return tuple(Control(name, *look(analysis)) for name, look in looks.items())


def _versions(analysis: RunAnalysis) -> tuple[str, str]:
    updates, versioned = analysis.run.ask(
        "select count(*), count(*) filter (version >= 0) from raw_syncs where start_ns > 0"
    )[0]
    if updates:
        verdict = SEEN if versioned == updates else NOT_SEEN
        return verdict, f"{versioned:,} of {updates:,} updates carry a version"
    if analysis.staleness.known:
        return SEEN, f"{analysis.staleness.known:,} samples carry a version"
    return CANNOT_TELL, "no weight update was recorded"


def _replayable(analysis: RunAnalysis) -> tuple[str, str]:
    kept = analysis.kept
    if not kept.trajectories:
        return CANNOT_TELL, "nobody recorded which samples were trained on"
    known = {
        "token ids": (kept.ids_known, kept.ids_kept),
        "log-probs": (kept.logprobs_known, kept.logprobs_kept),
        "versions": (kept.trajectories, analysis.staleness.known),
    }
    lost = [what for what, (of, have) in known.items() if of and have < of]
    unsure = [what for what, (of, _) in known.items() if not of]
    if lost:
        return NOT_SEEN, f"not kept of all samples: {', '.join(lost)}"
    if unsure:
        return CANNOT_TELL, f"nobody recorded whether these are kept: {unsure[0]}"
    return SEEN, "token ids, log-probs and versions of every trained sample"


def _roles(analysis: RunAnalysis) -> tuple[str, str]:
    stages = {row.stage for row in analysis.stages}
    if unseen := [word(stage) for stage in _ROLES if stage not in stages]:
        verdict = CANNOT_TELL if analysis.breakdown.untold else NOT_SEEN
        return verdict, f"no time of {', '.join(unseen)}"
    return SEEN, "actors, rewards, learner and weights apart"


def _freshness(analysis: RunAnalysis) -> tuple[str, str]:
    losses = analysis.goodput.losses if analysis.goodput else ()
    if any(loss.reason == "stale" for loss in losses):
        return SEEN, "samples that were too old were dropped"
    lags = analysis.staleness
    if lags.trajectories and lags.known == lags.trajectories and lags.largest_lag <= 1:
        what = f"no sample was more than {max(0, lags.largest_lag)} versions old"
        return SEEN, f"by the placement: {what}"
    for process in analysis.run.processes:
        stated = process.facts.get("settings")
        if isinstance(stated, dict) and "max_lag" in stated:
            return SEEN, f"max_lag = {stated['max_lag']}"
    return CANNOT_TELL, "no sample was dropped as stale, and no limit is stated"


def _tail(analysis: RunAnalysis) -> tuple[str, str]:
    acted = {"timeout": "timed out", "abort": "aborted", "length": "ended at the length cap"}
    counts = dict(analysis.tail.finishes)
    ended = [(counts.get(finish, 0), what) for finish, what in acted.items()]
    found = [f"{n:,} sample{'s' * (n != 1)} {what}" for n, what in ended if n]
    if analysis.staleness.mixed_share > 0:
        found.append("generation goes on under new weights")
    if found:
        return SEEN, ", ".join(found)
    return CANNOT_TELL, "none had to act: no timeout, abort, cap or partial rollout"


def _sync_phases(analysis: RunAnalysis) -> tuple[str, str]:
    if analysis.syncs is None:
        return NOT_SEEN, "no weight update was recorded with its bytes"
    told = [phase for phase, _ in analysis.syncs.phases]
    unseen = [word(phase) for phase in Phase if word(phase) not in told]
    if not told:
        return NOT_SEEN, "updates are timed as a whole"
    if unseen:
        return SEEN, f"{', '.join(told)}; not apart: {', '.join(unseen)}"
    return SEEN, "all five phases"


def _audits(analysis: RunAnalysis) -> tuple[str, str]:
    verdicts, components = analysis.run.ask(
        "select count(*), count(distinct component) from raw_rewards where start_ns > 0"
    )[0]
    if any(row.stage is Stage.EVAL for row in analysis.stages):
        return SEEN, "the job evaluates beside training"
    if not verdicts:
        return CANNOT_TELL, "no verdict was recorded"
    if components > 1:
        return SEEN, f"{components} components of the reward are recorded apart"
    return NOT_SEEN, "verdicts are recorded, and nothing to hold them against"
