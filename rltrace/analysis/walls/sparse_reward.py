"""Sparse reward: groups in which every sample fails, from which nothing can be learned.

A group whose rewards are all equal has no advantage to tell (GRPO, RLOO). Where all its samples
failed, the prompt is too hard for so many samples: that is this wall, and its tokens are the cost.
Where all of them succeeded the prompt is solved, which is as useless and no sparse reward: it is
evidence, and a matter of which prompts are drawn. A reward counts as success from the middle
between the lowest and the highest of the run on; where there was only one value, above 0.

Where no group at all has a signal nothing is learned, and all tokens are the cost, whatever the
rewards are. One reward for all tells nothing of success: a judge that is broken, or whose verdict
has no weight, says the same of each sample as one that every sample satisfies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.group_signal import mostly_clear, unclear_samples
from rltrace.analysis.samples import GENERATED_SAMPLES
from rltrace.analysis.walls.wall import (
    CANNOT_TELL,
    LIKELY,
    SPARSE_REWARD,
    UNKNOWN,
    WEAK,
    Figure,
    Seen,
    Wall,
    proportion,
)
from rltrace.trace.vocabulary import Stage

SYMPTOM = "all samples of many prompts fail alike"
NOTHING_LEARNED = "the reward does not move, as no group has an advantage"
_FEWEST_GROUPS = 30
_GROUPS_OF = f"""        {GENERATED_SAMPLES},
        judged as (
            select trajectory, "group", reward, response_tokens as tokens
            from sample_rewards join generated using (trajectory)
            where isfinite(reward) and "group" <> -1),
        bounds as (select min(reward) as lowest, max(reward) as highest from judged),
        marked as (
            select judged.*, case when highest > lowest then reward >= (lowest + highest) / 2
                                  else reward > 0 end as success
            from judged, bounds),
        groups as (
            select "group", not bool_or(coalesce(signal, false)) as equal,
                   bool_and(success) as solved, not bool_or(success) as failed,
                   coalesce(sum(tokens), 0)::bigint as tokens, count(*) as samples,
                   count(*) filter (success) as successes,
                   min(reward) as lowest, max(reward) as highest
            from marked left join signals using ("group") group by "group" having count(*) > 1)"""
_GROUPS = "the group of each sample and its verdict: hooks on generation and on the reward function"

_NAMED_APART = "an id for each prompt's samples of one step; or a row of what the learner used"


@dataclass(frozen=True)
class Signal:
    """Groups of at least two samples with a verdict, and their response tokens. `failed` are the
    groups of equal reward in which it is low, `solved` those in which it is high; `successes` of
    `samples` succeeded. Rewards go from `lowest` to `highest` (NaN without groups)."""

    groups: int
    with_signal: int
    failed: int
    solved: int
    tokens: int
    failed_tokens: int
    solved_tokens: int
    samples: int
    successes: int
    lowest: float
    highest: float

    @property
    def one_reward(self) -> bool:
        """Whether all samples got the same reward, which is more than nothing."""
        return self.lowest == self.highest > 0


def signal(seen: Seen) -> Signal:
    """Counts them over the whole run."""
    row = seen.run.ask(f"""
        {_GROUPS_OF}
        select count(*), count(*) filter (not equal), count(*) filter (equal and failed),
               count(*) filter (equal and solved), coalesce(sum(tokens), 0)::bigint,
               coalesce(sum(tokens) filter (equal and failed), 0)::bigint,
               coalesce(sum(tokens) filter (equal and solved), 0)::bigint,
               coalesce(sum(samples), 0)::bigint, coalesce(sum(successes), 0)::bigint,
               coalesce(min(lowest), 'nan'::double), coalesce(max(highest), 'nan'::double)
        from groups
    """)[0]
    return Signal(*(int(count) for count in row[:-2]), *(float(reward) for reward in row[-2:]))


def successes(seen: Seen) -> list[tuple[int, int]]:
    """`(successes, samples)` of each group; none where no group has a signal: then nothing tells
    how chances differ, nor is there any goodput that could grow."""
    found = seen.run.ask(f"""
        {_GROUPS_OF}
        select successes, samples from groups where (select not bool_and(equal) from groups)
    """)
    return [(int(won), int(of)) for won, of in found]


def sparse_reward(seen: Seen) -> Wall:
    """The test."""
    found = signal(seen)
    unclear, samples = unclear_samples(seen.run)
    if not mostly_clear(unclear, samples):
        why = (
            f"the ids of groups come again in later steps, and of {unclear:,} of {samples:,} "
            "samples nobody said how they were used: which belong together cannot be told"
        )
        return Wall(SPARSE_REWARD, CANNOT_TELL, UNKNOWN, SYMPTOM, why, (), (_NAMED_APART,))
    if not found.groups:
        why = "no group with two verdicts was recorded"
        return Wall(SPARSE_REWARD, CANNOT_TELL, UNKNOWN, SYMPTOM, why, (), (_GROUPS,))
    evidence = _evidence(found)
    if any(row.stage is Stage.VALUE for row in seen.stages):
        why = "a critic gives advantages, so equal rewards of a group are no loss in themselves"
        critic = ("the advantages themselves, which no hook records",)
        return Wall(SPARSE_REWARD, CANNOT_TELL, UNKNOWN, SYMPTOM, why, evidence, critic)
    tokens = found.tokens or math.nan
    part = found.failed_tokens / tokens if found.tokens else found.failed / found.groups
    symptom, because = SYMPTOM, "tokens of groups in which every sample fails alike"
    if not found.with_signal and found.failed < found.groups:
        part, symptom = 1.0, NOTHING_LEARNED
        because = "tokens of groups in which all rewards are equal, which is every one"
        if found.one_reward:
            same = f"all samples of all groups got the same reward ({found.highest:.3g})"
            because = f"every token, as {same}: nothing to learn from"
    cost = proportion(part, found.groups)
    sure = found.groups >= _FEWEST_GROUPS
    return Wall(SPARSE_REWARD, LIKELY if sure else WEAK, cost, symptom, because, evidence, ())


def _evidence(found: Signal) -> tuple[Figure, ...]:
    shares = (
        ("groups with a signal", found.with_signal, found.groups),
        ("groups in which all fail", found.failed, found.groups),
        ("groups in which all succeed", found.solved, found.groups),
        ("samples that succeed", found.successes, found.samples),
    )
    made = []
    for name, part, of in shares[:1] if found.one_reward else shares:
        share = proportion(part / of, of)
        made.append(Figure(name, share.share, "share", of, share.low, share.high))
    return tuple(made)
