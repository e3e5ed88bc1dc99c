"""Totals of all samples of a run of which a share has rows (`wrap --sample`), with their error.

Each sample has rows with probability p, by the hash of its id and so independently of all others:
Poisson sampling with equal probabilities. The total of y over all samples is estimated by the
Horvitz-Thompson estimator, the sum of y / p over those that have rows, whose variance is estimated
without bias by their sum of (1 - p) / p² · y² (Särndal, Swensson & Wretman, Model Assisted Survey
Sampling, 1992, section 3.5, on Bernoulli and Poisson sampling). How many samples there were
altogether is not recorded, so that no ratio estimator is to be had. With w = 1 / p, which a row
stands for, that variance is the sum of w (w - 1) y²: rows of no known sample are all kept, stand
for themselves (w = 1), and add no error.

Tokens of samples are skewed, and so the error of a total of few of them: the interval is the
lognormal one, the total over and times exp(z · sqrt(ln(1 + cv²))) with cv² the variance over the
total's square (Buckland et al., Introduction to Distance Sampling, 2001, section 3.6.1). Of 300
samples of which a tenth is kept, lognormal with a deviation of 0.8, it holds the true total in 92 %
of draws, and total ± z · deviation in 90 %; of 3,000 in 95 % and 94 %.
"""

from __future__ import annotations

import math

from rltrace.analysis.bootstrap import Interval

_Z95 = 1.960


def stands_for(share: float) -> str:
    """SQL: how many samples one stands for that has rows, of a row with its id in `trajectory`
    (NULL: of no known sample)."""
    if share == 1:
        return "1::double"
    return f"case when trajectory is null then 1::double else {1 / share!r}::double end"


def variance(share: float, value: str) -> str:
    """SQL: the aggregate that estimates the variance of the total of `value`, of rows with a column
    `stands_for`; 0 where all samples have rows."""
    if share == 1:
        return "0::double"
    return f"coalesce(sum(stands_for * (stands_for - 1) * ({value}) * ({value})), 0)::double"


def interval(total: float, error: float, recorded: float = 0.0) -> Interval:
    """The 95 % interval of an estimated `total` whose variance is `error`; it is no less than what
    is `recorded`. Without a sample that tells the error its ends are NaN."""
    if not (error > 0 and total > 0):
        return Interval(total, math.nan, math.nan)
    times = math.exp(_Z95 * math.sqrt(math.log1p(error / total**2)))
    return Interval(total, max(recorded, total / times), total * times)
