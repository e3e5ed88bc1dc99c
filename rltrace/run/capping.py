"""Keeping a run below a size (`rltrace wrap --max-bytes`): the agent drops the oldest details.

Dropped are whole files to which nobody writes any more: segments that another one has followed, and
those of processes that have ended. What they say of each step is written down first, and stays.
Captured tokens are the first to go: no figure is of them. What processes wrote last is kept while
it is of the newest whole step: as a job ends all of that may go, and no step would be left. Of a
run that is shipped files are dropped here once all of them is at its URL, where it stays.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.run.newest_step import NewestStep
from rltrace.trace.clock import monotonic_ns
from rltrace.trace.dropped import SUMMED, what_of
from rltrace.trace.growing import SETTLED_NS
from rltrace.trace.liveness import began_at
from rltrace.trace.own_files import read_own
from rltrace.trace.run_dir import DROPPED, PROCESS, append_line
from rltrace.trace.schema import CAPTURED_TOKENS, SPANS, TABLES, Table
from rltrace.trace.segments import read_segment
from rltrace.trace.texts import parsed
from rltrace.trace.vocabulary import Stage

LOOK_EVERY_S = 5.0
_ByName = dict[str, NDArray[Any]]
"""The columns of a segment."""

_DOWN_TO = 0.9  # of the size, so that not every look has to drop something


@dataclass(frozen=True)
class _Process:
    """What the file of a process says: where it ran, and when it began (ns of its node's clock)."""

    node: str
    host: str
    pid: int
    start_ns: int


@dataclass(frozen=True)
class _File:
    """A segment. `is_last`: its process has written no further one of that table; `is_gone`: its
    process has ended; None where nobody here can tell."""

    table: Table
    path: Path
    size: int
    who: str
    is_last: bool
    is_gone: bool | None

    @property
    def is_finished(self) -> bool:
        """Whether nobody writes to it any more."""
        return bool(self.is_gone) or not self.is_last

    @property
    def may_go(self) -> bool:
        """Whether it is for the agent of this node to drop it."""
        return self.is_gone is not None and self.is_finished


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
        self._processes: dict[str, _Process] = {}
        self._gone: set[str] = set()
        self._newest_step = NewestStep(self._run_dir, node)

    def tick(self, now: float) -> None:
        """Looks, now and then. Errors: OSError when the run directory is gone."""
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self.keep()

    def keep(self, at_end: bool = False) -> None:
        """Drops what is oldest until the run is small enough, or nothing more can go. `at_end`: the
        run is over and grows no more, so that its newest whole step stays in any case."""
        files = self._files()
        size_bytes = sum(file.size for file in files)
        if size_bytes <= self._max_bytes:
            return
        spans = [(file.path, file.is_finished) for file in files if file.table is SPANS]
        whole_from_ns = self._newest_step.began_ns(spans)
        for file in sorted((file for file in files if file.may_go), key=self._order):
            if size_bytes <= _DOWN_TO * self._max_bytes:
                return
            if whole_from_ns is not None and self._is_needed(file, whole_from_ns, at_end):
                continue
            if self._is_shipped is not None:
                if self._goes_on(file):
                    continue
                if not self._is_shipped(f"{file.table.name}/{file.path.name}"):
                    return  # the store is away: then it has none of the newer ones either
            self._drop(file)
            size_bytes -= file.size

    def _is_needed(self, file: _File, whole_from_ns: int, at_end: bool) -> bool:
        """Whether with this file the newest whole step would go. While the run grows only what
        processes that took part in that step wrote last is kept for it: they are no more than lived
        at once, and as long as they did that could not be dropped either."""
        if file.table is CAPTURED_TOKENS or self._newest(file) < whole_from_ns:
            return False
        return at_end or (file.is_last and self._processes[file.who].start_ns < whole_from_ns)

    def _files(self) -> list[_File]:
        found = []
        last: dict[tuple[str, str], int] = defaultdict(int)
        for name, table in TABLES.items():
            folder = self._run_dir / name
            if name == CAPTURED_TOKENS.name and not folder.exists():
                continue  # a run of an older rltrace, or one that somebody deleted them from
            for entry in os.scandir(folder):
                if entry.name.endswith(".arrows") and entry.is_file(follow_symlinks=False):
                    who, number = _numbered(entry.name)
                    last[name, who] = max(last[name, who], number)
                    found.append((table, Path(entry.path), entry.stat().st_size, who, number))
        gone = {who: self._is_gone(who) for _, who in last}
        return [
            _File(table, path, size, who, number == last[table.name, who], gone[who])
            for table, path, size, who, number in found
        ]

    def _is_gone(self, who: str) -> bool | None:
        """Whether a process has ended; None where nobody here can tell: on another node, whose
        agent sees to it, or in another container, which has pids of its own."""
        if who in self._gone:
            return True
        process = self._process(who)
        if process is None or process.node != self._node or process.host != os.uname().nodename:
            return None
        began_ns = began_at(process.pid)
        if began_ns is not None and began_ns <= process.start_ns + 10**9:
            return False
        self._gone.add(who)  # or another one has its number
        return True

    def _process(self, who: str) -> _Process | None:
        """What its file says; None where it says nothing."""
        if who not in self._processes:
            try:
                facts = {**parsed(read_own(self._run_dir / PROCESS / f"{who}.json"))}
                self._processes[who] = _Process(
                    *(str(facts["node"]), str(facts.get("host"))),
                    *(int(facts["pid"]), int(facts["start_ns"])),
                )
            except (OSError, ValueError, KeyError, TypeError):
                return None
        return self._processes[who]

    def _order(self, file: _File) -> tuple[bool, int]:
        return file.table is not CAPTURED_TOKENS, self._newest(file)

    def _newest(self, file: _File) -> int:
        """When the newest row of a finished file began, on the node's clock."""
        if file.path not in self._newest_ns:
            segment = read_segment(file.path, file.table)
            self._newest_ns[file.path] = int(segment.columns[0].max(initial=0))
        return self._newest_ns[file.path]

    def _goes_on(self, file: _File) -> bool:
        """Whether a row may still be completed by a process that lives: what is stored into a file
        that was dropped would not come to the URL."""
        columns = enumerate(file.table.columns)
        ends = [number for number, column in columns if column.name == "end_ns"]
        if not ends or file.is_gone:
            return False
        ended_ns = read_segment(file.path, file.table).columns[ends[0]]
        settled = (ended_ns >= 0) & (ended_ns < monotonic_ns() - SETTLED_NS)
        return not bool(settled.all())

    def _drop(self, file: _File) -> None:
        table, path = file.table, file.path
        segment = read_segment(path, table)
        of = dict(zip([column.name for column in table.columns], segment.columns, strict=True))
        line = {
            "table": table.name,
            "file": path.name,
            "rows": segment.rows,
            "bytes": file.size,
            "until_ns": self._newest(file),
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


def _numbered(name: str) -> tuple[str, int]:
    who, _, number = name.removesuffix(".arrows").rpartition(".")
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
