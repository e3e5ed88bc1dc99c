"""What a follower gave out, and what a reader finds afterwards, in one form."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import rltrace
from rltrace.testing.inside.trace import EVENT_TABLES, Rows, Table
from rltrace.testing.inside.trace import RunFollower as Follower

Row = tuple[Any, ...]


class Followed:
    """A run that is followed, with all that was given out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.follower = Follower(path)
        self.found: dict[str, list[Rows]] = {name: [] for name in EVENT_TABLES}

    def poll(self, ended: Collection[str] = ()) -> None:
        """Takes what is new; of processes that have ended, everything."""
        for name, rows in self.follower.poll(frozenset(ended)).items():
            self.found[name].append(rows)

    def assert_whole(self) -> None:
        """Nobody writes any more: every row of the run was given out once, as it is."""
        for _ in range(2):
            self.poll([process.who for process in self.follower.processes])
        assert not any(len(rows) for rows in self.follower.poll().values()), "a row came twice"
        for name, table in EVENT_TABLES.items():
            parts = [*self.found[name], self.follower.unfinished(name)]
            assert _given(self.follower, table, parts) == read(self.path, table), name


def _given(follower: Follower, table: Table, parts: Sequence[Rows]) -> list[Row]:
    """Rows as tuples in order: names as text, and who stored them."""
    rows: list[Row] = []
    for part in parts:
        columns = [part[column.name].tolist() for column in table.columns]
        for i, column in enumerate(table.columns):
            if column.is_name:
                columns[i] = [follower.name(n) if n >= 0 else None for n in columns[i]]
        who = [follower.processes[number].who for number in part["process"].tolist()]
        rows += zip(*columns, who, strict=True)
    return _in_order(rows)


def read(path: Path, table: Table) -> list[Row]:
    """The same of a run that is opened."""
    run = rltrace.open_run(path)
    assert run.connection, "all tables are made"
    selected = [
        f'n{i}.text AS "{c.name}"' if c.is_name else f'r."{c.name}"'
        for i, c in enumerate(table.columns)
    ]
    joins = " ".join(
        f'LEFT JOIN names n{i} ON n{i}.id = r."{c.name}"'
        for i, c in enumerate(table.columns)
        if c.is_name
    )
    query = f"SELECT {', '.join(selected)}, who FROM recorded_{table.name} r {joins} "
    return _in_order(run.sql(query + "LEFT JOIN processes USING (process)").fetchall())


def _in_order(rows: list[Row]) -> list[Row]:
    """Sorted, with None for NaN, which equals nothing."""
    plain = [tuple(None if _is_nan(value) else value for value in row) for row in rows]
    return sorted(plain, key=repr)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
