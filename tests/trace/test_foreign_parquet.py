"""Compacted runs that somebody else made: Parquet that `compact` would not have written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import rltrace
from rltrace.testing.handmade_runs import process, run_of, turns
from rltrace.testing.inside.trace import MOST_SMALL_ROWS, RltraceError, delete_segments
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import RunFollower as Follower
from rltrace.testing.inside.trace import compaction_compact as compact
from rltrace.trace.compact.stored_rows import check_stated


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A compacted run of three steps, without its segments."""
    run = run_of(tmp_path, process("trainer", *turns(6.0, 6.0, 6.0)))
    compact(run)
    delete_segments(run.path)
    return run.path


def file_of(run: Path, table: str) -> Path:
    """The file of a table."""
    return next((run / "parquet").glob(f"{table}*/*.parquet"), run / f"parquet/{table}.parquet")


def with_column(run: Path, name: str, values: Callable[[list[Any]], pa.Array]) -> None:
    """The spans with other values in a column."""
    table = parquet.ParquetFile(file_of(run, "spans")).read()
    array = values(table[name].to_pylist())
    index = table.schema.get_field_index(name)
    parquet.write_table(table.set_column(index, name, array), file_of(run, "spans"))


def with_names(run: Path, ids: list[int | None], texts: Any, **how: Any) -> None:
    """The run with other names."""
    table = pa.table({"id": pa.array(ids, pa.int32()), "text": texts})
    parquet.write_table(table, file_of(run, "names"), **how)


def with_files(run: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """The manifest with other files of spans."""
    manifest = run / "parquet" / "manifest.json"
    said = json.loads(manifest.read_text())
    said["tables"]["spans"] = change(said["tables"]["spans"])
    manifest.write_text(json.dumps(said))


def steps_in(run: Run) -> list[int]:
    """The numbers of the steps that the spans tell of."""
    rows = run.sql("SELECT step FROM spans WHERE stage = 'step' ORDER BY step").fetchall()
    return [step for (step,) in rows]


@pytest.mark.parametrize("locked", [False, True])
def test_a_name_with_a_star_leads_to_no_other_file(run: Path, tmp_path: Path, locked: bool) -> None:
    """Of a pattern, DuckDB reads all that fits, where it leads."""
    file = file_of(run, "spans")
    mine = file.read_bytes()
    with_column(run, "step", lambda old: pa.array([777] * len(old), pa.int32()))
    outside = file.rename(tmp_path / "outside.parquet")
    file.with_name("*.parquet").write_bytes(mine)
    file.with_name("zz.parquet").symlink_to(outside)
    with_files(run, lambda files: [{**files[0], "file": "spans/*.parquet"}])
    opened = rltrace.open_run(run)
    if locked:
        opened.lock()
    assert steps_in(opened) == [0, 1, 2]


def many_rows(run: Path) -> None:
    """A few megabytes of it would be all of a machine's memory."""
    file = file_of(run, "spans")
    rows = pa.table({"start_ns": pa.array(np.ones(1 << 23, np.int64))})
    with parquet.ParquetWriter(file, rows.schema, compression="zstd") as writer:
        for _ in range(12):
            writer.write_table(rows, row_group_size=len(rows))
    assert file.stat().st_size < 1 << 20


def long_texts(run: Path) -> None:
    """85 kB of a file were 20 GB of names."""
    once = pa.array(["A" * (1 << 20)])
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 400, pa.int32()), once)
    with_names(run, list(range(400)), texts, compression="zstd", store_schema=False)


def as_starts(values: Callable[[int], pa.Array]) -> Callable[[Path], None]:
    """What is no time in the place of all times."""
    return lambda run: with_column(run, "start_ns", lambda old: values(len(old)))


def replaced(table: str, other: str | bytes) -> Callable[[Path], object]:
    """Another table's file, or something else, in the place of a table's."""

    def change(run: Path) -> None:
        content = other if isinstance(other, bytes) else file_of(run, other).read_bytes()
        file_of(run, table).write_bytes(content)

    return change


