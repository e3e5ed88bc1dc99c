"""Walls of verdicts: steps wait for tools or rewards, or rewards tell no samples apart.

A group whose rewards are all equal has no advantage (GRPO, RLOO): its tokens are the cost, whether
all its samples failed or all succeeded. A reward counts as success from the middle between the
lowest and the highest of the run on; where there was only one value, above 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import spread_of
from rltrace.analysis.trajectories.reward_signal import mostly_clear, unclear_samples
from rltrace.analysis.walls import wall as w
from rltrace.analysis.walls.attribute import exposed_figures, stage_wall, that_count, unseen_of
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Stage

TOOLS = "tools of a sample, p95"  # name of the evidence

_TAIL = 2.0  # times the median
_STAGES = (Stage.ENV, Stage.REWARD)


@w.register(w.ENV_REWARD, *_STAGES)
def env_reward(analysis: RunAnalysis) -> w.Wall:
    evidence = [*exposed_figures(analysis, _STAGES), *_of_tools(analysis)]
    names = {Stage.ENV: "tools", Stage.REWARD: "rewards"}
    rows = that_count([row for row in analysis.stages if row.stage in names])
    slow = " and ".join(names[stage] for stage in names if stage in {row.stage for row in rows})
    latency_s = analysis.tail.reward_latency_s
    in_tail = slow == "rewards" and latency_s.n and latency_s.p95 > _TAIL * latency_s.p50
    how = "are slow in their tail" if in_tail else "take long"
    symptom = f"{slow or 'tools and rewards'} {how}, and the rest of the step waits for them"
    return stage_wall(analysis, w.ENV_REWARD, symptom, _STAGES, evidence)


def _of_tools(analysis: RunAnalysis) -> list[w.Figure]:
    found = []
    tail, latency_s = analysis.tail, analysis.tail.reward_latency_s
    if latency_s.n:
        found.append(w.Figure("reward latency, p95", latency_s.p95, "s", latency_s.n))
    timed = "raw_trajectories where start_ns > 0 and env_ns > 0"
    tools_s = spread_of(analysis.run, "env_ns / 1e9", timed)
    if tools_s.n:
        found.append(w.Figure(TOOLS, tools_s.p95, "s", tools_s.n))
    if judged := latency_s.n + tail.untimed_rewards:
        failed = w.proportion(tail.failed_rewards / judged, judged)
        found.append(failed.as_figure("rewards that failed"))
    return [one for one in found if not math.isnan(one.value)]


# --- sparse reward: every sample of a group gets the same, so nothing is learned

SYMPTOM = "for many prompts all samples fail"
SOLVED = "for many prompts all samples succeed"
NOTHING_LEARNED = "the reward does not move, as no group has an advantage"
_FEWEST_GROUPS = 30
_SQL = packaged_toml("analysis/data/sample_queries.toml")
_GROUPS = "the group of each sample and its reward: hooks on generation and on the reward function"
_NAMED_APART = "an id for each prompt's samples of one step; or a row of what the learner used"


@dataclass(frozen=True)
class Signal:
    """Groups of two samples or more with a verdict, and their response tokens. `failed` are the
    groups of equal reward in which it is low, `solved` those in which it is high, `equal_tokens`
    their tokens; `successes` of `samples` succeeded. Rewards go from `lowest` to `highest` (None
    without groups)."""

    groups: int
    with_signal: int
    failed: int
    solved: int
    tokens: int
    equal_tokens: int
    samples: int
    successes: int
    lowest: float | None
    highest: float | None

    @property
    def one_reward(self) -> bool:
        """Whether all samples got the same reward, which is more than nothing."""
        return self.highest is not None and self.lowest == self.highest > 0


def signal(analysis: RunAnalysis) -> Signal:
    row = analysis.run.ask(f"{_SQL['groups']} {_SQL['signal']}")[0]
    return Signal(*row)


def successes(analysis: RunAnalysis) -> list[tuple[int, int]]:
    """`(successes, samples)` of each group; none where no group has a signal, as then nothing tells
    how chances differ, or where a group without one loses no goodput."""
    return list(analysis.run.ask(f"{_SQL['groups']} {_SQL['successes']}"))


@w.register(w.SPARSE_REWARD)
def sparse_reward(analysis: RunAnalysis) -> w.Wall:
    found = signal(analysis)
    unclear, samples = unclear_samples(analysis.run)
    if not mostly_clear(unclear, samples):
        why = (
            f"the ids of groups come again in later steps, and of {unclear:,} of {samples:,} "
            "samples nobody said how they were used: which belong together cannot be told"
        )
        return w.cannot_tell(w.SPARSE_REWARD, SYMPTOM, why, _NAMED_APART)
    if not found.groups:
        why = "no group with two rewards was recorded"
        return w.cannot_tell(w.SPARSE_REWARD, SYMPTOM, why, _GROUPS)
    evidence = _evidence(found)
    if (of_group := analysis.run.ask("select of_group from advantage_baseline")[0][0]) is not True:
        why = "advantages are not relative to a group, so equal rewards in one need be no loss"
        why = why if of_group is False else "the estimator of advantages is not known"
        what = "the advantages themselves, which no hook records"
        return w.cannot_tell(w.SPARSE_REWARD, SYMPTOM, why, what, evidence=evidence, at_most=0.0)
    part = 1 - found.with_signal / found.groups
    if found.tokens:
        part = found.equal_tokens / found.tokens
    symptom = SOLVED if found.solved > found.failed else SYMPTOM
    alike = "rewards are equal" if found.solved else "samples fail"
    because = f"tokens of groups in which all {alike}"
    if not found.with_signal and found.failed < found.groups:
        symptom = NOTHING_LEARNED
        if found.one_reward:
            same = f"all samples of all groups got the same reward ({found.highest:.3g})"
            because = f"all tokens: {same}, so there is nothing to learn"
    cost = w.proportion(part, found.groups)
    sure = found.groups >= _FEWEST_GROUPS
    unseen = unseen_of(analysis, (Stage.ROLLOUT, Stage.REWARD))
    if any(one.kind == "truncated" for one in analysis.health.alarms):
        unseen = "; ".join(filter(None, (unseen, "most samples are cut off, which may be why")))
    if unseen:  # a group may have succeeded where nobody saw it
        sure, because = False, f"{because}; {unseen}"
    return w.Wall(
        w.SPARSE_REWARD, w.LIKELY if sure else w.WEAK, cost, symptom, because, evidence, ()
    )


def _evidence(found: Signal) -> tuple[w.Figure, ...]:
    shares = (
        ("groups with a signal", found.with_signal, found.groups),
        ("groups in which all fail", found.failed, found.groups),
        ("groups in which all succeed", found.solved, found.groups),
        ("samples that succeed", found.successes, found.samples),
    )
    told = shares[:1] if found.one_reward else shares
    return tuple(w.proportion(part / of, of).as_figure(name) for name, part, of in told)
