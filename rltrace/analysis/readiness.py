"""Whether the job has the seven controls that a platform for RL needs, as far as a trace tells.

A control that never had to act leaves no trace, so what was not seen acting is "cannot tell" more
often than "not seen".
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.analysis.walls.wall import Seen
from rltrace.trace.vocabulary import Finish, Phase, Stage, word

SEEN, NOT_SEEN, CANNOT_TELL = "seen", "not seen", "cannot tell"

_ROLES = (Stage.ROLLOUT, Stage.REWARD, Stage.TRAIN, Stage.SYNC)


@dataclass(frozen=True)
class Control:
    """One control: "seen", "not seen" or "cannot tell", and on which evidence."""

    name: str
    verdict: str
    says: str


def readiness(seen: Seen) -> tuple[Control, ...]:
    """All seven."""
    return (
        _versions(seen), _replayable(seen), _roles(seen), _freshness(seen), _tail(seen),
        _sync_phases(seen), _audits(seen),
    )  # fmt: skip


def _versions(seen: Seen) -> Control:
    name = "versioned weights"
    updates, versioned = seen.run.ask(
        "select count(*), count(*) filter (version >= 0) from raw_syncs where start_ns > 0"
    )[0]
    if updates:
        verdict = SEEN if versioned == updates else NOT_SEEN
        return Control(name, verdict, f"{versioned:,} of {updates:,} updates carry a version")
    if seen.staleness.known:
        return Control(name, SEEN, f"{seen.staleness.known:,} samples carry a version")
    return Control(name, CANNOT_TELL, "no weight update was recorded")


def _replayable(seen: Seen) -> Control:
    name = "replayable trajectories"
    kept = seen.kept
    n = kept.trajectories
    if not n:
        return Control(name, CANNOT_TELL, "nobody recorded which samples were trained on")
    known = {
        "token ids": (kept.ids_known, kept.ids_kept),
        "log-probs": (kept.logprobs_known, kept.logprobs_kept),
        "versions": (n, seen.staleness.known),
    }
    lost = [what for what, (of, have) in known.items() if of and have < of]
    unsure = [what for what, (of, _) in known.items() if not of]
    if lost:
        return Control(name, NOT_SEEN, f"not kept of all samples: {', '.join(lost)}")
    if unsure:
        return Control(name, CANNOT_TELL, f"nobody recorded whether these are kept: {unsure[0]}")
    return Control(name, SEEN, "token ids, log-probs and versions of every trained sample")


def _roles(seen: Seen) -> Control:
    stages = {row.stage for row in seen.stages}
    unseen = [word(stage) for stage in _ROLES if stage not in stages]
    if unseen:
        seen_at_all = CANNOT_TELL if seen.breakdown.untold else NOT_SEEN
        return Control("role-level utilisation", seen_at_all, f"no time of {', '.join(unseen)}")
    return Control("role-level utilisation", SEEN, "actors, rewards, learner and weights apart")


def _freshness(seen: Seen) -> Control:
    name = "freshness limit"
    stale = seen.goodput is not None and any(x.reason == "stale" for x in seen.goodput.losses)
    if stale:
        return Control(name, SEEN, "samples that were too old were dropped")
    lags = seen.staleness
    if lags.trajectories and lags.known == lags.trajectories and lags.largest_lag <= 1:
        what = f"no sample was more than {max(0, lags.largest_lag)} versions old"
        return Control(name, SEEN, f"by the placement: {what}")
    for process in seen.run.processes:
        stated = process.facts.get("settings")
        if isinstance(stated, dict) and "max_lag" in stated:
            return Control(name, SEEN, f"max_lag = {stated['max_lag']}")
    return Control(name, CANNOT_TELL, "no sample was dropped as stale, and no limit is stated")


def _tail(seen: Seen) -> Control:
    name = "tail controls"
    acted = {
        "timed out": Finish.TIMEOUT,
        "aborted": Finish.ABORT,
        "ended at the length cap": Finish.LENGTH,
    }
    counts = dict(seen.tail.finishes)
    ended = [(what, counts.get(word(code), 0)) for what, code in acted.items()]
    found = [f"{n:,} sample{'s' * (n != 1)} {what}" for what, n in ended if n]
    if seen.staleness.mixed_share > 0:
        found.append("generation goes on under new weights")
    if found:
        return Control(name, SEEN, ", ".join(found))
    return Control(name, CANNOT_TELL, "none had to act: no timeout, abort, cap or partial rollout")


def _sync_phases(seen: Seen) -> Control:
    name = "weight movement by phase"
    if seen.syncs is None:
        return Control(name, NOT_SEEN, "no weight update was recorded with its bytes")
    told = [phase for phase, _ in seen.syncs.phases]
    unseen = [word(phase) for phase in Phase if word(phase) not in told]
    if not told:
        return Control(name, NOT_SEEN, "updates are timed as a whole")
    if unseen:
        return Control(name, SEEN, f"{', '.join(told)}; not apart: {', '.join(unseen)}")
    return Control(name, SEEN, "all five phases")


def _audits(seen: Seen) -> Control:
    name = "reward audits"
    verdicts, components = seen.run.ask(
        "select count(*), count(distinct component) from raw_rewards where start_ns > 0"
    )[0]
    if any(row.stage is Stage.EVAL for row in seen.stages):
        return Control(name, SEEN, "the job evaluates beside training")
    if not verdicts:
        return Control(name, CANNOT_TELL, "no verdict was recorded")
    if components > 1:
        return Control(name, SEEN, f"{components} components of the reward are recorded apart")
    return Control(name, NOT_SEEN, "verdicts are recorded, and nothing to hold them against")
