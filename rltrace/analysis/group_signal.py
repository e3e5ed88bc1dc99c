"""How many groups carry a signal: rewards that differ within the K samples of a prompt.

A group-relative advantage (GRPO, RLOO) is zero for all of a group whose rewards are equal, so such
a group was generated and judged for nothing. Whether the prompts were too hard or too easy shows in
the reward that these groups got. A group with a reward that is NaN carries none either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.analysis.samples import SAMPLES, SIGNALS

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_Z95 = 1.96


@dataclass(frozen=True)
class GroupSignal:
    """Groups with at least two verdicts, whole run; `share` of them carry a signal, with its 95 %
    interval (Wilson; groups as independent). `reward` is the mean verdict of all of them, and
    `reward_without` of those without signal (NaN: none): low where prompts are too hard, high where
    they are too easy."""

    groups: int
    with_signal: int
    share: float
    low: float
    high: float
    reward: float
    reward_without: float


def group_signal(run: Run) -> GroupSignal | None:
    """The signal of the groups of `run`; None where no group has two verdicts."""
    groups, with_signal, reward, without = run.sql(f"""
        {SAMPLES}, {SIGNALS},
        rewarded as (
            select "group", avg(value) as reward
            from raw_rewards r join generated g using (trajectory)
            where r.start_ns > 0 and isfinite(value) and "group" <> -1 group by "group")
        select count(*), count(*) filter (signal), avg(reward), avg(reward) filter (not signal)
        from signals left join rewarded using ("group")
    """).fetchall()[0]
    if not groups:
        return None
    share = with_signal / groups
    low, high = _wilson(share, groups)
    nan = math.nan
    return GroupSignal(
        groups=groups,
        with_signal=with_signal,
        share=share,
        low=low,
        high=high,
        reward=nan if reward is None else reward,
        reward_without=nan if without is None else without,
    )


def _wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `n`."""
    z2 = _Z95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
