"""Details that were dropped of a run to keep it small (`wrap --max-bytes`, in 0.1).

Each line of `dropped/<node>.jsonl` is a segment that was: its rows, and when the newest of them
began. What began before the newest of all is not whole, so no table shows it. Captured tokens went
first, and alone: no figure is of them, so only they are not shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.trace.metadata_validation import is_whole
from rltrace.trace.read.clock_alignment import NodeClock
from rltrace.trace.run_dir import DROPPED, FETCHED_FILE
from rltrace.trace.schema import CAPTURED_TOKENS, TABLES, Table
from rltrace.trace.untrusted_files import own_files, own_lines, parsed


@dataclass(frozen=True)
class Dropped:
    """`rows` of each table that were dropped, and their `bytes`; what began until `until_ns` (Unix
    ns; -1: nothing but captured tokens was dropped) is not shown, nor are the tokens of samples
    that began until `tokens_until_ns`. `is_shipped`: all of it is at the run's URL."""

    rows: dict[str, int]
    bytes: int
    until_ns: int
    tokens_until_ns: int
    is_shipped: bool

    def shown(self, table: Table, rows: str) -> str:
        """Of `rows` of a table (SQL) those of a time whose details are whole, and what was still
        in progress then."""
        until_ns = self.until_ns
        if table is CAPTURED_TOKENS:
            until_ns = max(until_ns, self.tokens_until_ns)
        goes_on = " OR end_ns = -1" if table.find("end_ns") >= 0 else ""
        return f'(FROM {rows} WHERE "{table.columns[0].name}" > {until_ns}{goes_on})'


def read_dropped(run: Path, clocks: Mapping[str, NodeClock]) -> Dropped | None:
    """What was dropped of a run; None where nothing was. Lines that cannot be read are skipped."""
    rows: Counter[str] = Counter()
    size_bytes, until_ns, tokens_until_ns, is_shipped = 0, -1, -1, True
    files: set[tuple[str, str]] = set()
    is_from_url = (run / FETCHED_FILE).exists()
    for path in own_files(run / DROPPED, ".jsonl")[0]:
        clock = clocks.get(path.stem.partition("~")[0])
        for line in own_lines(path):
            try:
                said: dict[str, Any] = {**parsed(line)}
                table, file = str(said.get("table")), str(said.get("file"))
                count, size, newest_ns = (said[key] for key in ("rows", "bytes", "until_ns"))
            except (ValueError, KeyError, TypeError):
                continue
            shipped = said.get("shipped") is True
            if table not in TABLES or not all(map(is_whole, (count, size, newest_ns))):
                continue
            if (table, file) in files:
                continue  # its agent was killed between the line and the file
            if is_from_url and shipped:
                continue  # it was dropped on its node, and is here
            files.add((table, file))
            rows[table] += count
            size_bytes += size
            is_shipped &= shipped
            if table == CAPTURED_TOKENS.name:
                tokens_until_ns = max(tokens_until_ns, unix_of(clock, newest_ns))
            else:
                until_ns = max(until_ns, unix_of(clock, newest_ns))
    return Dropped(dict(rows), size_bytes, until_ns, tokens_until_ns, is_shipped) if rows else None


def unix_of(clock: NodeClock | None, time_ns: int) -> int:
    """A time by the clock of a node as Unix nanoseconds; as it is where that is not known."""
    if clock is None or time_ns <= 0:
        return time_ns
    return clock.moment(time_ns)
