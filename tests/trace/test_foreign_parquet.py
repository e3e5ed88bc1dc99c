"""Compacted runs that somebody else made: Parquet that `compact` would not have written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import rltrace
from rltrace.testing.inside.trace import (
    Follower,
    RltraceError,
    Run,
    compact,
    create_run,
    delete_segments,
)
from rltrace.trace.sources import MOST_SMALL_ROWS, check_stated
from tests.conftest import recorded

_PROGRAM = """
for n in range(3):
    with rltrace.step(n):
        with rltrace.span("rollout"): pass
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compacted run of three steps, without its segments; not to be written into."""
    path = tmp_path_factory.mktemp("made") / "run"
    create_run(str(path), ["python", "train.py"], {}, "test")
    recorded(path, _PROGRAM)
    compact(rltrace.open_run(path))
    delete_segments(path)
    return path


@pytest.fixture
def run(tmp_path: Path, made: Path) -> Path:
    """A copy of it of the test's own."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def spans_of(run: Path) -> Path:
    """The file of the run's spans."""
    return next((run / "parquet" / "spans").glob("*.parquet"))


def change(file: Path, how: Callable[[pa.Table], pa.Table]) -> None:
    """Writes a Parquet file anew."""
    parquet.write_table(how(parquet.ParquetFile(file).read()), file)


def with_column(
    name: str, values: Callable[[pa.ChunkedArray], pa.Array]
) -> Callable[..., pa.Table]:
    """A table with other values in a column."""
    return lambda table: table.set_column(
        table.schema.get_field_index(name), name, values(table[name])
    )


def steps_in(run: Run) -> list[int]:
    """The numbers of the steps that the spans tell of."""
    rows = run.sql("SELECT step FROM spans WHERE stage = 'step' ORDER BY step").fetchall()
    return [step for (step,) in rows]


@pytest.mark.parametrize("locked", [False, True])
def test_a_name_with_a_star_leads_to_no_other_file(run: Path, tmp_path: Path, locked: bool) -> None:
    """Of a pattern, DuckDB reads all that fits, where it leads."""
    outside, file = tmp_path / "outside.parquet", spans_of(run)
    outside.write_bytes(file.read_bytes())
    change(outside, with_column("step", lambda old: pa.array([777] * len(old), pa.int32())))
    star = file.rename(file.with_name("*.parquet"))
    (star.parent / "zz.parquet").symlink_to(outside)
    manifest = run / "parquet" / "manifest.json"
    said = json.loads(manifest.read_text())
    said["tables"]["spans"][0]["file"] = "spans/*.parquet"
    manifest.write_text(json.dumps(said))
    opened = rltrace.open_run(run)
    if locked:
        opened.lock()
    assert steps_in(opened) == [0, 1, 2]


def test_a_run_may_lie_where_a_name_has_brackets(run: Path, tmp_path: Path) -> None:
    named = run.rename(tmp_path / "run[1]")
    opened = rltrace.open_run(named)
    opened.lock()
    assert steps_in(opened) == [0, 1, 2]


def test_a_file_twice_is_no_table(run: Path) -> None:
    manifest = run / "parquet" / "manifest.json"
    said = json.loads(manifest.read_text())
    said["tables"]["spans"] *= 1000
    manifest.write_text(json.dumps(said))
    with pytest.raises(RltraceError, match="cannot be read"):
        rltrace.open_run(run)


@pytest.mark.parametrize(
    "values",
    [
        lambda old: pa.array([2**63 + 5] * len(old), pa.uint64()),
        lambda old: pa.array([1.5] * len(old)),
        lambda old: pa.array(["1"] * len(old)),
        lambda old: pa.array([[1]] * len(old)),
        lambda old: pa.array([{"start_ns": 1}] * len(old)),
        lambda old: pa.array([1] * len(old), pa.timestamp("ns")),
    ],
    ids=["unsigned", "float", "text", "list", "struct", "timestamp"],
)
def test_a_column_of_another_type_is_said_in_a_sentence(
    run: Path, values: Callable[[pa.ChunkedArray], pa.Array]
) -> None:
    change(spans_of(run), with_column("start_ns", values))
    with pytest.raises(RltraceError, match=r"spans.*start_ns has another type"):
        steps_in(rltrace.open_run(run))
    with pytest.raises(RltraceError, match=r"spans.*start_ns has another type"):
        Follower(run).poll()


