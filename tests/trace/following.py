"""What a follower gave out, and what a reader finds afterwards, in one form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rltrace
from rltrace.testing.inside.trace import EVENT_TABLES, Follower, Rows, Table

Row = tuple[Any, ...]


def follow_to_the_end(follower: Follower) -> dict[str, list[Rows]]:
    """All that is given out when nobody writes any more, what is open last."""
    found: dict[str, list[Rows]] = {name: [] for name in EVENT_TABLES}
    for _ in range(2):
        everyone = frozenset(process.who for process in follower.processes)
        for name, rows in follower.poll(everyone).items():
            found[name].append(rows)
    assert not any(len(rows) for rows in follower.poll().values()), "a row came twice"
    for name in EVENT_TABLES:
        found[name].append(follower.unfinished(name))
    return found


def given(follower: Follower, table: Table, parts: Sequence[Rows]) -> list[Row]:
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
    selected = [
        f'n{i}.text AS "{c.name}"' if c.is_name else f'r."{c.name}"'
        for i, c in enumerate(table.columns)
    ]
    joins = " ".join(
        f'LEFT JOIN names n{i} ON n{i}.id = r."{c.name}"'
        for i, c in enumerate(table.columns)
        if c.is_name
    )
    query = f"SELECT {', '.join(selected)}, who FROM raw_{table.name} r {joins} "
    return _in_order(run.sql(query + "LEFT JOIN processes USING (process)").fetchall())


def _in_order(rows: list[Row]) -> list[Row]:
    """Sorted, with None for NaN, which equals nothing."""
    plain = [tuple(None if _is_nan(value) else value for value in row) for row in rows]
    return sorted(plain, key=repr)


def assert_same(follower: Follower, path: Path, found: dict[str, list[Rows]]) -> None:
    """Every row of the run was given out once, as it is."""
    for name, table in EVENT_TABLES.items():
        assert given(follower, table, found[name]) == read(path, table), name


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
