"""How many groups carry a signal: rewards that differ within the K samples of a prompt.

A group-relative advantage (GRPO, RLOO) is zero for all of a group whose rewards are equal, so it
was generated and judged for nothing. A group with a reward that is NaN carries none either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.samples import GENERATED_SAMPLES
from rltrace.analysis.stats.interval import proportion
from rltrace.trace.run import Run
from rltrace.trace.signals import GIVEN_NAN

_MOST_UNCLEAR = 0.1  # part of the samples


@dataclass(frozen=True)
class GroupSignal:
    """Groups of which the verdicts of two samples or more tell it, whole run; `share` of them carry
    a signal, with its 95 % interval (Wilson; groups as independent). `reward` is the mean verdict
    of all, and `reward_without_signal` of those without signal (NaN: none): low where prompts are
    too hard, high where they are too easy. `with_nan` have none because a reward is NaN. Of all
    `samples` with a group `unclear` have an id that comes again in later steps, so that nothing is
    known of their groups (`rltrace.trace.regrouped`)."""

    groups: int
    with_signal: int
    share: float
    low: float
    high: float
    reward: float
    reward_without_signal: float
    with_nan: int
    samples: int
    unclear: int

    @property
    def known(self) -> bool:
        """Whether the share can be told: nearly all samples have a group that is known."""
        return self.groups > 0 and mostly_clear(self.unclear, self.samples)


def mostly_clear(unclear: int, samples: int) -> bool:
    """Whether so few samples have an unclear group that the others speak for them."""
    return unclear <= _MOST_UNCLEAR * samples


def unclear_samples(run: Run) -> tuple[int, int]:
    """`(samples whose group's id is of several groups that cannot be told apart, all samples that
    have a group)`."""
    unclear, samples = run.ask("""
        select (select count(*) from regrouped where "group" = -1),
               (select count(distinct trajectory) from raw_trajectories
                where start_ns > 0 and trajectory <> -1 and "group" <> -1)
    """)[0]
    return int(unclear), int(samples)


def group_signal(run: Run) -> GroupSignal | None:
    """The signal of the groups of `run`; None where no group has two verdicts, and ids that come
    again are not why."""
    groups, with_signal, with_nan, reward, without = run.ask(f"""
        {GENERATED_SAMPLES},
        rewarded as (
            select "group", bool_or({GIVEN_NAN}) as nan,
                   avg(value) filter (isfinite(value)) as reward
            from raw_rewards r join generated g using (trajectory)
            where r.start_ns > 0 and "group" <> -1 group by "group")
        select count(*), count(*) filter (signal), count(*) filter (not signal and nan),
               avg(reward), avg(reward) filter (not signal)
        from signals left join rewarded using ("group") where signal is not null
    """)[0]
    unclear, samples = unclear_samples(run)
    if not groups and not unclear:
        return None
    share = proportion(with_signal / groups if groups else math.nan, groups)
    return GroupSignal(
        groups=groups,
        with_signal=with_signal,
        share=share.value,
        low=share.low,
        high=share.high,
        reward=math.nan if reward is None else reward,
        reward_without_signal=math.nan if without is None else without,
        with_nan=with_nan,
        samples=samples,
        unclear=unclear,
    )
