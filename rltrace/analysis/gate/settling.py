"""Where a run has settled: its leading steps that are longer than the rest, by change-point.

A step's length is taken as a level that changes, in logarithms. The place is looked for where the
mean of the steps before differs most from the level after (a CUSUM statistic, Page 1954, with a
robust scale as one spike is no level), again in the rest until nothing is found, as binary
segmentation does; Barrett et al. 2017 (arXiv 1602.00602) and Daly et al. 2020 (doi
10.1145/3358960.3375791) find steady states and regressions so. Only a *slower* beginning is
warm-up: what slows down later is what a gate looks for. Where steps differ much a level is hard to
find, and the rule of the report (`rltrace.analysis.steps`) still tells single steps far beyond all
others: the longer of both counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rltrace.analysis.gate.resampling import Floats
from rltrace.analysis.steps import warmup_by_margin

LARGEST_SHARE = 1 / 3
"""More leading steps than this are no warm-up but a trend, and count."""
_SURE = 5.0  # of the statistic; 4 is 1 % over the places of 100 normal steps of a known spread
_LONGER = math.log(1.05)  # less than this is not worth a step
_FEWEST = 5


def warmup_steps(lengths_s: Sequence[Floats]) -> int:
    """How many leading steps to leave out of runs of the same steps, or of one run. Runs are looked
    at together: what is chance in one of them is not in all."""
    size = min(len(one) for one in lengths_s)
    logs = np.mean([np.log(np.maximum(one[:size], 1e-9)) for one in lengths_s], axis=0)
    most = int(len(logs) * LARGEST_SHARE)
    left_out = warmup_by_margin(np.exp(logs).tolist())
    while left_out < most and len(logs) - left_out >= _FEWEST:
        found = _first_change(logs[left_out:], most - left_out)
        if not found:
            break
        left_out += found
    return left_out


def _first_change(logs: Floats, most: int) -> int:
    """How many leading values are above the level of the rest; 0: none."""
    n = len(logs)
    first = np.arange(1, most + 1)
    before = np.cumsum(logs)[:most] / first
    scores = np.zeros(most)
    rises = np.zeros(most)
    for k in first.tolist():
        rest = logs[k:]
        level = float(np.median(rest))
        robust = 1.4826 * float(np.median(np.abs(rest - level)))
        spread = max(robust, float(rest.std()) / 2)  # of few different values the median tells 0
        rises[k - 1] = min(before[k - 1], float(np.median(logs[:k]))) - level  # no single spike
        likeness = _likeness(rest - level) if k > 1 else 1.0
        error = max(spread, 1e-3) * math.sqrt(likeness * (1 / k + 1 / (n - k)))
        scores[k - 1] = rises[k - 1] / error
    scores[rises < _LONGER] = 0.0
    best = int(np.argmax(scores)) + 1
    goes_on = best == most > 1  # the level is longer than what was looked at
    return best if scores[best - 1] > _SURE and not goes_on else 0


def _likeness(rest: Floats) -> float:
    """By how much neighbours that are alike widen the error of a mean: (1 + r) / (1 - r)."""
    power = float(rest @ rest)
    r = float(rest[1:] @ rest[:-1]) / power if power > 0 else 0.0
    r = min(max(r, 0.0), 0.9)
    return (1 + r) / (1 - r)
