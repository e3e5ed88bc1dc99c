"""What moves against statistical walls would gain: no replay of events tells that.

Freshness: ESS falls with lag k as a^k (a policy that drifts in random directions: the variance of
the log-ratio grows with k) to a^(k²) (in one direction: with k²). The run's own mean lag and ESS
give a; its two ends give the range at another bound.

Samples: with a chance of success that differs between groups as a beta distribution (fitted to the
successes of the run's groups), K samples are all alike with a chance in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rltrace.analysis.stats.estimate import Estimate

_FOLDS = 5
_T4 = 2.776  # two-sided 95 % of Student's t for 4 degrees of freedom
_SHAPES = [10 ** (place / 6 - 2) for place in range(25)]  # 0.01 to 100


def freshness_gain(weight: float, base: float, mean_lag: float, bound: float) -> Estimate | None:
    """Effective tokens with lags up to `bound` over those now; `weight` is ESS / N now, `base` that
    at lag 0. None where the lag is within the bound, or nothing is known."""
    if not (0 < weight < base <= 1) or not mean_lag > bound >= 0:
        return None
    kept = weight / base
    low = base * kept ** (bound / mean_lag) / weight
    high = base * kept ** ((bound / mean_lag) ** 2) / weight
    return Estimate(low, math.sqrt(low * high), high)


def signal_share(successes: Sequence[tuple[int, int]], samples: int) -> float:
    """Expected share of groups with a signal at `samples` a group, from `(successes, samples)` of
    the groups of a run; NaN where there are none."""
    if not successes:
        return math.nan
    a, b = _fit(successes)
    alike = math.exp(_log_beta(a + samples, b) - _log_beta(a, b))
    alike += math.exp(_log_beta(a, b + samples) - _log_beta(a, b))
    return 1 - alike


def samples_gain(successes: Sequence[tuple[int, int]], factor: float) -> Estimate | None:
    """Share of groups with a signal at `factor` times the samples, over that now. The range is a
    jackknife over fifths of the groups. None where there are too few of them, or none succeeds."""
    if len(successes) < _FOLDS or not any(won for won, _ in successes):
        return None
    size = round(sum(of for _, of in successes) / len(successes))

    def gain(groups: Sequence[tuple[int, int]]) -> float:
        now = signal_share(groups, size)
        return math.log(signal_share(groups, round(factor * size)) / now) if now else math.nan

    middle = gain(successes)
    left = [
        gain([one for place, one in enumerate(successes) if place % _FOLDS != fold])
        for fold in range(_FOLDS)
    ]
    mean = sum(left) / _FOLDS
    error = math.sqrt((_FOLDS - 1) / _FOLDS * sum((one - mean) ** 2 for one in left))
    if math.isnan(middle) or math.isnan(error):
        return None
    half = _T4 * error
    return Estimate(math.exp(middle - half), math.exp(middle), math.exp(middle + half))


def _fit(successes: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Shapes of the likeliest beta-binomial, on a grid that is fine enough for a range."""
    return max(
        ((a, b) for a in _SHAPES for b in _SHAPES),
        key=lambda shape: sum(
            _log_beta(shape[0] + k, shape[1] + n - k) - _log_beta(*shape) for k, n in successes
        ),
    )


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
