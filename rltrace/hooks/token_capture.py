"""Records the token ids of samples (`rltrace wrap --capture-tokens`).

Whoever records a trajectory hands over its row and the ids, each part of a sample once. What is no
sequence of token ids (text, above all) is left out, and said. Standard library only.
"""

from __future__ import annotations

from array import array

from rltrace.hooks import recorder as recording
from rltrace.hooks.spans import stored
from rltrace.trace.job_exceptions import contained
from rltrace.trace.schema import CAPTURED_TOKENS
from rltrace.trace.segment import Batch, TableWriter
from rltrace.trace.vocabulary import Part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rltrace.hooks.recorder import Recorder
    from rltrace.trace.segment import Row

_UNKNOWN = -1
_TEXTS = (str, bytes, bytearray, memoryview)


class TokenWriter(TableWriter):
    def store_tokens(self, start_ns: int, trajectory: int, part: Part, ids: array[int]) -> None:
        """A row for each id. Errors: OSError when there is no space."""
        done = 0
        while done < len(ids):
            batch, first, rows = self._claim_some(len(ids) - done)
            columns = (
                array("q", [trajectory]) * rows,
                array("b", [part]) * rows,
                array("i", range(done, done + rows)),
                ids[done : done + rows],
            )
            for column, values in zip(batch.columns[1:], columns, strict=True):
                _fill(column, first, values)
            _fill(batch.columns[0], first, array("q", [start_ns]) * rows)
            done += rows

    def _claim_some(self, most: int) -> tuple[Batch, int, int]:
        """Empty rows in a line: batch, first slot, how many. One that stands apart is left."""
        batch, first = self.claim()
        rows = 1
        while rows < most and first + rows < batch.rows:
            if batch.next_slot() != first + rows:
                break
            rows += 1
        return batch, first, rows


def _fill(column: Any, first: int, values: array[int]) -> None:
    if isinstance(column, memoryview):
        column[first : first + len(values)] = memoryview(values)
        return
    for slot, value in enumerate(values, first):  # where the file is written, not mapped
        column[slot] = value


def start() -> None:
    recording.writers[CAPTURED_TOKENS.name] = TokenWriter
    recording.capture_tokens = capture


def capture(recorder: Recorder, row: Row, prompt: Any, response: Any) -> None:
    """Stores a sample's token ids, if its trajectory has an id. Never raises."""
    start_ns = trajectory = _UNKNOWN
    with contained(ValueError):  # released: a forked child completes its parent's row
        start_ns, trajectory = stored(row, "start_ns", "trajectory")
    if trajectory == _UNKNOWN:
        return
    with contained(tell=recorder.failed):
        writer = recorder.tables[CAPTURED_TOKENS.name]
        assert isinstance(writer, TokenWriter)
        for part, given in ((Part.PROMPT, prompt), (Part.RESPONSE, response)):
            ids = None if given is None else _ids(recorder, part, given)
            if ids is not None:
                writer.store_tokens(start_ns, trajectory, part, ids)


def _ids(recorder: Recorder, part: Part, given: Any) -> array[int] | None:
    """Whole numbers in a list, tuple, array or tensor of one dimension; None for anything else."""
    name = f"{part.name.lower()}_token_ids"
    with contained(tell=lambda _: recorder.odd_value(name, given, "holds no token ids")):
        if isinstance(given, _TEXTS):
            raise TypeError(given)
        len(given)
        return array("i", given.tolist() if hasattr(given, "tolist") else given)
    return None
