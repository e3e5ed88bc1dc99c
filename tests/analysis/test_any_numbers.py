"""Whatever numbers a trace holds, it has a summary and every form of report: no traceback."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.report import html, markdown, terminal, to_json
from rltrace.testing.inside.trace import TABLES, Column, Run, Table
from rltrace.testing.made import at, process, run_of


def random_column(rng: np.random.Generator, column: Column, n: int) -> Any:
    """Plausible, unknown and impossible values."""
    if column.is_name:
        return np.array(["a", "b", "c"])[rng.integers(0, 3, n)]
    if column.is_time:
        values = at(0) + rng.integers(0, 10 ** int(rng.integers(1, 17)), n)
    elif column.kind == "b":
        values = rng.integers(-1, 20, n)  # codes that nobody defined among them
    else:
        values = rng.integers(-1, 2 ** int(rng.integers(2, 31 if column.kind == "i" else 60)), n)
    return np.where(rng.random(n) < 0.2, -1, values)


def random_rows(rng: np.random.Generator, table: Table) -> dict[str, Any]:
    n = int(rng.integers(0, 60))
    columns = {column.name: random_column(rng, column, n) for column in table.columns}
    marker = table.columns[0].name
    columns[marker] = np.maximum(columns[marker], at(0))
    return columns


def random_run(folder: Path, seed: int) -> Run:
    """Three workers with rows in every table."""
    rng = np.random.default_rng(seed)
    made = [process("worker", rank=rank) for rank in range(3)]
    for one in made:
        for table in TABLES.values():
            columns = random_rows(rng, table)
            if table.name == "spans":
                one.spans += list(zip(*(c.tolist() for c in columns.values()), strict=True))
            else:
                one.rows(table.name, **columns)
    return run_of(folder, *made)


@pytest.mark.parametrize("seed", range(12))
def test_there_is_a_summary_and_a_report(tmp_path: Path, seed: int) -> None:
    run = random_run(tmp_path, seed)
    found = summarize(run)
    for step in found.steps.times:
        charged = sum(step.exposed_s.values()) + step.unattributed_s
        assert charged == pytest.approx(step.seconds, rel=1e-6, abs=1e-6)
    terminal.render(found, Console(file=io.StringIO(), width=80))
    assert markdown.render(found)
    assert json.dumps(to_json.render(found), allow_nan=False)
    assert html.render(run, found)
