"""Samples of a run that goes on, counted as in the report."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from time import monotonic, thread_time
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.figures.goodput import trained_in
from rltrace.analysis.live.recent_rows import GENERATED, NEVER_NS, Kept, KeptTables, columns_of
from rltrace.analysis.timeline.intervals import Ints
from rltrace.analysis.trajectories.staleness import LAG_OF_USES
from rltrace.trace.read.run_follower import Rows
from rltrace.trace.schema import EVENT_TABLES, OF_ONE_SAMPLE
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Fate, Finish, Outcome, Stage, named

if TYPE_CHECKING:
    from rltrace.analysis.live.followed_run import Watched


_REMEMBERED = 1 << 17
_FEWEST = 1 << 12
STEPS_BACK = 32  # a sample may have been generated this many steps before it is trained on
_FATES = "select coalesce(fate, -1)::bigint as fate from sample_lives where is_met"
_WAITING = """select end_ns from sample_lives
    where is_generated and not is_met and trajectory is not null"""

_TELLING = (int(Stage.EVAL), int(Stage.VALUE))  # whose samples they are, and of what use

_Counts = Counter[tuple[str, int]]


class SampleMeter:
    """Samples that were generated, by what ended them (`finishes`), and that met the learner, by
    what became of them (`fates`): the report's queries over the latest rows, and what older ones
    had added. Of the samples that ended before the last 32 steps and the last 2^12 samples, or
    before the last 2^16, nothing is remembered: whoever meets the learner later than that is of
    unknown lag. Counts never fall.

    `generated_tokens` are response tokens by process; tokens are `useful_tokens` up to a lag of
    `lag_budget` policy versions. `trajectory_s` and `response_tokens` are of each sample, `lag` of
    each version that a sample was trained on under (`unknown_lags`: how many nobody can tell).
    `outcomes` and `verdict_s` are of rewards (seconds, if any); `sparing` as in `LiveState`."""

    def __init__(self, lag_budget: float, sparing: float) -> None:
        self.lag_budget = lag_budget
        self._sparing = sparing
        self._not_before_s = -math.inf
        self.outcomes: Counter[str] = Counter()
        self.verdict_s = Histogram(bounds_of("verdict_s"))
        self._kept = {name: Kept(EVENT_TABLES[name]) for name in (*OF_ONE_SAMPLE, "spans")}
        self._latest_ns = self._counted_ns = -1
        self._is_new = False
        self._dropped: _Counts = Counter()
        self._counts: _Counts = Counter()
        self._waiting_since_ns: Ints = np.zeros(0, np.int64)
        self._tell()

    def add(self, complete: Mapping[str, Rows]) -> None:
        spans = complete["spans"]
        of_samples = {**complete, "spans": spans.where(np.isin(spans["stage"], _TELLING))}
        for name, kept in self._kept.items():
            if len(rows := of_samples[name]):
                kept.add(rows)
                self._latest_ns = max(self._latest_ns, int(rows[kept.end].max()))
                self._is_new = True
        rewards = complete["rewards"]
        for code, n in zip(*np.unique(rewards["outcome"], return_counts=True), strict=True):
            self.outcomes[named(Outcome, int(code))] += int(n)
        length_ns = rewards["end_ns"] - rewards["start_ns"]
        self.verdict_s.add(length_ns[length_ns > 0] / 1e9)

    def count(self, run: Watched, until_ns: int, final: bool) -> None:
        """Counts what was generated, and what became of it until a moment; `final`: at once."""
        counted = not self._is_new and self._counted_ns >= min(self._latest_ns, until_ns)
        if counted or (not final and monotonic() < self._not_before_s):
            return
        began_s = thread_time()
        found = self._found(run, until_ns)
        self._counts |= self._dropped + found
        if self._too_many(run.step_starts_ns, until_ns):
            self._dropped.update(found)
            self._dropped.subtract(self._found(run, until_ns))
        self._tell()
        self._is_new, self._counted_ns = False, until_ns
        self._not_before_s = monotonic() + self._sparing * (thread_time() - began_s)

    def waiting(self, since_ns: int) -> int:
        """How many samples have ended since a moment that no learner has met."""
        return int((self._waiting_since_ns >= since_ns).sum())

    def _tell(self) -> None:
        self.finishes = {named(Finish, code): n for code, n in self._of("finish").items()}
        self.fates = {named(Fate, code): n for code, n in self._of("fate").items()}
        self.generated_tokens = self._of("generated_tokens")
        self.trained_tokens = self._counts["trained_tokens", 0]
        self.useful_tokens = self._counts["useful_tokens", 0]
        self.unknown_lags = self._counts["unknown_lags", 0]
        self.trajectory_s = self._distribution("trajectory_s", 1e9)
        self.response_tokens = self._distribution("response_tokens")
        self.lag = self._distribution("lag_versions")

    def _of(self, what: str) -> dict[int, int]:
        return {code: n for (name, code), n in self._counts.items() if name == what}

    def _distribution(self, what: str, unit: float = 1.0) -> Histogram:
        bounds = bounds_of(what)
        counts = [self._counts[what, place] for place in range(len(bounds) + 1)]
        return Histogram(bounds, counts, self._counts[f"sum of {what}", 0] / unit)

    def _found(self, run: Watched, until_ns: int) -> _Counts:
        rows = {name: kept.since(kept.since_ns) for name, kept in self._kept.items()}
        rows["rewards"] = rows["rewards"].where(rows["rewards"]["end_ns"] <= until_ns)
        rows["uses"] = rows["uses"].where(rows["uses"]["time_ns"] <= until_ns)
        tables = KeptTables(run, rows)
        found: _Counts = Counter()

        def sort(what: str, values: Ints, unit: float = 1.0) -> None:
            count(what, np.searchsorted(bounds_of(what), values / unit))
            found[f"sum of {what}", 0] = int(values.sum())

        def count(what: str, codes: Ints) -> None:
            each, n = np.unique(codes, return_counts=True)
            pairs = zip(each.tolist(), n.tolist(), strict=True)
            found.update({(what, code): number for code, number in pairs})

        names = ("process", "finish", "start_ns", "end_ns", "tokens")
        process, finish, start_ns, end_ns, tokens = columns_of(tables, GENERATED, *names)
        count("finish", finish)
        sort("trajectory_s", np.maximum(end_ns - start_ns, 0), 1e9)
        sort("response_tokens", tokens[tokens >= 0])
        for number in np.unique(process).tolist():
            made = tokens[(process == number) & (tokens > 0)]
            found["generated_tokens", number] = int(made.sum())
        count("fate", columns_of(tables, _FATES, "fate")[0])
        lag, known = columns_of(tables, LAG_OF_USES, "lag", "known")
        sort("lag_versions", lag[known == 1])
        found["unknown_lags", 0] = int((known == 0).sum())
        trained = trained_in(tables, 0, NEVER_NS, self.lag_budget)
        found["trained_tokens", 0] = trained.tokens
        found["useful_tokens", 0] = trained.useful_tokens
        self._waiting_since_ns = columns_of(tables, _WAITING, "end_ns")[0]
        return found

    def _too_many(self, starts: list[int], until_ns: int) -> bool:
        """Drops the older half of the rows where they are too many, but what is not counted yet."""
        ends_ns = [kept.since(kept.since_ns)[kept.end] for kept in self._kept.values()]
        recent_ns = starts[-STEPS_BACK] if len(starts) >= STEPS_BACK else 0
        recent = max(int((ends >= recent_ns).sum()) for ends in ends_ns)
        most = min(_REMEMBERED // 2, max(_FEWEST, recent))
        if max(map(len, ends_ns)) <= 2 * most:
            return False
        many = (ends for ends in ends_ns if len(ends) > 2 * most)
        since_ns = max(int(np.partition(ends, -most)[-most]) for ends in many)
        for kept in self._kept.values():
            kept.drop_before(min(since_ns, until_ns))
        return True


class Histogram:
    """How many values lie at or below each of `bounds`, which ascend, and their sum. `counts` are
    of the values between two bounds, one more than bounds."""

    def __init__(
        self, bounds: Sequence[float], counts: list[int] | None = None, total: float = 0.0
    ) -> None:
        self.bounds, self.sum = bounds, total
        self._counts = counts or [0] * (len(bounds) + 1)

    def add(self, values: Iterable[float]) -> None:
        for value in values:
            self._counts[bisect_left(self.bounds, value)] += 1
            self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[int]:
        """For each bound the number of values at or below it; one more, last: of all values."""
        return list(accumulate(self._counts))


def bounds_of(what: str) -> Sequence[float]:
    bounds: Sequence[float] = packaged_toml("analysis/live/data/bounds.toml")[what]
    return bounds