ANOTHER = r"spans.*start_ns has another type"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "unsigned": (as_starts(lambda n: pa.array([2**63 + 5] * n, pa.uint64())), ANOTHER),
    "timestamp": (as_starts(lambda n: pa.array([1] * n, pa.timestamp("ns"))), ANOTHER),
    "more rows than there can be": (many_rows, "it states 100,663,296 rows"),
    "no parquet": (replaced("spans", b"no parquet"), "spans"),
    "names for spans": (replaced("spans", "names"), "spans"),
    "no names": (replaced("names", b"PAR1"), "names"),
    "spans for names": (replaced("names", "spans"), "names"),
    # Else each row would come as often.
    "a name with two texts": (lambda run: with_names(run, [0, 0], ["a", "b"]), "holds no names"),
    "a text of no name": (lambda run: with_names(run, [0, None], ["a", "b"]), "holds no names"),
    "a text that is a list": (lambda run: with_names(run, [0], [["a"]]), "names"),
    "texts beyond memory": (long_texts, "longer than 64 MiB"),
    "a file a thousand times": (lambda run: with_files(run, lambda it: it * 1000), "cannot be rea"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_table_is_refused_by_all_who_read_it(run: Path, damage: str) -> None:
    change, said = DAMAGES[damage]
    change(run)
    with pytest.raises(RltraceError, match=said):
        rltrace.open_run(run).sql("SELECT * FROM spans").fetchall()
    with pytest.raises(RltraceError, match=said):
        Follower(run).poll()


def test_many_rows_are_read_where_their_file_is_as_large(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    file.write_bytes(bytes(1 << 20))
    check_stated(MOST_SMALL_ROWS + (2 << 20), [file])
    with pytest.raises(RltraceError, match="is no table"):
        check_stated(MOST_SMALL_ROWS + (2 << 20) + 1, [file])


ODD = {1: 2**31 - 1, 3: -(2**31)}


@pytest.mark.parametrize(
    ("column", "values", "left"),
    [
        # The number of a process that the run does not have would be a place in every list of them.
        ("process", lambda old: pa.array([ODD.get(n, 0) for n in range(len(old))], pa.int32()), 7),
        ("start_ns", lambda old: pa.array([1 << 62, *old[1:]]), 8),
        ("start_ns", lambda old: pa.array([-5, *old[1:]]), 8),
        ("start_ns", lambda old: pa.array([-(1 << 63), *old[1:]]), 8),
    ],
    ids=["process", "far", "before", "long before"],
)
def test_rows_that_cannot_be_are_left_out(
    run: Path, column: str, values: Callable[[list[Any]], pa.Array], left: int
) -> None:
    assert rltrace.open_run(run).rows("spans") == 9
    with_column(run, column, values)
    found = "SELECT count(*), max(process) FROM raw_spans"
    assert rltrace.open_run(run).sql(found).fetchall() == [(left, 0)]
    assert Follower(run).poll()["spans"]["process"].tolist() == [0] * left


@pytest.mark.parametrize("folder", ["step=7", "start_ns=5", "lr=1e-5", "process=x", "[1]"])
def test_the_name_of_a_folder_is_no_column_and_no_pattern(
    run: Path, tmp_path: Path, folder: str
) -> None:
    """Sweeps name their folders so, and DuckDB reads `name=value` as a column with that value."""
    before = rltrace.open_run(run).sql("SELECT * FROM spans ORDER BY ALL")
    columns, rows = before.columns, before.fetchall()
    (tmp_path / folder).mkdir()
    moved = run.rename(tmp_path / folder / "run")
    opened = rltrace.open_run(moved)
    opened.lock()
    found = opened.sql("SELECT * FROM spans ORDER BY ALL")
    assert (found.columns, found.fetchall()) == (columns, rows)
    assert set(Follower(moved).poll()["spans"]["step"].tolist()) == {-1, 0, 1, 2}


def test_steps_that_are_none_are_none(run: Path) -> None:
    steps = run / "parquet" / "steps.parquet"
    known = rltrace.open_run(run).step_rows()
    columns = {"step": [1, None], "start_ns": [5, 6], "end_ns": [7, 8], "process": [0, 0]}
    parquet.write_table(pa.table(columns), steps)
    assert len(known) == 3
    assert rltrace.open_run(run).step_rows() == [(1, 5, 7, 0)]
    steps.write_bytes(b"no parquet")
    with pytest.raises(RltraceError, match="cannot be read"):
        rltrace.open_run(run).step_rows()
