"""Whether a sample is trained on the tokens that were sampled.

Where an agent's turns come back as text and are tokenized anew, the tokens may be other ones, which
nobody sampled. So what engines answered is held against what the trainer is given.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rltrace.trace.job_exceptions import contained


class Sampled:
    """The answers of engines, as token ids; of `most` of them the latest."""

    __slots__ = ("_answers", "_most", "count")

    def __init__(self, most: int = 1 << 16) -> None:
        self._answers: dict[bytes, None] = {}
        self._most = most
        self.count = 0  # of all, those that have been forgotten included

    def add(self, *answers: Iterable[int]) -> None:
        packed = [_packed(ids) for ids in answers]
        self.count += len(packed)
        for answer in packed:
            self._answers.pop(answer, None)
            self._answers[answer] = None
        for _ in range(len(self._answers) - self._most):
            with contained(RuntimeError, StopIteration):  # another thread is at it
                self._answers.pop(next(iter(self._answers)), None)

    def hold(self, runs: Iterable[Iterable[int]]) -> bool:
        """Whether each run of tokens is made of answers, of which the last one may be cut."""
        return all(self._holds(_packed(run)) for run in runs)

    def column(self, runs: Iterable[Iterable[int]]) -> dict[str, int]:
        """Whether they do, as a column of the sample; none where nobody has seen an answer."""
        return {"token_ids": int(self.hold(runs))} if self.count else {}

    def _holds(self, run: bytes) -> bool:
        if not run or run in self._answers:
            return True
        answers = tuple(self._answers)  # another thread may add to them
        starts, seen = [0], {0}  # where an answer may begin
        while starts:
            start = starts.pop()
            rest = run[start:]
            if any(answer.startswith(rest) for answer in answers):
                return True
            ends = {start + len(answer) for answer in answers if rest.startswith(answer)} - seen
            seen |= ends
            starts += sorted(ends)  # the longest answer is the likeliest
        return False


def runs(ids: Sequence[int], mask: Any) -> Iterator[Sequence[int]]:
    """The tokens that the policy made, run by run: `mask` is 1 there, and 0 where tools or an
    environment spoke. Both are lists, or arrays with one dimension."""
    made = bytes(mask.tolist() if hasattr(mask, "tolist") else mask)
    start = made.find(1)
    while start >= 0:
        end = made.find(0, start)
        end = len(made) if end < 0 else end
        yield ids[start:end]
        start = made.find(1, end)


def _packed(ids: Any) -> bytes:
    return array("i", ids.tolist() if hasattr(ids, "tolist") else ids).tobytes()