def test_a_file_that_states_more_rows_than_it_can_have_is_not_read(run: Path) -> None:
    """A few megabytes of it would be all of a machine's memory."""
    file = spans_of(run)
    rows = pa.table({"start_ns": pa.array(np.ones(1 << 23, np.int64))})
    with parquet.ParquetWriter(file, rows.schema, compression="zstd") as writer:
        for _ in range(12):
            writer.write_table(rows, row_group_size=len(rows))
    assert file.stat().st_size < 1 << 20
    with pytest.raises(RltraceError, match="it states 100,663,296 rows"):
        rltrace.open_run(run).sql("SELECT count(*) FROM spans").fetchall()
    with pytest.raises(RltraceError, match="it states 100,663,296 rows"):
        Follower(run).poll()


def test_many_rows_are_read_where_their_file_is_as_large(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    file.write_bytes(bytes(1 << 20))
    check_stated(MOST_SMALL_ROWS + (16 << 20), [file])
    with pytest.raises(RltraceError, match="is no table"):
        check_stated(MOST_SMALL_ROWS + (16 << 20) + 1, [file])


def test_rows_of_a_process_that_the_run_does_not_have_are_left_out(run: Path) -> None:
    """Its number would be a place in every list of processes."""
    odd = {1: 2**31 - 1, 3: -(2**31)}
    change(
        spans_of(run),
        with_column(
            "process", lambda old: pa.array([odd.get(n, 0) for n in range(len(old))], pa.int32())
        ),
    )
    assert rltrace.open_run(run).sql("SELECT count(*) FROM spans").fetchall() == [(4,)]
    assert Follower(run).poll()["spans"]["process"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("ids", [[0, 0], [0, None]])
def test_a_name_has_one_text(run: Path, ids: list[int | None]) -> None:
    """Else each row would come as often."""
    names = pa.table({"id": pa.array(ids, pa.int32()), "text": ["a", "b"]})
    parquet.write_table(names, run / "parquet" / "names.parquet")
    with pytest.raises(RltraceError, match="holds no names"):
        rltrace.open_run(run).sql("SELECT * FROM spans").fetchall()
    with pytest.raises(RltraceError, match="holds no names"):
        Follower(run).poll()


def test_a_text_that_comes_in_many_rows_takes_no_memory(run: Path) -> None:
    """85 kB of a file were 20 GB of names."""
    once = pa.array(["A" * (1 << 20)])
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 400, pa.int32()), once)
    names = pa.table({"id": pa.array(range(400), pa.int32()), "text": texts})
    parquet.write_table(
        names, run / "parquet" / "names.parquet", compression="zstd", store_schema=False
    )
    with pytest.raises(RltraceError, match="its texts are longer than 256 MiB"):
        rltrace.open_run(run).sql("SELECT * FROM spans").fetchall()
    with pytest.raises(RltraceError, match="its texts are longer than 256 MiB"):
        Follower(run).poll()


def test_a_text_is_a_text(run: Path) -> None:
    names = pa.table({"id": pa.array([0], pa.int32()), "text": [["a"]]})
    parquet.write_table(names, run / "parquet" / "names.parquet")
    with pytest.raises(RltraceError, match="names"):
        rltrace.open_run(run).sql("SELECT * FROM spans").fetchall()
    with pytest.raises(RltraceError, match="names"):
        Follower(run).poll()


@pytest.mark.parametrize("folder", ["step=7", "start_ns=5", "lr=1e-5", "process=x"])
def test_the_name_of_a_folder_is_no_column(run: Path, tmp_path: Path, folder: str) -> None:
    """Sweeps name their folders so, and DuckDB reads `name=value` as a column with that value."""
    before = rltrace.open_run(run).sql("SELECT * FROM spans ORDER BY ALL")
    columns, rows = before.columns, before.fetchall()
    (tmp_path / folder).mkdir()
    moved = run.rename(tmp_path / folder / "run")
    opened = rltrace.open_run(moved)
    opened.lock()
    found = opened.sql("SELECT * FROM spans ORDER BY ALL")
    assert (found.columns, found.fetchall()) == (columns, rows)
    follower = Follower(moved)
    assert set(follower.poll()["spans"]["step"].tolist()) == {0, 1, 2}


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


@pytest.mark.parametrize("time_ns", [1 << 62, -5, -(1 << 63)])
def test_rows_of_no_possible_time_are_left_out(run: Path, time_ns: int) -> None:
    whole = rltrace.open_run(run).sql("SELECT count(*) FROM spans").fetchall()
    change(
        spans_of(run),
        with_column("start_ns", lambda old: pa.array([time_ns, *old.to_pylist()[1:]], pa.int64())),
    )
    assert whole == [(6,)]
    assert rltrace.open_run(run).sql("SELECT count(*) FROM spans").fetchall() == [(5,)]
    assert len(Follower(run).poll()["spans"]) == 5
