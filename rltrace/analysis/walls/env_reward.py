"""Env/reward: samples, and with them the step, wait for tools or rewards."""

from __future__ import annotations

import math

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import spread_of
from rltrace.analysis.walls.stage_wall import exposed_figures, stage_wall, that_count
from rltrace.analysis.walls.wall import ENV_REWARD, Figure, Wall, proportion, register
from rltrace.trace.vocabulary import Stage

TOOLS = "tools of a sample, p95"  # name of the evidence

_TAIL = 2.0  # times the median
_STAGES = (Stage.ENV, Stage.REWARD)


@register(ENV_REWARD, *_STAGES)
def env_reward(analysis: RunAnalysis) -> Wall:
    evidence = [*exposed_figures(analysis, _STAGES), *_of_tools(analysis)]
    names = {Stage.ENV: "tools", Stage.REWARD: "rewards"}
    rows = that_count([row for row in analysis.stages if row.stage in names])
    slow = " and ".join(names[stage] for stage in names if stage in {row.stage for row in rows})
    latency_s = analysis.tail.reward_latency_s
    in_tail = slow == "rewards" and latency_s.n and latency_s.p95 > _TAIL * latency_s.p50
    how = "are slow in their tail" if in_tail else "take long"
    symptom = f"{slow or 'tools and rewards'} {how}, and the rest of the step waits for them"
    return stage_wall(analysis, ENV_REWARD, symptom, _STAGES, evidence)


def _of_tools(analysis: RunAnalysis) -> list[Figure]:
    found = []
    tail, latency_s = analysis.tail, analysis.tail.reward_latency_s
    if latency_s.n:
        found.append(Figure("reward latency, p95", latency_s.p95, "s", latency_s.n))
    timed = "raw_trajectories where start_ns > 0 and env_ns > 0"
    tools_s = spread_of(analysis.run, "env_ns / 1e9", timed)
    if tools_s.n:
        found.append(Figure(TOOLS, tools_s.p95, "s", tools_s.n))
    if judged := latency_s.n + tail.untimed_rewards:
        failed = proportion(tail.failed_rewards / judged, judged)
        found.append(failed.as_figure("rewards that failed"))
    return [one for one in found if not math.isnan(one.value)]
