"""A large fall of the reward that stays (`rltrace.analysis.reward_curve`)."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.alarms.alarm import Said, alarm, grave
from rltrace.analysis.run_analysis import RunAnalysis


@alarm("reward", "its reward fell")
def reward_fell(analysis: RunAnalysis) -> Iterator[Said]:
    if analysis.reward is not None and (fall := analysis.reward.collapse) is not None:
        levels = f"from {fall.before:.3g} to {fall.after:.3g}"
        yield grave(f"the reward fell at step {fall.step}, {levels}, and has not come back")
