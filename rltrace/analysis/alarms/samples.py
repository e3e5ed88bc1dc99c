"""Samples that come to nothing, or to less: no rewards or lower ones, cut off, aborted, unused."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.alarms.alarm import HALF, Said, alarm, counted, grave
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.steps import FEWEST_ALIKE
from rltrace.analysis.trajectories.samples import DECIDED_SAMPLES
from rltrace.trace.vocabulary import Fate, Finish, Outcome, named

# Where most come to nothing, what is trained on is not what the task asks for.
counted(
    "failed rewards", "most rewards fail",
    f"select count(*) filter (outcome > {int(Outcome.OK)}), count(*) from raw_rewards "
    "where start_ns > 0 and outcome >= 0",
    "{n} of {of} rewards failed or timed out", above=HALF,
)  # fmt: skip

_FINISHED = "from sample_lives where is_generated and finish is not null"
counted(
    "truncated", "most samples are cut off",
    f"select count(*) filter (finish = {int(Finish.LENGTH)}), count(*) {_FINISHED}",
    "{n} of {of} samples ({share}) were cut off at the length limit: their rewards say little "
    "about whole answers", above=HALF, judged_anyway=True,
)  # fmt: skip
counted(
    "aborted", "most samples are aborted",
    f"select count(*) filter (finish in ({int(Finish.ABORT)}, {int(Finish.TIMEOUT)}, "
    f"{int(Finish.ERROR)})), count(*) {_FINISHED}",
    "generation of {n} of {of} samples ({share}) was aborted, timed out or failed", above=HALF,
)  # fmt: skip
counted(
    "masked", "most tokens are masked",
    f"{DECIDED_SAMPLES} select coalesce(sum(masked), 0)::bigint, coalesce(sum(tokens), 0)::bigint "
    f"from decided where fate = {int(Fate.TRAINED)}",
    "{n} of {of} tokens ({share}) of samples that were trained on are not in the loss",
    above=HALF, judged_anyway=True,
)  # fmt: skip


@alarm("reward", "its reward fell")
def reward_fell(analysis: RunAnalysis) -> Iterator[Said]:
    if analysis.reward is not None and (fall := analysis.reward.collapse) is not None:
        levels = f"from {fall.before:.3g} to {fall.after:.3g}"
        yield grave(f"the reward fell at step {fall.step}, {levels}, and has not come back")


@alarm("unused", "it trains on no sample")
def unused(analysis: RunAnalysis) -> Iterator[Said]:
    """The learner met samples in steps that it completed, and trained on none of them."""
    if analysis.steps.whole_run or len(analysis.steps.windows) < FEWEST_ALIKE:
        return
    query = "select coalesce(fate, -1), count(*) from sample_lives where is_met group by 1"
    fates = dict(analysis.run.ask(query))
    if fates and not fates.keys() & {int(Fate.TRAINED), -1}:
        why = ", ".join(f"{count} {named(Fate, fate)}" for fate, count in sorted(fates.items()))
        met = sum(fates.values())
        yield grave(f"the learner trained on none of the {met} samples that it got ({why})")
