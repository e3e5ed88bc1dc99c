"""What is dropped of a run (`wrap --max-bytes`) while it is followed.

What was read before its file was dropped is known for good. Of a file that was dropped before all
of it was read rows are missing, so of its time nothing more is told, as no table shows it
(`rltrace.trace.dropped`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rltrace.trace.alignment import NodeClock
from rltrace.trace.dropped import STEP, DroppedFile, dropped_file, unix_of
from rltrace.trace.followed_lines import FollowedLines
from rltrace.trace.run_dir import DROPPED, FETCHED_FILE
from rltrace.trace.schema import CAPTURED_TOKENS


@dataclass(frozen=True)
class DroppedSoFar:
    """Details that were dropped by now to keep the run small: their `rows` and `bytes`, and the
    first and the last step whose own row was, or is not told (None: of no step). What began until
    `until_ns` (Unix ns) is not told, as part of it was dropped before it was read; None: all was
    read. `is_shipped`: all that was dropped is at the run's URL."""

    rows: int
    bytes: int
    first_step: int | None
    last_step: int | None
    until_ns: int | None
    is_shipped: bool


class FollowedDropped:
    """Follows what is dropped of the run in `path`; `files` are the segments by now, as
    `<table>/<name>`. Captured tokens are followed by nobody."""

    def __init__(self, path: Path) -> None:
        self.files: set[str] = set()
        self._is_from_url = (path / FETCHED_FILE).exists()
        self._lines = FollowedLines(path / DROPPED)
        self._rows = self._bytes = self._shipped = 0
        self._steps: tuple[int, int] | None = None
        self._lost_until_ns: dict[str, int] = {}  # by node, on its clock

    def poll(self, was_read: Callable[[DroppedFile], bool]) -> None:
        """Looks what more was dropped; `was_read` says of a segment whether all of it was read."""
        for name, line in self._lines.new():
            file = dropped_file(line)
            if file is None or file.table == CAPTURED_TOKENS.name or file.path in self.files:
                continue
            if self._is_from_url and file.is_shipped:
                continue  # it was dropped on its node, and is here
            self.files.add(file.path)
            self._rows += file.rows
            self._bytes += file.bytes
            self._shipped += file.is_shipped
            self.note_steps(total.step for total in file.totals if total.what == STEP)
            if not was_read(file):
                node = name.partition("~")[0]
                until_ns = max(file.until_ns, self._lost_until_ns.get(node, -1))
                self._lost_until_ns[node] = until_ns

    def lost_until_ns(self, clocks: Mapping[str, NodeClock]) -> int:
        """Until when what began is not told (Unix ns; -1: all is). `clocks` are those of nodes."""
        lost = self._lost_until_ns.items()
        return max((unix_of(clocks.get(node), at_ns) for node, at_ns in lost), default=-1)

    def note_steps(self, steps: Iterable[int]) -> None:
        """That steps' own rows are not there any more, or not told."""
        for step in steps:
            if step >= 0:
                first, last = self._steps or (step, step)
                self._steps = min(first, step), max(last, step)

    def so_far(self, lost_until_ns: int) -> DroppedSoFar | None:
        """What was dropped by now; None where nothing was."""
        if not self.files:
            return None
        first, last = self._steps or (None, None)
        return DroppedSoFar(
            rows=self._rows,
            bytes=self._bytes,
            first_step=first,
            last_step=last,
            until_ns=lost_until_ns if lost_until_ns >= 0 else None,
            is_shipped=self._shipped == len(self.files),
        )
