"""Samples followed from their generation to their fate, over rows that were kept.

The same as `rltrace.analysis.samples` says in SQL (and a test holds the two together): a sample is
counted once however often its id was recorded, and rows without an id (-1) each count as a sample.
Its lag counts once for each version that trained on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.goodput import Trained
from rltrace.analysis.intervals import Bools, Ints
from rltrace.analysis.live.snapshot import Lags
from rltrace.analysis.meters.samples import given_nan
from rltrace.trace.follow import Rows
from rltrace.trace.regrouped import ADVANTAGE_KNOWN, GroupedSample, told_apart
from rltrace.trace.vocabulary import Fate

_LARGEST = np.int64(np.iinfo(np.int64).max)  # a Python int would be cut to a column's width
_SMALLEST = np.int64(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class Samples:
    """One place for each sample that was generated, in the order of their ids (unknown ones, -1,
    included); -1: not known. `end_ns` is the last of its ends, `start_ns` the first start."""

    id: Ints
    group: Ints
    first_version: Ints
    tokens: Ints
    start_ns: Ints
    end_ns: Ints

    def place(self, ids: Ints) -> Ints:
        """Where samples are; -1 for one that is not there, or has no id."""
        at = np.searchsorted(self.id, ids)
        at = np.minimum(at, max(len(self.id) - 1, 0))
        found = (self.id[at] == ids) & (ids != -1) if len(self.id) else np.zeros(len(ids), np.bool_)
        return np.where(found, at, -1)


@dataclass(frozen=True)
class Fates:
    """One place for each sample that a learner met: when it first did, under which version it was
    first trained on, its fate (smallest code: trained on at any time is trained on), its tokens and
    its place in the `Samples`; -1: not known."""

    time_ns: Ints
    version: Ints
    fate: Ints
    tokens: Ints
    place: Ints


def samples_of(rows: Rows) -> Samples:
    """The samples of rows of `trajectories`."""
    order, first = _by_id(rows["trajectory"])

    def largest(column: str) -> Ints:
        return _reduced(np.maximum, rows[column], order, first)

    version = np.where(rows["first_version"] == -1, _LARGEST, rows["first_version"])
    earliest = _reduced(np.minimum, version, order, first)
    groups = np.where(rows["group"] == -1, _SMALLEST, rows["group"])  # ids may be negative
    group = _reduced(np.maximum, groups, order, first)
    return Samples(
        id=rows["trajectory"][order][first].astype(np.int64),
        group=np.where(group == _SMALLEST, -1, group),
        first_version=np.where(earliest == _LARGEST, -1, earliest),
        tokens=largest("response_tokens"),
        start_ns=_reduced(np.minimum, rows["start_ns"], order, first),
        end_ns=largest("end_ns"),
    )


def regrouped(samples: Samples, uses: Rows, starts: list[int]) -> Samples:
    """The samples with their groups told apart, where an id comes again
    (`rltrace.trace.regrouped`). `starts`: when the steps began (Unix ns, in order)."""
    place = samples.place(uses["trajectory"])
    mine = place >= 0
    known_ns, first_use = (np.full(len(samples.id), _LARGEST) for _ in range(2))
    last_use = np.full(len(samples.id), -1, np.int64)
    known = mine & np.isin(uses["fate"], ADVANTAGE_KNOWN)
    np.minimum.at(known_ns, place[known], uses["time_ns"][known])
    stepped = mine & (uses["step"] >= 0)
    np.minimum.at(first_use, place[stepped], uses["step"][stepped])
    np.maximum.at(last_use, place[stepped], uses["step"][stepped])

    grouped = np.flatnonzero((samples.group != -1) & (samples.id != -1))
    grouped = grouped[np.lexsort((samples.start_ns[grouped], samples.group[grouped]))]
    if not len(grouped):
        return samples
    first = np.flatnonzero(_changes(samples.group[grouped]))
    sizes = np.diff(np.append(first, len(grouped)))
    start_ns = samples.start_ns[grouped]
    over_ns = np.maximum(start_ns, samples.end_ns[grouped])
    of_group = np.repeat(np.arange(len(first)), sizes)
    after_all = _after_all_before(of_group, start_ns, over_ns)
    again = np.maximum.reduceat(start_ns, first) > np.minimum.reduceat(known_ns[grouped], first)
    again |= np.logical_or.reduceat(after_all, first)

    def given(value: np.int64, none: np.int64 | int) -> int | None:
        return None if value == none else int(value)

    changed = told_apart(
        [
            GroupedSample(
                trajectory=int(i),
                group=int(samples.group[i]),
                began_ns=int(samples.start_ns[i]),
                ended_ns=int(samples.end_ns[i]),
                version=given(samples.first_version[i], -1),
                known_ns=given(known_ns[i], _LARGEST),
                first_use=given(first_use[i], _LARGEST),
                last_use=given(last_use[i], -1),
            )
            for i in grouped[np.repeat(again, sizes)]
        ],
        lambda: starts,
        sizes[~again].tolist,
    )
    group = samples.group.copy()
    for i, key, _ in changed:
        group[i] = key
    return replace(samples, group=group)


def _after_all_before(group: Ints, start_ns: Ints, over_ns: Ints) -> Bools:
    """Whether each begins once all before it in its group are over; not the first. Groups are 0, 1,
    ... and in order."""
    moments, rank = np.unique(over_ns, return_inverse=True)
    latest = np.maximum.accumulate(group * len(moments) + rank) - group * len(moments)
    same = group[1:] == group[:-1]
    return np.append(False, same & (start_ns[1:] >= moments[latest[:-1].clip(0)]))


def fates_of(rows: Rows, samples: Samples) -> Fates:
    """The fates of samples, from rows of `uses`."""
    order, first = _by_id(rows["trajectory"])
    time, fate = rows["time_ns"], np.where(rows["fate"] == -1, 127, rows["fate"])
    # The version of the earliest row that was trained on: the first one, sorted by time.
    trained = np.where(rows["fate"] == Fate.TRAINED, time, _LARGEST)
    by_time = np.lexsort((trained, _numbered(first, order)))
    earliest = by_time[first] if len(first) else by_time
    met = trained[earliest] != _LARGEST
    smallest = _reduced(np.minimum, fate, order, first)
    return Fates(
        time_ns=_reduced(np.minimum, time, order, first),
        version=np.where(met, rows["version"][earliest], -1).astype(np.int64),
        fate=np.where(smallest == 127, -1, smallest),
        tokens=_reduced(np.maximum, rows["tokens"], order, first),
        place=samples.place(rows["trajectory"][order][first].astype(np.int64)),
    )


@dataclass(frozen=True)
class TrainedSamples:
    """What was trained on, a place for each sample. `signal` is 1 where the rewards of its group
    differ, 0 where not; -1: not known. `known_lag`: whether the version is that trained on it
    first, and the one of its first token."""

    time_ns: Ints
    tokens: Ints
    signal: Ints
    known_lag: Bools


def trained_samples(
    samples: Samples, fates: Fates, rewards: Rows, weights: Mapping[int, float]
) -> TrainedSamples:
    """The samples that were trained on. `weights` are those of the components that have one."""
    mine = np.flatnonzero(fates.fate == Fate.TRAINED)
    place = fates.place[mine]
    known = place >= 0
    tokens = fates.tokens[mine]
    tokens = np.where((tokens == -1) & known, _at(samples.tokens, place), tokens)
    version, first = fates.version[mine], np.where(known, _at(samples.first_version, place), -1)
    group = np.where(known, _at(samples.group, place), -1)
    groups, differs = _signals(samples, rewards, weights)
    at = np.minimum(np.searchsorted(groups, group), max(len(groups) - 1, 0))
    judged = (_at(groups, at) == group) & (group != -1) if len(groups) else np.zeros_like(known)
    return TrainedSamples(
        time_ns=fates.time_ns[mine],
        tokens=np.maximum(tokens, 0),
        signal=np.where(judged, _at(differs, at), -1),
        known_lag=(version >= 0) & (first >= 0),
    )


@dataclass(frozen=True)
class TrainedLags:
    """The lag from the first token of each sample and version that trained on it, when it first
    did; `known` false: not known."""

    time_ns: Ints
    lag: Ints
    known: Bools


def trained_lags(samples: Samples, uses: Rows) -> TrainedLags:
    """The lags of what was trained on, from rows of `uses`."""
    mine = np.flatnonzero(uses["fate"] == Fate.TRAINED)
    ids, version, time_ns = (
        uses[name][mine].astype(np.int64) for name in ("trajectory", "version", "time_ns")
    )
    order = np.lexsort((time_ns, version, ids))
    ids, version, time_ns = ids[order], version[order], time_ns[order]
    kept = _changes(ids, version) | (ids == -1) if len(ids) else np.zeros(0, np.bool_)
    version, place = version[kept], samples.place(ids[kept])
    first = np.where(place >= 0, _at(samples.first_version, place), -1)
    return TrainedLags(time_ns[kept], version - first, (version >= 0) & (first >= 0))


def trained_between(trained: TrainedSamples, since_ns: int, until_ns: int) -> Trained:
    """What was trained on between two moments, both included; no lag is over the budget here."""
    within = (trained.time_ns >= since_ns) & (trained.time_ns <= until_ns)
    tokens, signal = trained.tokens[within], trained.signal[within]
    return Trained(
        samples=int(within.sum()),
        tokens=int(tokens.sum()),
        zero_advantage_tokens=int(tokens[signal == 0].sum()),
        unknown_advantage_tokens=int(tokens[signal == -1].sum()),
        over_lag_budget_tokens=0,
        unknown_lag_tokens=int(tokens[~trained.known_lag[within]].sum()),
        useful_tokens=int(tokens[signal != 0].sum()),
        useful_known_tokens=int(tokens[signal == 1].sum()),
    )


def lags_between(trained: TrainedLags, since_ns: int, until_ns: int) -> Lags | None:
    """The lags between two moments, both included; None where nothing was trained on."""
    within = (trained.time_ns >= since_ns) & (trained.time_ns <= until_ns)
    if not within.any():
        return None
    known = within & trained.known
    lags = np.sort(trained.lag[known])
    values, counts = np.unique(lags, return_counts=True)
    bars: list[tuple[int | None, int]] = [
        (int(lag), int(n)) for lag, n in zip(values, counts, strict=True)
    ]
    if known.sum() < within.sum():
        bars.append((None, int(within.sum() - known.sum())))
    n = len(lags)
    return Lags(
        mean=float(lags.mean()) if n else float("nan"),
        # The smallest lag that at least 95 % do not exceed, as in the report.
        p95=float(lags[max(int(np.ceil(0.95 * n)) - 1, 0)]) if n else float("nan"),
        largest=int(lags[-1]) if n else -1,
        by_lag=tuple(bars),
    )


def _signals(samples: Samples, rewards: Rows, weights: Mapping[int, float]) -> tuple[Ints, Ints]:
    """`(groups with at least two judged samples, whether the rewards of each differ)`, as
    `rltrace.trace.signals` says."""
    place = samples.place(rewards["trajectory"])
    value = rewards["value"]
    group = np.where(place >= 0, _at(samples.group, place), -1)
    known = ~np.isnan(value) | given_nan(value, rewards["outcome"])
    kept = np.flatnonzero((group != -1) & known)
    if not len(kept):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    group, component, place = group[kept], rewards["component"][kept], place[kept]
    order = np.lexsort((place, component, group))
    group, component, place = group[order], component[order], place[order]
    new_pair = _changes(group, component)
    first = np.flatnonzero(new_pair)
    value = value[kept][order]
    least, most = np.minimum.reduceat(value, first), np.maximum.reduceat(value, first)
    judged = np.add.reduceat((new_pair | _changes(place)).astype(np.int64), first)
    if weights:
        has_weight = np.isin(component, list(weights))
        stated, everywhere = has_weight[first], _judged_by(has_weight, group, place)[first]
        lacking = stated & (judged < everywhere)
        least = np.where(lacking, np.minimum(least, 0), least)
        most = np.where(lacking, np.maximum(most, 0), most)
        judged = np.where(stated, everywhere, judged)
        nothing = np.isin(component[first], [c for c, weight in weights.items() if not weight])
        most = np.where(nothing, least, most)
    differs, many = most > least, judged > 1
    pair_group, differs = group[first][many], differs[many]
    if not len(pair_group):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    begins = np.flatnonzero(_changes(pair_group))
    return pair_group[begins], np.maximum.reduceat(differs.astype(np.int64), begins)


def _judged_by(stated: Bools, group: Ints, place: Ints) -> Ints:
    """By row, how many samples of its group have a row that is `stated`. Groups are in order."""
    order = np.lexsort((place[stated], group[stated]))
    of_stated = group[stated][order]
    once = _changes(of_stated, place[stated][order])
    groups, count = np.unique(of_stated[once], return_counts=True)
    if not len(groups):
        return np.zeros(len(group), np.int64)
    at = np.minimum(np.searchsorted(groups, group), len(groups) - 1)
    return np.where(groups[at] == group, count[at], 0)


def _by_id(ids: NDArray[Any]) -> tuple[Ints, Ints]:
    """`(order by id, place in it of the first row of each)`; rows without an id are all apart."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    begins = _changes(ordered) | (ordered == -1)
    return order, np.flatnonzero(begins)


def _numbered(first: Ints, order: Ints) -> Ints:
    """By row, the number of its sample in `_by_id`."""
    begins = np.zeros(len(order), np.int64)
    begins[first] = 1
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(begins) - 1
    return numbers


def _changes(*columns: NDArray[Any]) -> Bools:
    changed = np.ones(len(columns[0]), np.bool_)
    changed[1:] = False
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return changed


def _reduced(how: np.ufunc, column: NDArray[Any], order: Ints, first: Ints) -> Ints:
    if not len(first):
        return np.empty(0, np.int64)
    reduced: Ints = how.reduceat(column[order].astype(np.int64), first)
    return reduced


def _at(values: Ints, place: Ints) -> Ints:
    """The values at places; whatever where there are none."""
    return values[place] if len(values) else np.full(len(place), -1, np.int64)
