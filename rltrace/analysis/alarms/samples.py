"""Samples that come to nothing, or to less, or from other weights; and broken figures."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rltrace.analysis.alarms.alarm import HALF, NAMED, Said, alarm, grave, note
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.steps import FEWEST_ALIKE, Steps
from rltrace.analysis.trajectories.engine_gaps import LARGE_NATS, Departure, EngineGaps
from rltrace.trace.read.trajectory_ids import GIVEN_NAN
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Fate, Finish, SyncRole, named

_SQL = packaged_toml("analysis/data/queries.toml")
_SAMPLES_SQL = packaged_toml("analysis/data/sample_queries.toml")


@alarm("truncated", "most samples are cut off")
def logged_as_cut_off(analysis: RunAnalysis) -> Iterator[Said]:
    if (cut := analysis.logged.get("truncated")) and cut.mean > HALF:
        yield grave(
            f"{cut.mean:.0%} of the samples were cut off at the length limit ({cut.metric}): their "
            "rewards say little about whole answers",
            judged_anyway=True,
        )


@alarm("no signal", "hardly a group carries a signal")
def logged_without_signal(analysis: RunAnalysis) -> Iterator[Said]:
    if (none := analysis.logged.get("no_signal")) and none.mean > _NEARLY_ALL:
        says = f"{none.mean:.0%} of the groups carry no signal ({none.metric}): in each all rewards"
        yield grave(f"{says} are equal, so hardly anything is learned", judged_anyway=True)


@alarm("tail", "its batches have a long tail")
def logged_tail(analysis: RunAnalysis) -> Iterator[Said]:
    longest, mean = (analysis.logged.get(f"{one}_generation_s") for one in ("longest", "mean"))
    if longest is None or mean is None or not analysis.steady:
        return
    tail_s = longest.mean - mean.mean
    if tail_s > _MUCH * analysis.step_s:
        yield note(
            f"the longest sample of a batch generates for {longest.mean:.3g} s, the mean one for "
            f"{mean.mean:.3g} s: a tail of up to {tail_s:.3g} s, {tail_s / analysis.step_s:.0%} of "
            "the step"
        )


@alarm("no reward", "no sample is rewarded")
def logged_without_reward(analysis: RunAnalysis) -> Iterator[Said]:
    reward = analysis.logged.get("reward")
    if reward is not None and reward.mean == reward.first == reward.last == 0:
        steps = f"all {reward.n} steps" if reward.n > 1 else "the one step"
        yield note(
            f"the mean reward ({reward.metric}) is 0 in {steps}: nothing tells good from bad"
        )


@alarm("reward", "its reward fell")
def reward_fell(analysis: RunAnalysis) -> Iterator[Said]:
    if analysis.reward is not None and (fall := analysis.reward.collapse) is not None:
        levels = f"from {fall.before:.3g} to {fall.after:.3g}"
        yield grave(f"the reward fell at step {fall.step}, {levels}, and has not come back")


@alarm("unused", "it trains on no sample")
def unused(analysis: RunAnalysis) -> Iterator[Said]:
    if analysis.steps.whole_run or len(analysis.steps.windows) < FEWEST_ALIKE:
        return
    query = "select coalesce(fate, -1), count(*) from sample_lives where is_met group by 1"
    fates = dict(analysis.run.ask(query))
    if fates and not fates.keys() & {int(Fate.TRAINED), -1}:
        why = ", ".join(f"{count} {named(Fate, fate)}" for fate, count in sorted(fates.items()))
        met = sum(fates.values())
        yield grave(f"the learner trained on none of the {met} samples that it got ({why})")


_MUCH = 0.1  # of the step
_NEARLY_ALL = 0.9
_FEWEST = 30
_SURE = 2.58  # standard errors of the difference of two means: 1 % by chance
_SILENT_SHARE = 0.01
_CUT = tuple(int(one) for one in (Finish.ABORT, Finish.TIMEOUT, Finish.LENGTH))


@alarm("no versions", "policy versions are unknown")
def no_versions(analysis: RunAnalysis) -> Iterator[Said]:
    lags = analysis.staleness
    known = lags.known_trajectories
    if lags.trajectories > known and analysis.placement in ("one-step-off", "async"):
        unknown = 1 - known / lags.trajectories
        yield note(
            f"the policy version of {unknown:.0%} of the trained samples is unknown in a job that "
            f"is {analysis.placement}: nobody can say how stale they are. Record the version of "
            "each sample's first and last token"
        )


@alarm("silent drops", "long samples vanish")
def silent_drops(analysis: RunAnalysis) -> Iterator[Said]:
    """Samples without a fate or a failure that are surely longer than those with a fate."""
    told = analysis.run.ask(_SAMPLES_SQL["lengths_by_end"].format(cut=_CUT, Finish=Finish))
    groups = {met: figures for met, *figures in told}
    if set(groups) != {True, False}:
        return
    (used, usual, of_used, _), (gone, long, of_gone, cut) = groups[True], groups[False]
    share = gone / (gone + used)
    if gone < _FEWEST or share < _SILENT_SHARE:
        return
    if long - usual > _SURE * math.sqrt(of_gone / gone + of_used / used):
        yield note(
            f"{share:.0%} of the samples vanish without a reason ({cut:.0%} of them were cut "
            f"off). They have {long:,.0f} tokens in the mean, the others {usual:,.0f}: long "
            "reasoning is trained away. Record each drop with its reason"
        )


@alarm("made anew", "token ids are made anew")
def made_anew(analysis: RunAnalysis) -> Iterator[Said]:
    kept = analysis.kept
    if kept.ids_known > kept.ids_kept:
        yield note(
            f"token ids of {1 - kept.ids_kept / kept.ids_known:.0%} of the trained samples were "
            "made again from text: they may differ from what was sampled, and then the ratios are "
            "wrong. Keep the ids that the engine returns"
        )


# One figure that is not finite may be harmless: trainers skip an update whose gradient overflowed.
# It is grave where the last reading is none either, or where they are many and not a single one.

_MANY = 0.1
_WATCHED = r"loss|grad.*norm|(^|[/_])(reward|score|return|advantage)s?([/_](mean|avg))?$"
_NOT_WATCHED = r"(^|/)(val|eval|test)|(^|[/_])(std|var|min|max)"
"""Counters by name. A deviation of one sample, or an evaluation that was not, is NaN by nature."""


@alarm("not finite", "its figures are not finite")
def not_finite(analysis: RunAnalysis) -> Iterator[Said]:
    run, steps = analysis.run, analysis.steps
    infinite = "select count(*) from raw_rewards where start_ns > 0 and isinf(value)"
    counts = {
        "samples with infinite importance ratios": analysis.freshness.infinite_ratios,
        "infinite rewards": run.ask(infinite)[0][0],
    }
    told = {"nan": GIVEN_NAN, "watched": _WATCHED, "not_watched": _NOT_WATCHED}
    found = run.ask(_SQL["not_finite"].format(**told))
    yield from (_often(steps, *row) for row in found)
    yield from (grave(f"{what}: {n}") for what, n in counts.items() if n)


def _often(steps: Steps, what: str, of: str, n: int, bad: int, at_ns: int, last: bool) -> Said:
    """`bad` of `n` figures, first at `at_ns`, as its step ended, and whether the `last` was bad."""
    place = -1 if steps.whole_run else int(np.searchsorted(steps.starts_ns, at_ns)) - 1
    first = f", first in step {steps.windows[place].step}" if place >= 0 else ""
    says = f"{what} in {bad} of {n} {of}{'s' * (n != 1)}{first}"
    return grave(says) if last or bad >= max(2, _MANY * n) else note(says)


# --- weights that did not arrive, or engines that sample otherwise than the learner assumes


@alarm("weights", "engines sample from something else than the policy")
def departures(analysis: RunAnalysis) -> Iterator[Said]:
    gaps, found = analysis.engine_gaps, analysis.engine_gaps.departures
    for one in found[:NAMED]:
        says = _says(one, gaps) + _digest(analysis, one)
        sure = gaps.alone and (one.engine or not one.first)
        yield grave(says, judged_anyway=True) if sure else note(says)
    if len(found) > NAMED:
        yield note(f"gaps of engines to the learner grew {len(found) - NAMED} more times")


def _says(one: Departure, gaps: EngineGaps) -> str:
    gap = f"the gap of {one.engine or 'engines'} to the learner is {one.nats:.2g} nats a token"
    told = f"{gap}, usually {one.usual_nats:.2g}"
    step = "" if one.step < 0 else f" (step {one.step})"
    old = f"; so say samples that are {gaps.lag} versions old" if gaps.lag else ""
    why = "the weights are not the learner's, or the temperature is another"
    if one.cut:
        why = "tokens come from a part of the distribution only (top-p, top-k or min-p)"
    if one.first:
        told = f"{gap}, of which bfloat16 explains about {LARGE_NATS / 2:.2g}"
        if one.engine:
            told = f"{gap}, that of other engines {one.usual_nats:.2g}"
        return f"in all {one.versions} versions {told}: {why}{old}"
    if one.versions > 1 or one.until_version is None:
        until = "on" if one.until_version is None else f"to {one.until_version - 1}"
        return f"from version {one.version} {until}{step}, {told}: {why}{old}"
    what = f"the weight sync of version {one.version} changed nothing, or not all there was"
    if one.engine:
        what = f"{one.engine} did not take version {one.version}, or not all of it"
    return f"{what}{step}: {told}{old}"


def _digest(analysis: RunAnalysis, one: Departure) -> str:
    """What digests say of what was sent for the version."""
    query = _SAMPLES_SQL["sent_digests"].format(version=one.version, SyncRole=SyncRole)
    sent = dict(analysis.run.ask(query))
    again = one.version in sent and len(set(sent.values())) < len(sent) and not one.first
    return f". What was sent has the digest of version {min(sent)}" if again else ""
