"""What is done in a way that is known to fail, and shows in what was recorded."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rltrace.analysis.alarms.alarm import Said, alarm, note
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.trace.vocabulary import Finish

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
    """Samples without a fate that are surely longer than those with one."""
    told = analysis.run.ask(f"""
        select is_met, count(*), avg(response_tokens), var_pop(response_tokens),
               avg((coalesce(finish, -1) in {_CUT})::int)
        from sample_lives
        where is_generated and trajectory is not null and response_tokens is not null group by 1
    """)
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
