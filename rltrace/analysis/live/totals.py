"""What a run has done since it began, counted as its rows come in."""

from __future__ import annotations

from rltrace.analysis.live.snapshot import Totals
from rltrace.analysis.meters.samples import SampleMeter
from rltrace.trace.follow import Rows
from rltrace.trace.vocabulary import Fate, Outcome, word

_TRAINED = word(Fate.TRAINED)


class Counting:
    """Counts rows of all tables; samples as the meters do, but at once. `learner_tells` is whether
    any learner says what it does with samples."""

    def __init__(self) -> None:
        self.learner_tells = False
        self._samples = SampleMeter()
        self._versions: set[int] = set()
        self._updates = self._spans = 0

    def add(self, new: dict[str, Rows]) -> None:
        """Takes in rows that have become complete."""
        self.learner_tells |= len(new["uses"]) > 0
        self._samples.add(new, 0, final=True)
        self._spans += len(new["spans"])
        versions = new["syncs"]["version"]
        self._updates += int((versions < 0).sum())
        self._versions.update(versions[versions >= 0].tolist())

    def waiting(self, since_ns: int) -> int:
        """How many samples have ended since a moment that no learner has met."""
        return sum(end >= since_ns for end in self._samples.waiting_since_ns.values())

    def forget_waiting(self, before_ns: int) -> None:
        """Drops samples that ended before, and that no learner will meet any more."""
        waiting = self._samples.waiting_since_ns
        for sample in [s for s, end in waiting.items() if end < before_ns]:
            del waiting[sample]

    def totals(self, steps: int) -> Totals:
        """The counts; `steps` are the complete ones."""
        samples = self._samples
        failed = (word(Outcome.TIMEOUT), word(Outcome.ERROR))
        return Totals(
            steps=steps,
            generated_samples=samples.finishes.total(),
            generated_tokens=samples.generated_tokens.total(),
            trained_samples=samples.fates[_TRAINED],
            trained_tokens=samples.trained_tokens,
            lost={why: n for why, n in samples.fates.items() if why != _TRAINED},
            verdicts=samples.outcomes.total(),
            verdicts_failed=sum(samples.outcomes[outcome] for outcome in failed),
            updates=self._updates + len(self._versions),
            spans=self._spans,
        )
