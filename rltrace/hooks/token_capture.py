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
from rltrace.trace.vocabulary import Part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rltrace.hooks.recorder import Recorder
    from rltrace.trace.segment import Row

_UNKNOWN = -1
_TEXTS = (str, bytes, bytearray, memoryview)


def start() -> None:
    recording.capture_tokens = capture


def capture(recorder: Recorder, row: Row, prompt: Any, response: Any) -> None:
    """Stores a sample's token ids, if its trajectory has an id. Never raises."""
    start_ns = trajectory = _UNKNOWN
    with contained(ValueError):  # released: a forked child completes its parent's row
        start_ns, trajectory = stored(row, "start_ns", "trajectory")
    if trajectory == _UNKNOWN:
        return
    for part, given in ((Part.PROMPT, prompt), (Part.RESPONSE, response)):
        ids = None if given is None else _ids(recorder, part, given)
        if ids is not None:
            sample = {"start_ns": start_ns, "trajectory": trajectory, "part": part}
            each = {"position": range(len(ids)), "token": memoryview(ids)}
            recorder.rows(CAPTURED_TOKENS.name, len(ids), sample | each)


def _ids(recorder: Recorder, part: Part, given: Any) -> array[int] | None:
    """Whole numbers in a list, tuple, array or tensor of one dimension; None for anything else."""
    name = f"{part.name.lower()}_token_ids"
    with contained(tell=lambda _: recorder.odd_value(name, given, "holds no token ids")):
        if isinstance(given, _TEXTS):
            raise TypeError(given)
        len(given)
        return array("i", given.tolist() if hasattr(given, "tolist") else given)
    return None
