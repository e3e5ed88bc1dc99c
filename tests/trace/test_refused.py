"""Where DuckDB cannot go on, one sentence says why: no query is to blame, and none is called so."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pytest

import rltrace
from rltrace.testing.inside.trace import UNREADABLE, delete_segments
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import compaction_compact as compact
from rltrace.trace.read.sql_views import failed
from tests.cli.conftest import invoke, run, small_run

__all__ = ["run", "small_run"]  # fixtures

_SORTED = "SELECT max(a) FROM (SELECT range a, hash(range) b FROM range(5_000_000) ORDER BY b)"


def error_of(*statements: str) -> duckdb.Error:
    """What DuckDB raises for the last of them."""
    with duckdb.connect() as database:
        for statement in statements[:-1]:
            database.execute(statement)
        with pytest.raises(duckdb.Error) as raised:
            database.execute(statements[-1]).fetchall()
    return raised.value


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["SET temp_directory = ''"], "ask of fewer steps"),
        (["SET max_temp_directory_size = '1MB'"], "has no room"),
        (["SET temp_directory = '/proc/nowhere'"], "has no room"),
    ],
)
def test_what_does_not_fit_is_told(
    settings: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = failed(error_of("SET memory_limit = '20MB'", *settings, _SORTED))
    assert told is not None
    assert says in str(told)
    assert "\n" not in str(told)
    assert told.exit_code == UNREADABLE


@pytest.fixture
def garbled(run: Path) -> Path:
    """A compacted run in which the first rows of a file are noise, but not what it says of them."""
    compact(rltrace.open_run(run))
    delete_segments(run)
    (file,) = (run / "parquet" / "spans").iterdir()
    data = bytearray(file.read_bytes())
    data[4:200] = random.Random(1).randbytes(196)
    file.write_bytes(data)
    return run


@pytest.mark.parametrize(
    "words",
    [("report",), ("query", "FROM spans"), ("query", "@longest_spans"), ("timeline", "-o", "t")],
    ids=lambda words: words[-1],
)
def test_a_damaged_file_is_told_by_every_command(
    garbled: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(garbled.parent)
    result = invoke(words[0], garbled, *words[1:])
    assert "is damaged" in result.output
    assert len(result.output.splitlines()) == 1
    assert result.exit_code == UNREADABLE


def test_any_other_error_of_duckdb_is_no_traceback(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Run, query: str) -> None:
        raise duckdb.BinderException("Binder Error: no such macro\n\nLINE 1: ...")

    monkeypatch.setattr(Run, "ask", fails)
    result = invoke("report", run)
    assert result.output.endswith("Binder Error: no such macro\n")
    assert result.exit_code == UNREADABLE
