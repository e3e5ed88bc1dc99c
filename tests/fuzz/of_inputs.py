"""The parsers of what somebody writes or hands over: baselines, settings, workloads, queries."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import rltrace
from rltrace.testing.inside.analysis import (
    Constants,
    plan,
    read_baseline,
    read_stages,
    read_workload,
    spec_of,
    write_baseline,
)
from rltrace.testing.inside.report import named_queries, torch_profile
from rltrace.testing.inside.run import FILE, read_settings
from rltrace.testing.inside.trace import only_asks
from tests.fuzz.target import Target, costly, modules, put, reading

if TYPE_CHECKING:
    import duckdb

_ROOT = Path(__file__).parent.parent.parent
_PLANNED = 16  # of so many inputs, one that is a workload is planned for


def _read_baseline(data: bytes, folder: Path) -> None:
    found = read_baseline(put(folder / "baseline.json", data))
    write_baseline(found, folder / "again.json")
    assert len(read_baseline(folder / "again.json").runs) == len(found.runs)


def _read_workload(data: bytes, folder: Path) -> None:
    spec = spec_of(read_workload(put(folder / "workload.toml", data)), "workload.toml")
    if costly(data, _PLANNED):
        plan(spec)


def _workloads() -> list[bytes]:
    return [file.read_bytes() for file in sorted(_ROOT.glob("examples/workloads/*.toml"))]


def _read_stages(data: bytes, folder: Path) -> None:
    found = read_stages(put(folder / "stages.toml", data))
    if costly(data, _PLANNED):
        found.workload(Constants())


def _stages() -> list[bytes]:
    """Those of published jobs: colocated and not, with devices and without."""
    published = _ROOT / "benchmarks" / "published"
    names = ("miles", "verl-64", "dora-64", "nemo-aligner")
    return [(published / f"{name}.toml").read_bytes() for name in names]


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """One with a table, closed as `rltrace query` closes it."""
    run = rltrace.open_run(_ROOT / "tests" / "fixtures" / "run-schema-1")
    run.lock()
    return run.connection


def _ask(data: bytes, folder: Path) -> None:
    """A statement that passes for a question is bound, not run: what it may reach is refused by
    then, and a query may take as long as it likes."""
    import duckdb

    query = data.decode("utf-8", "replace")
    try:
        only_asks(query)
        for statement in duckdb.extract_statements(query)[:1]:
            if statement.type == duckdb.StatementType.SELECT:
                _database().sql(f"EXPLAIN {statement.query}")
                lock = _database().sql("SELECT current_setting('lock_configuration')")
                assert lock.fetchall() == [(True,)]
    except (duckdb.Error, RuntimeError):
        pass


_ANALYSIS = "rltrace.analysis"
_PLAN = f"{_ANALYSIS}.plan"

TARGETS = (
    Target("baseline", _read_baseline, modules(_ANALYSIS, "gate.baseline")),
    Target(
        "gate-settings",
        reading(lambda path: read_settings(path.parent), FILE),
        (*modules("rltrace.run", "gate_settings"), *modules(_ANALYSIS, "conditions")),
    ),
    Target("workload", _read_workload, modules(_PLAN, "reading hardware shapes"), _workloads),
    Target("stages", _read_stages, modules(_ANALYSIS, "whatif.stated"), _stages),
    Target(
        "torch-profile",
        reading(torch_profile.read, "profile.json"),
        modules("rltrace.report", "perfetto.torch_profile"),
    ),
    Target(
        "query",
        _ask,
        modules("rltrace.trace", "questions"),
        lambda: [query.sql.encode() for query in named_queries()],
    ),
)
