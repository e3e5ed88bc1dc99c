"""What a run has done since it began, counted as its rows come in."""

from __future__ import annotations

from itertools import islice

from rltrace.analysis.live.snapshot import Totals
from rltrace.trace.follow import Rows
from rltrace.trace.vocabulary import Fate, Outcome, word

_REMEMBERED = 400_000
"""Ids of samples that are known to have been counted; the oldest half of more is forgotten."""


class Counting:
    """Counts rows of all tables. A sample that several processes recorded, or that a learner met
    several times, counts once."""

    def __init__(self) -> None:
        self._tokens_of: dict[int, int] = {}
        self._met: dict[int, int] = {}
        self._waiting: dict[int, int] = {}
        self._generated = [0, 0]
        self._trained = [0, 0]
        self._lost: dict[str, int] = {}
        self._verdicts = [0, 0]
        self._versions: set[int] = set()
        self._updates = self._spans = 0
        self.learner_tells = False

    def add(self, new: dict[str, Rows]) -> None:
        """Takes in rows that have become complete."""
        self._spans += len(new["spans"])
        outcome = new["rewards"]["outcome"]
        self._verdicts[0] += len(outcome)
        self._verdicts[1] += int(((outcome == Outcome.TIMEOUT) | (outcome == Outcome.ERROR)).sum())
        self._add_trajectories(new["trajectories"])
        self._add_uses(new["uses"])
        versions = new["syncs"]["version"]
        self._updates += int((versions < 0).sum())
        self._versions.update(versions[versions >= 0].tolist())
        for remembered in (self._tokens_of, self._met, self._waiting):
            if len(remembered) > _REMEMBERED:
                for one in list(islice(remembered, _REMEMBERED // 2)):
                    del remembered[one]

    def _add_trajectories(self, rows: Rows) -> None:
        columns = (rows[c].tolist() for c in ("trajectory", "response_tokens", "end_ns"))
        for sample, said, end in zip(*columns, strict=True):
            tokens = max(said, 0)
            before = self._tokens_of.get(sample) if sample != -1 else None
            self._generated[0] += before is None
            self._generated[1] += max(0, tokens - (before or 0))
            if sample != -1:
                self._tokens_of[sample] = max(tokens, before or 0)
                if sample not in self._met:
                    self._waiting[sample] = end

    def _add_uses(self, rows: Rows) -> None:
        self.learner_tells |= len(rows) > 0
        columns = (rows[c].tolist() for c in ("trajectory", "fate", "tokens"))
        for sample, fate, tokens in zip(*columns, strict=True):
            self._waiting.pop(sample, None)
            before = self._met.get(sample) if sample != -1 else None
            if before == Fate.TRAINED or (before is not None and fate != Fate.TRAINED):
                continue
            if sample != -1:
                self._met[sample] = fate
            if fate == Fate.TRAINED:
                self._trained[0] += 1
                self._trained[1] += tokens if tokens >= 0 else self._tokens_of.get(sample, 0)
            elif fate != -1:
                reason = word(Fate(fate)) if fate in set(Fate) else "unknown"
                self._lost[reason] = self._lost.get(reason, 0) + 1

    def waiting(self, since_ns: int) -> int:
        """How many samples have ended since a moment that no learner has met."""
        return sum(end >= since_ns for end in self._waiting.values())

    def forget_waiting(self, before_ns: int) -> None:
        """Drops samples that ended before, and that no learner will meet any more."""
        for sample in [s for s, end in self._waiting.items() if end < before_ns]:
            del self._waiting[sample]

    def totals(self, steps: int) -> Totals:
        """The counts; `steps` are the complete ones."""
        return Totals(
            steps=steps,
            generated_samples=self._generated[0],
            generated_tokens=self._generated[1],
            trained_samples=self._trained[0],
            trained_tokens=self._trained[1],
            lost=dict(self._lost),
            verdicts=self._verdicts[0],
            verdicts_failed=self._verdicts[1],
            updates=self._updates + len(self._versions),
            spans=self._spans,
        )
