"""Env/reward latency: samples wait for their tools or their verdicts, and the step for them."""

from __future__ import annotations

import math

from rltrace.analysis.spread import spread_of
from rltrace.analysis.walls.beside import beside, ran_beside, replayed_share
from rltrace.analysis.walls.cost import relief_s, stages_of
from rltrace.analysis.walls.stage_wall import exposed_figures, stage_wall, that_count
from rltrace.analysis.walls.wall import ENV_REWARD, Figure, Seen, Wall, proportion
from rltrace.trace.vocabulary import Stage

TOOLS = "tools of a sample, p95"
_TAIL = 2.0  # times the median
_REPLAYED = (
    "the part of the step that would fall away if tools and verdicts took no time, by a replay of "
    "the run: they ran beside generation"
)


def env_reward(seen: Seen) -> Wall:
    """The test."""
    stages = stages_of(ENV_REWARD)
    evidence = (*exposed_figures(seen, stages), *_evidence(seen))
    relief, because = relief_s(seen, stages), ""
    replays = ran_beside(seen) and beside(seen, stages) is None
    # The delays of a probe would be replayed as the stages' own.
    if seen.probe is None and seen.pace is None and replays:
        share = replayed_share(seen, stages)
        if share is not None:
            relief, because = seen.steps_s * share, _REPLAYED
    symptom = _symptom(seen)
    return stage_wall(seen, ENV_REWARD, symptom, stages, relief, evidence, because=because)


def _symptom(seen: Seen) -> str:
    """What is slow, as far as it was seen."""
    names = {Stage.ENV: "tools", Stage.REWARD: "verdicts"}
    slow_stages = {row.stage for row in that_count([r for r in seen.stages if r.stage in names])}
    slow = " and ".join(name for stage, name in names.items() if stage in slow_stages)
    verdict_s = seen.tail.verdict_s
    in_tail = slow == "verdicts" and verdict_s.n and verdict_s.p95 > _TAIL * verdict_s.p50
    how = "are slow in their tail" if in_tail else "take long"
    return f"{slow or 'tools and verdicts'} {how}, actors and learner wait for them"


def _evidence(seen: Seen) -> list[Figure]:
    found = []
    tail = seen.tail
    if tail.verdict_s.n:
        found.append(Figure("verdict latency, p95", tail.verdict_s.p95, "s", tail.verdict_s.n))
    tools_s = spread_of(
        seen.run, "env_ns / 1e9", "raw_trajectories where start_ns > 0 and env_ns > 0"
    )
    if tools_s.n:
        found.append(Figure(TOOLS, tools_s.p95, "s", tools_s.n))
    judged = tail.verdict_s.n + tail.verdicts_untimed
    if judged:
        failed = proportion(tail.verdict_failures / judged, judged)
        found.append(
            Figure("verdicts that failed", failed.share, "share", judged, failed.low, failed.high)
        )
    return [one for one in found if not math.isnan(one.value)]
