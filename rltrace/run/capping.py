"""Keeping a run below a size (`rltrace wrap --max-bytes`): the agent drops the oldest details.

Dropped are whole files to which nobody writes any more: segments that another one has followed, and
those of processes that have ended. What they say of each step is written down first, and stays.
Captured tokens are the first to go: no figure is of them. Of a run that is shipped files are
dropped here once all of them is at its URL, where it stays.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.clock import monotonic_ns
from rltrace.trace.dropped import SUMMED, what_of
from rltrace.trace.growing import SETTLED_NS
from rltrace.trace.liveness import began_at
from rltrace.trace.own_files import read_own
from rltrace.trace.run_dir import DROPPED, PROCESS, append_line
from rltrace.trace.schema import CAPTURED_TOKENS, TABLES, Table
from rltrace.trace.segments import read_segment
from rltrace.trace.texts import parsed
from rltrace.trace.vocabulary import Stage

LOOK_EVERY_S = 5.0
_ByName = dict[str, NDArray[Any]]
"""The columns of a segment."""

_DOWN_TO = 0.9  # of the size, so that not every look has to drop something


class Cap:
    """Keeps the run in `run_dir` below `max_bytes`, as far as the files of this `node` go. Where
    it is shipped `is_shipped` says of a file, by its path in the run, whether all of it is; the
    node is called `name` there."""

    def __init__(
        self,
        run_dir: str,
        node: str,
        max_bytes: int,
        is_shipped: Callable[[str], bool] | None = None,
        name: str = "",
    ) -> None:
        self._run_dir = Path(run_dir)
        self._node = node
        self._max_bytes = max_bytes
        self._is_shipped = is_shipped
        self._name = name or node
        self._look_at = 0.0
        self._newest_ns: dict[Path, int] = {}

    def tick(self, now: float) -> None:
        """Looks, now and then. Errors: OSError when the run directory is gone."""
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self.keep()

    def keep(self) -> None:
        """Drops what is oldest until the run is small enough, or nothing more can go."""
        files = self._files()
        size_bytes = sum(size for _, _, size in files)
        if size_bytes <= self._max_bytes:
            return
        ended = self._finished(files)
        for table, path, size in sorted(ended, key=self._order):
            if size_bytes <= _DOWN_TO * self._max_bytes:
                return
            if self._is_shipped is not None:
                if self._goes_on(table, path):
                    continue
                if not self._is_shipped(f"{table.name}/{path.name}"):
                    return  # the store is away: then it has none of the newer ones either
            self._drop(table, path, size)
            size_bytes -= size

    def _files(self) -> list[tuple[Table, Path, int]]:
        found = []
        for name, table in TABLES.items():
            folder = self._run_dir / name
            if name == CAPTURED_TOKENS.name and not folder.exists():
                continue  # a run of an older rltrace, or one that somebody deleted them from
            for entry in os.scandir(folder):
                if entry.name.endswith(".arrows") and entry.is_file(follow_symlinks=False):
                    found.append((table, Path(entry.path), entry.stat().st_size))
        return found

    def _finished(self, files: list[tuple[Table, Path, int]]) -> list[tuple[Table, Path, int]]:
        """Those of this node to which nobody writes any more."""
        last: dict[tuple[str, str], int] = defaultdict(int)
        for table, path, _ in files:
            who, number = _numbered(path)
            last[table.name, who] = max(last[table.name, who], number)
        mine = {who: self._is_gone(who) for _, who in last}
        found = []
        for table, path, size in files:
            who, number = _numbered(path)
            gone = mine[who]
            if gone is not None and (gone or number < last[table.name, who]):
                found.append((table, path, size))
        return found

    def _is_gone(self, who: str) -> bool | None:
        """Whether a process has ended; None where nobody here can tell: on another node, whose
        agent sees to it, or in another container, which has pids of its own."""
        try:
            facts = {**parsed(read_own(self._run_dir / PROCESS / f"{who}.json"))}
            node, pid, started = facts["node"], int(facts["pid"]), int(facts["start_ns"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if node != self._node or facts.get("host") != os.uname().nodename:
            return None
        began_ns = began_at(pid)
        return began_ns is None or began_ns > started + 10**9  # another one under its number

    def _order(self, one: tuple[Table, Path, int]) -> tuple[bool, int]:
        table, path, _ = one
        return table is not CAPTURED_TOKENS, self._newest(table, path)

    def _newest(self, table: Table, path: Path) -> int:
        """When the newest row of a finished file began, on the node's clock."""
        if path not in self._newest_ns:
            segment = read_segment(path, table)
            self._newest_ns[path] = int(segment.columns[0].max(initial=0))
        return self._newest_ns[path]

    def _goes_on(self, table: Table, path: Path) -> bool:
        """Whether a row may still be completed by a process that lives: what is stored into a file
        that was dropped would not come to the URL."""
        ends = [number for number, column in enumerate(table.columns) if column.name == "end_ns"]
        if not ends or self._is_gone(_numbered(path)[0]):
            return False
        ended_ns = read_segment(path, table).columns[ends[0]]
        settled = (ended_ns >= 0) & (ended_ns < monotonic_ns() - SETTLED_NS)
        return not bool(settled.all())

    def _drop(self, table: Table, path: Path, size: int) -> None:
        segment = read_segment(path, table)
        of = dict(zip([column.name for column in table.columns], segment.columns, strict=True))
        line = {
            "table": table.name,
            "file": path.name,
            "rows": segment.rows,
            "bytes": size,
            "until_ns": self._newest(table, path),
            "real_ns": time.time_ns(),
            "steps": _totals(table, segment.rows, of),
            "spans": _steps(table, of),
            **({} if self._is_shipped is None else {"shipped": True}),
        }
        folder = self._run_dir / DROPPED
        folder.mkdir(exist_ok=True)
        append_line(f"{folder}/{self._name}.jsonl", line)
        path.unlink()
        self._newest_ns.pop(path, None)


def _numbered(path: Path) -> tuple[str, int]:
    who, number, _ = path.name.rsplit(".", 2)
    return who, int(number) if number.isdigit() else 0


def _totals(table: Table, count: int, of: _ByName) -> list[list[object]]:
    """For each step and stage (or a sample's fate): rows, seconds, tokens."""
    if table.name not in SUMMED or not count:
        return []
    spans = table.name == "spans"
    codes = of["stage"] if spans else of["fate"]
    ended = of["end_ns"] >= of["start_ns"] if spans else np.zeros(count, bool)
    ns = np.where(ended, of["end_ns"] - of["start_ns"], 0) if spans else np.zeros(count)
    keys = of["step"].astype(np.int64) * 256 + (codes.astype(np.int64) & 255)
    found: list[list[object]] = []
    for key in np.unique(keys):
        rows = keys == key
        step, code = divmod(int(key), 256)
        found.append(
            [
                *(step, what_of(table.name, code), int(rows.sum())),
                *(float(ns[rows].sum()) / 1e9, int(np.maximum(of["tokens"][rows], 0).sum())),
            ]
        )
    return found


def _steps(table: Table, of: _ByName) -> list[list[int]]:
    """The steps themselves: number, beginning and end on the node's clock (-1: it has none)."""
    if table.name != "spans":
        return []
    rows = np.flatnonzero(of["stage"] == int(Stage.STEP))
    return [[int(of[name][i]) for name in ("step", "start_ns", "end_ns")] for i in rows]
