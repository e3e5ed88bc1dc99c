"""Did the weights arrive: how far the samples of each engine are from the learner's policy.

Where the version that trains on a sample also generated it, learner and engine hold the same
weights: a token is as probable for one as for the other, but for their arithmetic. With w the ratio
of the two, w - 1 - ln w is never negative, and its mean estimates the KL divergence of engine to
learner (k3 of Schulman 2020, "Approximating KL divergence"): the gap, in nats a token. How large it
is is the engine's own affair, so that of each version is held against those of the versions before
it, and of the other engines.

A version departs from them where the logarithm of its gap is so far above their median that this is
chance once in `1 / CHANCE` versions: Student's t, with the median absolute deviation for the
spread, times 1.4826 n / (n - 0.8) (Croux and Rousseeuw 1992). Samples differ, so the gap that is
tested is the square of the mean over samples of its root: one odd token is no departure.

Older samples, and those of an update that is not the first of its version, have the policy's own
movement in their ratios. It is the same for all engines: there only one against the others shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from rltrace.analysis.fixes.options import known_job, printed
from rltrace.analysis.fixes.playbook import moves, settings_for
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import UNKNOWN, Interval, factor, fit
from rltrace.analysis.trajectories.freshness import updates_in_ratios
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Fate

Floats = NDArray[np.float64]

CHANCE = 1e-4  # of a false departure, for one version of one engine
LEAST_NATS = 1e-6  # what sums in single precision tell: a smaller gap is none
LARGE_NATS = 0.02  # no arithmetic explains more; bfloat16 explains about half of it
LAST = 5
_SQL = packaged_toml("analysis/data/queries.toml")
_WINDOW, _FEWEST = 20, 4  # versions before: that are looked at, that have to be there
_FEWEST_SAMPLES = 4
_AT_ONCE = 100_000  # versions and engines whose windows are looked at: they take 50 MB
_LEAST_JUMP = math.log(4)  # twice as far: a smaller one, however sure, says nothing of weights
_LEAST_BESIDE = math.log(10)  # and of an engine that was never as the others are
_LEAST_SPREAD = 0.25  # of a log-gap
# Student's t at 1 - CHANCE, for a degree of freedom for two of up to `_WINDOW` values: a median
# deviation uses a part of them. Here as numbers, since to compute them takes longer than all else.
T_LIMITS = (3183.1, 70.70, 22.20, 13.03, 9.678, 8.025, 7.063, 6.442, 6.010, 5.694)


@dataclass(frozen=True)
class EngineGap:
    """An `engine` ("engines": those that are not told apart) over versions with enough samples.
    `gap_nats` is the median, `last_nats` that of the `LAST`; `growth`, over the run, is of those
    that did not depart. `lost_tokens` is what it costs: tokens less their effective sample size."""

    engine: str
    versions: int
    tokens: int
    gap_nats: float
    last_nats: float
    growth: Interval
    lost_tokens: float


@dataclass(frozen=True)
class Departure:
    """From `version` on, trained on in `step`, an `engine` (None: all of them) has a gap of `nats`
    instead of `usual_nats`, for so many `versions`; `until_version` has the usual one again (None:
    none yet). `first`: it is so in all versions, and what is usual is the other engines' (NaN: it
    is so for all). `cut`: in no sample does Σw exceed the tokens, as where the engine samples from
    a part of the distribution. `step` is -1 where it is not known."""

    engine: str | None
    version: int
    step: int
    nats: float
    usual_nats: float
    versions: int
    until_version: int | None
    first: bool
    cut: bool


@dataclass(frozen=True)
class EngineGaps:
    """Of samples that are `lag` versions old (-1: none has both an engine and ratios; `needs` are
    settings of the framework with which they would). `alone`: no movement of the policy is in the
    gaps; only then a departure of all engines can be told."""

    lag: int
    alone: bool
    engines: tuple[EngineGap, ...] = ()
    departures: tuple[Departure, ...] = ()
    needs: str = ""


@np.errstate(all="ignore")  # a job may state sums of any size
def engine_gaps(analysis: RunAnalysis) -> EngineGaps:
    updates = updates_in_ratios(analysis.run)
    rows = _rows(analysis.run, 1.0 if math.isnan(updates) else updates)
    if not len(rows):
        told = analysis.freshness.overall is not None
        return EngineGaps(-1, False, needs="" if told else _needs(analysis.run))
    lags, n = np.unique(rows[:, 1], return_counts=True)
    lag = lags[n >= n.max() / 2][0]  # the least with at least half as many rows as any
    rows = rows[rows[:, 1] == lag]
    alone = bool(lag == 0) and not math.isnan(updates)
    versions, at = np.unique(rows[:, 0], return_inverse=True)
    engines, of = np.unique(rows[:, 2], return_inverse=True)
    cells = np.full((rows.shape[1] - 3, len(versions), len(engines)), np.nan)
    cells[:, at, of] = rows[:, 3:].T
    names = _engines(analysis.run)
    grid = _Grid(versions, [names.get(int(one), "engines") for one in engines], *cells)
    found = tuple(grid.departures(alone))
    gaps = tuple(grid.gap_of(i, found) for i in range(len(engines)))
    return EngineGaps(int(lag), alone, gaps, found)


def _rows(run: OpenedRun, updates: float) -> Floats:
    """By version that generated, lag, and engine: first step, samples, tokens, sums."""
    first = _SQL["first_update"].format(part=1 / updates) if updates > 1 else ""
    known = ", ".join(map(str, (-1, *_engines(run))))
    trained = int(Fate.TRAINED)
    found = run.ask(_SQL["sums_of_ratios"].format(engines=known, first=first, trained=trained))
    return np.array(found, np.float64).reshape(-1, 14)


def _engines(run: OpenedRun) -> dict[int, str]:
    """By process. Agent loops and trainers ask engines for samples, and do not say which."""
    found = [one for one in run.processes if one.role == "rollout"]
    return {one.number: f"rollout {one.pid if one.rank is None else one.rank}" for one in found}


def _needs(run: OpenedRun) -> str:
    """Engines return log-probs, and the learner computes its own, where it corrects for the lag."""
    job = known_job(run)
    correction = next(move for move in moves() if move.move == "correct for the lag")
    for one in settings_for(job.framework, job.version, correction):
        if one.is_of(job.stated, job.current) and one.is_in(job.config):
            needed = one.needs or {one.option: one.value}
            lacking = {k: v for k, v in needed.items() if job.current.get(k) != v}
            return printed(job.framework, lacking) if lacking else ""
    return ""


@dataclass(frozen=True, eq=False)
class _Grid:
    """A row for each version, a column for each engine; NaN where there is no sample."""

    versions: Floats
    engines: list[str]
    step: Floats
    samples: Floats
    tokens: Floats
    nats: Floats
    roots: Floats
    weighted_roots: Floats
    weighted_nats: Floats
    squares: Floats
    w: Floats
    w_squared: Floats
    above: Floats

    def levels(self) -> tuple[Floats, Floats]:
        """The logarithm of the gap that is tested, and its standard error over samples."""
        root = self.roots / self.tokens
        off = self.weighted_nats - 2 * root * self.weighted_roots + root**2 * self.squares
        error = np.sqrt(np.maximum(off, 0)) / self.tokens
        least = math.sqrt(LEAST_NATS)
        known = np.where(self.samples >= _FEWEST_SAMPLES, np.maximum(root, least), np.nan)
        return 2 * np.log(known), 2 * error / known

    def gap_of(self, i: int, departures: Iterable[Departure]) -> EngineGap:
        known = np.flatnonzero(self.samples[:, i] >= _FEWEST_SAMPLES)
        nats, at = self.nats[known, i] / self.tokens[known, i], self.versions[known]
        usual = np.ones(len(at), bool)
        for one in departures:
            if one.engine in (None, self.engines[i]):
                until = np.inf if one.until_version is None else one.until_version
                usual &= (at < one.version) | (at >= until)
        x, y = at[usual] - self.versions[0], np.log(np.maximum(nats[usual], LEAST_NATS))
        line = fit(np.stack((np.ones(len(x)), x), 1), y)
        slope = line.combined((0, self.versions[-1] - self.versions[0])) if line else UNKNOWN
        tokens, w, squares = (np.nansum(one[:, i]) for one in (self.tokens, self.w, self.w_squared))
        return EngineGap(
            engine=self.engines[i],
            versions=len(known),
            tokens=int(tokens),
            gap_nats=float(np.median(nats)) if len(nats) else math.nan,
            last_nats=float(np.median(nats[-LAST:])) if len(nats) else math.nan,
            growth=factor(slope.value, slope.half_width),
            lost_tokens=float(tokens - w * w / squares) if squares > 0 else math.nan,
        )

    def departures(self, alone: bool) -> list[Departure]:
        level, error = self.levels()
        own, beside = _Excess.of(level, error), _Excess.of(level - _least_other(level), error)
        least = np.min(np.where(np.isnan(level), np.inf, level), axis=1, keepdims=True)
        least[np.isinf(least)] = np.nan
        together = _Excess.of(least, np.nanmax(error, axis=1, keepdims=True, initial=0.0))
        everybody = together.sure[:, 0] & (together.jump[:, 0] > _LEAST_JUMP) & alone
        found = self._episodes(None, everybody, together, least)
        for i in range(len(self.engines)) if len(self.engines) > 1 else ():
            sure = beside.sure[:, i] & (own.jump[:, i] > _LEAST_JUMP) & ~everybody
            found += self._episodes(i, sure, beside, level) or self._from_the_first(
                i, beside.values[:, i], _LEAST_BESIDE, level[:, i]
            )
        if alone and not found:
            found = self._from_the_first(None, least[:, 0], math.log(LARGE_NATS), least[:, 0])
        return sorted(found, key=lambda one: (one.version, one.engine or ""))

    def _episodes(
        self, engine: int | None, sure: NDArray[np.bool_], excess: _Excess, level: Floats
    ) -> list[Departure]:
        """From each version that surely departs to the one that is nearer to what was usual."""
        i, until = engine or 0, 0
        jump, values, found = excess.jump[:, i], excess.values[:, i], []
        for begin in map(int, np.flatnonzero(sure)):
            if begin >= until:
                back = np.flatnonzero(values[begin:] < values[begin] - jump[begin] / 2)
                until = begin + int(back[0]) if len(back) else len(values)
                usual = math.exp(level[begin, i] - jump[begin])
                found.append(self._departure(engine, begin, until, usual))
        return found

    def _from_the_first(
        self, engine: int | None, above: Floats, enough: float, level: Floats
    ) -> list[Departure]:
        """Where nearly all versions are `enough` above the others, or above what is explained."""
        known = np.flatnonzero(~np.isnan(above))
        if len(known) < _FEWEST or np.quantile(above[known], 0.1) < enough:
            return []
        others = math.nan if engine is None else math.exp(np.median((level - above)[known]))
        return [self._departure(engine, int(known[0]), len(level), others, first=True)]

    def _departure(
        self, engine: int | None, begin: int, until: int, usual: float, first: bool = False
    ) -> Departure:
        part = slice(begin, until), slice(None) if engine is None else slice(engine, engine + 1)
        tokens, nats, above = (np.nansum(one[part]) for one in (self.tokens, self.nats, self.above))
        return Departure(
            engine=None if engine is None else self.engines[engine],
            version=int(self.versions[begin]),
            step=int(np.nanmin(self.step[begin])),
            nats=float(nats / tokens),
            usual_nats=usual,
            versions=until - begin,
            until_version=int(self.versions[until]) if until < len(self.versions) else None,
            first=first,
            cut=not above,
        )


def _least_other(level: Floats) -> Floats:
    """For each engine and version, the least level of the others; NaN where there is none."""
    if level.shape[1] < 2:
        return np.full_like(level, np.nan)
    high = np.where(np.isnan(level), np.inf, level)
    two = np.partition(high, 1, axis=1)[:, :2]
    least = np.where(high == two[:, :1], two[:, 1:], two[:, :1])
    return np.where(np.isinf(least), np.nan, least)


@dataclass(frozen=True, eq=False)
class _Excess:
    """How far `values` are above what was usual before them, and where that is no chance."""

    values: Floats
    jump: Floats
    sure: NDArray[np.bool_]

    @classmethod
    def of(cls, values: Floats, error: Floats) -> _Excess:
        padded = np.vstack((np.full((_WINDOW, values.shape[1]), np.nan), values[:-1]))
        before = sliding_window_view(padded, _WINDOW, axis=0)
        rows = max(1, _AT_ONCE // values.shape[1])
        parts = [_usual(before[row : row + rows]) for row in range(0, len(values), rows)]
        usual, limit = map(np.concatenate, zip(*parts, strict=True))
        # What is known of the spread beforehand is not learnt from few versions.
        known = NormalDist().inv_cdf(1 - CHANCE) * np.maximum(error, _LEAST_SPREAD)
        jump = values - usual
        return cls(values, jump, jump > np.maximum(limit, known))


def _usual(before: Floats) -> tuple[Floats, Floats]:
    """What is usual for each engine by the versions before, `[versions, engines, window]`, and how
    far above that is no chance. An engine that came later than others is held against them."""
    of_all = before.reshape(len(before), 1, -1)
    (own, n), (all_, n_of_all) = _median(before), _median(of_all)
    off, _ = _median(np.abs(before - own[:, :, None]).reshape(of_all.shape))
    off_all, _ = _median(np.abs(of_all - all_[:, :, None]))
    few, none = n < _FEWEST, n.max(axis=1, keepdims=True) < _FEWEST
    usual = np.where(few, np.where(none, np.nan, all_), own)
    n = np.where(few, n_of_all, n).clip(1, _WINDOW)
    spread = 1.4826 * np.where(few, off_all, off) * n / (n - 0.8) * np.sqrt(1 + 1 / n)
    return usual, np.array(T_LIMITS)[np.maximum(n // 2, 1) - 1] * spread


def _median(values: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Over the last axis, of what is known, and how much that is."""
    n = (~np.isnan(values)).sum(axis=-1)
    ordered = np.sort(values, axis=-1)  # NaN last
    low, high = np.maximum(n - 1, 0) // 2, np.maximum(n, 1) // 2
    ends = (np.take_along_axis(ordered, at[..., None], -1)[..., 0] for at in (low, high))
    return np.add(*ends) / 2, n
