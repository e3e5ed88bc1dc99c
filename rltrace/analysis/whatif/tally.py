"""What a replay has counted at the end of each step, and whether the job runs evenly by then."""

from __future__ import annotations

from collections import Counter

import numpy as np

WARM = 3  # the first steps, which count for nothing
ALIKE = 3  # stretches in a row that are alike in a job that runs evenly
_EVEN = 0.02  # by which they may differ
_SAME = 1e-11  # of all that was counted: what rounding leaves
_MOST_STRETCHES = 30


class Tally:
    """Counts of the steps of a replay. A stretch is so many steps that have the same work in each
    of them; `streams`: generation runs ahead of the learner. `marks` are sums up to the end of each
    step, the time first; `queued` is how many groups wait for the learner then, of `per_step` that
    it takes, and `lags` those that it took in each step, by lag; the last goes on."""

    def __init__(self, stretch: int, streams: bool, per_step: int) -> None:
        self.stretch, self.streams, self.per_step = stretch, streams, per_step
        self.marks: list[tuple[float, ...]] = []
        self.queued: list[int] = []
        self.lags: list[Counter[int]] = [Counter()]

    def step_ends(self, mark: tuple[float, ...], queued: int) -> None:
        """A step has ended."""
        self.marks.append(mark)
        self.queued.append(queued)
        self.lags.append(Counter())

    @property
    def stretch_ends(self) -> bool:
        """Whether the last step was the last of a stretch, or of those before the first."""
        steps = len(self.marks) - WARM
        return steps >= 0 and steps % self.stretch == 0

    def is_over(self) -> bool:
        """Whether the steps that count have been played, as a stretch ends. Where stages take turns
        that is a stretch after the first steps. Where generation runs ahead the job begins with
        nothing ready and all that may begin on its way, and it lasts until both sides run at one
        rate: until three stretches take as long, and as much waits for the learner in each. Where
        two are the same step by step the third is, too: it is counted, and not played."""
        stretches = (len(self.marks) - WARM) // self.stretch
        if not self.streams:
            return stretches == 1
        if stretches >= ALIKE and (self._is_even() or stretches == _MOST_STRETCHES):
            return True
        if stretches < ALIKE - 1 or not self._repeats():
            return False
        self._repeat()
        return True

    def counted(self) -> tuple[list[tuple[float, ...]], Counter[int]]:
        """The marks of the steps that count, the one before them first, and their lags."""
        steps = self.stretch * (ALIKE if self.streams else 1)
        return self.marks[-1 - steps :], sum(self.lags[-1 - steps : -1], Counter())

    def _is_even(self) -> bool:
        n = self.stretch
        ends = [self.marks[-1 - k * n][0] for k in reversed(range(ALIKE + 1))]
        lasts = np.diff(ends)
        queued = np.reshape(self.queued[-ALIKE * n :], (ALIKE, n)).mean(axis=1)
        even = np.ptp(lasts) <= _EVEN * lasts.mean()
        even &= np.ptp(queued) <= _EVEN * n * self.per_step
        return bool(even)

    def _repeats(self) -> bool:
        """Whether the last two stretches are the same, step by step, in all that is counted."""
        n = self.stretch
        counted = np.array(self.marks[-2 * n - 1 :])
        grown = np.diff(counted, axis=0).reshape(2, n, -1)
        same = np.abs(grown[1] - grown[0]) <= _SAME * counted[-1]
        return bool(
            same.all()
            and self.queued[-2 * n : -n] == self.queued[-n:]
            and self.lags[-2 * n - 1 : -n - 1] == self.lags[-n - 1 : -1]
        )

    def _repeat(self) -> None:
        """Counts the last stretch once more."""
        n = self.stretch
        passed = [b - a for a, b in zip(self.marks[-n - 1], self.marks[-1], strict=True)]
        self.marks += [
            tuple(a + more for a, more in zip(mark, passed, strict=True))
            for mark in self.marks[-n:]
        ]
        self.lags[-1:-1] = self.lags[-n - 1 : -1]
