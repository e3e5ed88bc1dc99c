"""Samples of a run that is being followed, from their generation to their fate, each counted once.

The rules are those of `rltrace.analysis.samples` and `goodput`, one row after the other. What the
learner did is held back until the rows that it is about have surely been read. Of samples and
groups only the latest are remembered: whoever meets the learner later than that is of unknown lag.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.codes import named
from rltrace.analysis.intervals import Bools
from rltrace.analysis.meters import distribution
from rltrace.trace.follow import Rows
from rltrace.trace.vocabulary import Fate, Finish, Outcome

_REMEMBERED = 1 << 18
_HELD_NS = 3 * 10**9

_Row = dict[str, Any]


@dataclass(slots=True)
class _Sample:
    """A sample as far as it is known; -1: unknown."""

    group: int = -1
    start_ns: int = -1
    first_version: int = -1
    tokens: int = 0
    trained_tokens: int = -1
    is_useful: bool = False
    generated: bool = False
    met: bool = False


@dataclass(slots=True)
class _Rewards:
    """The rewards of one component in a group: do they differ, between several samples, and are
    they numbers? `samples` are all that have one where the component has a weight, else two."""

    least: float = math.inf
    most: float = -math.inf
    numbers: bool = True
    samples: set[int] = field(default_factory=set)

    def add(self, trajectory: int, value: float, weighted: bool) -> None:
        """One more; NaN: it was given as that."""
        if weighted or len(self.samples) < 2:
            self.samples.add(trajectory)
        self.numbers &= not math.isnan(value)
        self.least, self.most = min(self.least, value), max(self.most, value)

    def signal(self, weight: float | None, judged: int) -> bool | None:
        """Whether they differ; None where fewer than two samples were judged. With a weight, those
        of the `judged` samples of the group that have none have a reward of 0."""
        if (len(self.samples) if weight is None else judged) < 2:
            return None
        if weight == 0 or not self.numbers:
            return False
        if weight is not None and len(self.samples) < judged:
            return max(self.most, 0) > min(self.least, 0)
        return self.most > self.least


class SampleMeter:
    """Counts of trajectories by `finish`, verdicts by `outcome`, samples by `fate`; tokens.
    `lag_budget` is the largest lag, in policy versions, at which a token counts as useful;
    `waiting_since_ns` says when each sample ended that the learner has not met. `weights` are those
    of the components of the reward that have one (`rltrace.trace.signals`)."""

    def __init__(self, lag_budget: float = math.inf) -> None:
        self.finishes: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.fates: Counter[str] = Counter()
        self.generated_tokens: Counter[int] = Counter()
        self.trajectory_s = distribution.Distribution(distribution.TRAJECTORY_S)
        self.response_tokens = distribution.Distribution(distribution.RESPONSE_TOKENS)
        self.verdict_s = distribution.Distribution(distribution.VERDICT_S)
        self.lag = distribution.Distribution(distribution.LAG_VERSIONS)
        self.unknown_lags = 0
        self.trained_tokens = 0
        self.useful_tokens = 0
        self.lag_budget = lag_budget
        self.waiting_since_ns: dict[int, int] = {}
        self.weights: Mapping[int, float] = {}
        self._samples: dict[int, _Sample] = {}
        self._groups: dict[int, dict[int, _Rewards]] = {}
        self._over_ns: dict[int, int] = {}  # when a sample of the group was first trained on
        self._held: list[tuple[int, Rows, Rows]] = []
        self._looked = False

    def add(self, complete: Mapping[str, Rows], now_ns: int, final: bool) -> None:
        """Takes in rows by table. `final`: nothing is held back any longer."""
        for row in _each(
            complete["trajectories"],
            *("trajectory", "group", "first_version", "response_tokens", "finish"),
            *("start_ns", "end_ns", "process"),
        ):
            self._generated(row)
        rewards, uses = complete["rewards"], complete["uses"]
        if not self._looked:  # and at the first look, only what has just happened
            self._looked = True
            just_ns = now_ns - _HELD_NS
            self._met(
                rewards.where(rewards["end_ns"] <= just_ns), uses.where(uses["time_ns"] <= just_ns)
            )
            rewards = rewards.where(rewards["end_ns"] > just_ns)
            uses = uses.where(uses["time_ns"] > just_ns)
        if len(rewards) or len(uses):
            self._held.append((now_ns, rewards, uses))
        while self._held and (final or self._held[0][0] <= now_ns - _HELD_NS):
            self._met(*self._held.pop(0)[1:])
        _forget(self.waiting_since_ns)
        _forget(self._samples)
        _forget(self._groups)
        _forget(self._over_ns)

    def _met(self, rewards: Rows, uses: Rows) -> None:
        """Takes in verdicts and uses. A verdict comes before a use unless its sample began after
        it: the group's id has then come again."""
        columns = ("trajectory", "component", "value", "outcome", "start_ns", "end_ns")
        judged = [(self._began_ns(row), self._judged, row) for row in _each(rewards, *columns)]
        used = [
            (row["time_ns"], self._used, row)
            for row in _each(uses, "trajectory", "version", "fate", "tokens", "time_ns")
        ]
        for _, take, row in sorted(judged + used, key=itemgetter(0)):
            take(row)

    def _began_ns(self, row: _Row) -> int:
        sample = self._samples.get(row["trajectory"])
        return -1 if sample is None else sample.start_ns

    def _generated(self, row: _Row) -> None:
        tokens = row["response_tokens"]
        sample = self._sample(row["trajectory"])
        if not sample.generated:
            sample.generated, sample.start_ns = True, row["start_ns"]
            if row["trajectory"] != -1 and not sample.met:
                self.waiting_since_ns[row["trajectory"]] = row["end_ns"]
            self.finishes[named(Finish, row["finish"])] += 1
            self.trajectory_s.add([max(row["end_ns"] - row["start_ns"], 0) / 1e9])
            if tokens >= 0:
                self.response_tokens.add([tokens])
        known_groups = [group for group in (sample.group, row["group"]) if group != -1]
        sample.group = max(known_groups, default=-1)  # ids may be negative
        known = [v for v in (sample.first_version, row["first_version"]) if v >= 0]
        sample.first_version = min(known, default=-1)
        if tokens > sample.tokens:
            self.generated_tokens[row["process"]] += tokens - sample.tokens
            sample.tokens = tokens

    def _judged(self, row: _Row) -> None:
        self.outcomes[named(Outcome, row["outcome"])] += 1
        if row["end_ns"] > row["start_ns"]:
            self.verdict_s.add([(row["end_ns"] - row["start_ns"]) / 1e9])
        sample = self._samples.get(row["trajectory"])
        value = row["value"]
        if sample is None or sample.group == -1:
            return
        if math.isnan(value) and not given_nan(np.array(value), np.array(row["outcome"])):
            return
        if sample.start_ns > self._over_ns.get(sample.group, sample.start_ns):
            del self._over_ns[sample.group]
            self._groups.pop(sample.group, None)
        components = self._groups.setdefault(sample.group, {})
        seen = components.setdefault(row["component"], _Rewards())
        seen.add(row["trajectory"], value, row["component"] in self.weights)

    def _used(self, row: _Row) -> None:
        self.waiting_since_ns.pop(row["trajectory"], None)
        sample = self._sample(row["trajectory"])
        if row["fate"] != Fate.TRAINED:
            if not sample.met:
                self.fates[named(Fate, row["fate"])] += 1
            sample.met = True
            return
        if sample.group != -1:
            self._over_ns.setdefault(sample.group, row["time_ns"])
        if sample.trained_tokens < 0:
            self._first_trained(sample, row["version"])
        tokens = row["tokens"] if row["tokens"] >= 0 else sample.tokens
        more = max(tokens - sample.trained_tokens, 0)
        self.trained_tokens += more
        self.useful_tokens += more if sample.is_useful else 0
        sample.trained_tokens += more

    def _sample(self, trajectory: int) -> _Sample:
        """The sample of an id; one of its own for each row without an id."""
        sample = self._samples.get(trajectory)
        if sample is None:
            sample = _Sample()
            if trajectory != -1:
                self._samples[trajectory] = sample
        return sample

    def _first_trained(self, sample: _Sample, version: int) -> None:
        self.fates[named(Fate, Fate.TRAINED)] += 1
        sample.met, sample.trained_tokens = True, 0
        fresh = True
        if version >= 0 and sample.first_version >= 0:
            lag = version - sample.first_version
            self.lag.add([lag])
            fresh = lag <= self.lag_budget
        else:
            self.unknown_lags += 1
        sample.is_useful = fresh and self._signal(sample.group) is not False

    def _signal(self, group: int) -> bool | None:
        """Whether the rewards of a group differ; None where fewer than two samples were judged."""
        components = self._groups.get(group, {})
        weighted = [r.samples for c, r in components.items() if c in self.weights]
        judged = len(set().union(*weighted))
        signals = [r.signal(self.weights.get(c), judged) for c, r in components.items()]
        known = [signal for signal in signals if signal is not None]
        return any(known) if known else None


def _each(rows: Rows, *columns: str) -> list[_Row]:
    """Rows as dicts of plain numbers, in the order in which they were stored."""
    values = [rows[column].tolist() for column in columns]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def _forget(remembered: dict[int, Any]) -> None:
    """Drops the oldest of what is too many."""
    if len(remembered) > _REMEMBERED:
        for key in list(islice(remembered, len(remembered) - _REMEMBERED)):
            del remembered[key]


# --- verdicts that are NaN because the job gave that, told from those that nobody knows
# An unknown float is a NaN of all ones in the trace; one that was computed, or written
# `float("nan")`, has other bits. A group with such a verdict teaches nothing: its mean is NaN, and
# so is the advantage of each of its samples.

_UNKNOWN = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


def given_nan(value: NDArray[Any], outcome: NDArray[Any]) -> Bools:
    """Which verdicts of columns (`value` is float64) did not fail, and are a NaN that the job gave;
    `rltrace.trace.signals.GIVEN_NAN` is that in SQL."""
    bits = np.ascontiguousarray(value, np.float64).view(np.uint64)
    given: Bools = (outcome == Outcome.OK) & np.isnan(value) & (bits != _UNKNOWN)
    return given
