"""Whether the tokens that a sample is trained on are those that the policy sampled.

Where the turns of an agent come back as text and are tokenized anew, the tokens may be other ones:
they read the same, but nobody sampled them, and what an engine said of their probability holds for
others. So what engines answered is held against what the trainer is given.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class Sampled:
    """The answers of engines, as token ids; of `most` of them the latest."""

    __slots__ = ("_answers", "_most", "count")

    def __init__(self, most: int = 1 << 16) -> None:
        self._answers: dict[bytes, None] = {}
        self._most = most
        self.count = 0
        """How many there were, those that have been forgotten included."""

    def add(self, ids: Iterable[int]) -> None:
        """An engine has answered."""
        answer = _packed(ids)
        self.count += 1
        self._answers.pop(answer, None)
        self._answers[answer] = None
        if len(self._answers) > self._most:
            del self._answers[next(iter(self._answers))]

    def hold(self, runs: Iterable[Iterable[int]]) -> bool:
        """Whether each run of tokens is made of answers, of which the last one may be cut."""
        return all(self._holds(_packed(run)) for run in runs)

    def _holds(self, run: bytes) -> bool:
        while run and run not in self._answers:
            answers = tuple(self._answers)  # another thread may add to them
            whole = max((len(a) for a in answers if run.startswith(a)), default=0)
            if not whole:
                return any(answer.startswith(run) for answer in answers)
            run = run[whole:]
        return True


def runs(ids: Sequence[int], mask: Any) -> Iterator[Sequence[int]]:
    """The tokens that the policy is said to have made: `mask` is 1 there, and 0 where tools or an
    environment have said something. Both are lists, or arrays with one dimension."""
    made = bytes(mask.tolist() if hasattr(mask, "tolist") else mask)
    start = made.find(1)
    while start >= 0:
        end = made.find(0, start)
        end = len(made) if end < 0 else end
        yield ids[start:end]
        start = made.find(1, end)


def _packed(ids: Any) -> bytes:
    return array("i", ids.tolist() if hasattr(ids, "tolist") else ids).tobytes()
