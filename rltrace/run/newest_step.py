"""When the newest whole step of a run began. What a run kept small (`wrap --max-bytes`) has from
then on is the last to go: without it no step is left that figures could be of.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.alignment import NodeClock, align, read_clock_files
from rltrace.trace.errors import RltraceError
from rltrace.trace.own_files import read_own
from rltrace.trace.run_dir import CLOCKS, PROCESS, read_run_json
from rltrace.trace.schema import SPANS
from rltrace.trace.segments import Batch, Batches
from rltrace.trace.texts import parsed
from rltrace.trace.vocabulary import Stage

_COLUMNS = [column.name for column in SPANS.columns]
_STAGE = _COLUMNS.index("stage")
_WANTED = [_COLUMNS.index(name) for name in ("step", "start_ns", "end_ns")]

_Steps = NDArray[np.int64]
"""Steps: a row each of number, beginning and end (ns; below the beginning: it has none yet)."""


class NewestStep:
    """Looks for it in the segments of all nodes that share the run's directory with `node`."""

    def __init__(self, run_dir: Path, node: str) -> None:
        self._run_dir = run_dir
        self._node = node
        self._known: dict[Path, _Steps] = {}
        self._nodes: dict[str, str] = {}

    def began_ns(self, spans: Iterable[tuple[Path, bool]]) -> int | None:
        """When it began, on its first rank, by this node's clock (ns); None: no step has ended.
        `spans` are the segments of that table, each with whether it is finished."""
        of_nodes: dict[str, list[_Steps]] = {}
        known, self._known = self._known, {}
        for path, is_finished in spans:
            steps = known.get(path)
            if steps is None:
                steps = steps_in(path)
            if is_finished:
                self._known[path] = steps
            if len(steps):
                of_nodes.setdefault(self._node_of(path), []).append(steps)
        if not of_nodes:
            return None
        if of_nodes.keys() == {self._node}:
            return _newest(of_nodes[self._node])
        return self._of_all(of_nodes)

    def _of_all(self, of_nodes: dict[str, list[_Steps]]) -> int | None:
        try:
            first = str(read_run_json(str(self._run_dir)).get("node"))
        except RltraceError:
            first = self._node
        pairs, exchanges, _ = read_clock_files(self._run_dir / CLOCKS)
        clocks = align(first, pairs, exchanges)
        own = clocks.get(self._node)
        if own is None:
            return _newest(of_nodes.get(self._node, []))
        began_ns = _newest(
            _in_unix(steps, clocks[node])
            for node, files in of_nodes.items()
            if node in clocks
            for steps in files
        )
        return None if began_ns is None else began_ns - own.base_ns

    def _node_of(self, path: Path) -> str:
        who = path.name.rsplit(".", 2)[0]
        if who not in self._nodes:
            try:
                told = {**parsed(read_own(self._run_dir / PROCESS / f"{who}.json"))}
            except (OSError, ValueError, TypeError):
                return ""
            self._nodes[who] = str(told.get("node"))
        return self._nodes[who]


def steps_in(path: Path) -> _Steps:
    """The steps in a segment of spans."""

    def of(batch: Batch) -> _Steps:
        rows = batch.rows_at(np.flatnonzero(batch.stored & (batch.column(_STAGE) == Stage.STEP)))
        return np.stack([rows[number].astype(np.int64) for number in _WANTED], axis=1)

    return np.concatenate([np.empty((0, len(_WANTED)), np.int64), *Batches(path, SPANS).each(of)])


def _newest(files: Iterable[_Steps]) -> int | None:
    """When the step began that was the last to end."""
    steps = np.concatenate([np.empty((0, len(_WANTED)), np.int64), *files])
    steps = steps[steps[:, 2] >= steps[:, 1]]
    if not len(steps):
        return None
    number, began_ns, _ = steps[steps[:, 2].argmax()]
    ranks = (steps[:, 0] == number) & (steps[:, 2] >= began_ns)  # not one of that number long ago
    return int(steps[ranks, 1].min())


def _in_unix(steps: _Steps, clock: NodeClock) -> _Steps:
    return np.column_stack([steps[:, 0], clock.to_unix(steps[:, 1]), clock.to_unix(steps[:, 2])])
