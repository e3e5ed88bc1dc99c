"""A table's file is a stock Arrow stream at every instant, whatever happens to its writer."""

from __future__ import annotations

import itertools
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from rltrace.testing.inside.trace import (
    SAMPLES,
    SPANS,
    TABLES,
    Table,
    batch_message,
    schema_message,
    segments_in,
)
from rltrace.trace.segment import (
    FIRST_BATCH_ROWS,
    LARGEST_BATCH_ROWS,
    UNKNOWN,
    TableWriter,
    release_maps,
)

ARROW_TYPES = {
    "b": pa.int8(),
    "i": pa.int32(),
    "q": pa.int64(),
    "f": pa.float32(),
    "d": pa.float64(),
}


def stored(folder: Path, segment: int = 0) -> list[dict[str, Any]]:
    """The rows of a segment, as pyarrow reads it."""
    path = str(folder / f"who.{segment}.arrows")
    with pa.memory_map(path) as source, ipc.open_stream(source) as stream:
        table = stream.read_all()
    table.validate(full=True)
    return [row for row in table.to_pylist() if next(iter(row.values())) != 0]


@pytest.fixture
def writer(tmp_path: Path) -> TableWriter:
    """A writer of spans into the test's folder."""
    return TableWriter(SPANS, str(tmp_path), "who")


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda t: t.name)
def test_headers_written_by_hand_are_what_pyarrow_reads(table: Table) -> None:
    header, offsets, body_bytes = batch_message(table, 128)
    stream = ipc.open_stream(schema_message(table) + header + b"\xff" * body_bytes)
    expected = pa.schema([pa.field(c.name, ARROW_TYPES[c.kind], False) for c in table.columns])
    assert stream.schema.equals(expected)
    batch = stream.read_next_batch()
    batch.validate(full=True)
    assert batch.num_rows == 128
    assert batch.column(0).to_pylist() == [-1] * 128
    assert offsets[0] == 0
    assert all(offset % 8 == 0 for offset in offsets)
    assert table.columns[0].is_time, "the marker"


def test_a_full_batch_costs_at_most_64_bytes_a_span() -> None:
    header, _, body_bytes = batch_message(SPANS, LARGEST_BATCH_ROWS)
    assert (len(header) + body_bytes) / LARGEST_BATCH_ROWS <= 64


def test_the_file_is_valid_before_and_after_every_single_row(
    tmp_path: Path, writer: TableWriter
) -> None:
    first = writer.append(start_ns=1, stage=3)
    for i in range(2, FIRST_BATCH_ROWS * 2):
        writer.append(start_ns=i, stage=3)
        assert [row["start_ns"] for row in stored(tmp_path)] == list(range(1, i + 1))
    first.set(end_ns=99)  # after later batches have begun
    assert [row["end_ns"] for row in stored(tmp_path)][:2] == [99, -1]


def test_a_row_without_its_marker_does_not_exist(tmp_path: Path, writer: TableWriter) -> None:
    batch, slot = writer.claim()
    batch.columns[SPANS.find("tokens")][slot] = 5
    assert stored(tmp_path) == []


def test_what_is_not_stored_is_unknown(tmp_path: Path) -> None:
    writer = TableWriter(TABLES["uses"], str(tmp_path), "who")
    writer.append(time_ns=5)
    (row,) = stored(tmp_path)
    assert row["tokens"] == -1
    assert row["sum_w"] != row["sum_w"]  # NaN


def test_batches_grow_only_where_they_fill_quickly(
    tmp_path: Path, writer: TableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a small process costs kilobytes."""
    now_ns = 10**12
    monkeypatch.setattr("rltrace.trace.segment.monotonic_ns", lambda: now_ns)
    batches = []
    for i in range(1, 3000):
        now_ns += 10**7 if i < 1500 else 10**8  # a hundred rows a second, then ten
        writer.append(start_ns=i)
        if i == 10:
            assert (tmp_path / "who.0.arrows").stat().st_size < 8192
        if not batches or batches[-1] is not writer.batch:
            batches.append(writer.batch)
    rows = [batch.rows for batch in batches]
    assert rows[:3] == [64, 256, 1024]
    assert set(rows[3:]) == {1024}


def test_a_long_segment_is_followed_by_another(
    tmp_path: Path, writer: TableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rltrace.trace.segment.SEGMENT_BYTES", 100_000)
    for i in range(1, 20_001):
        writer.append(start_ns=i)
    segments = len([*tmp_path.glob("who.*.arrows")])
    assert segments > 1
    starts = [row["start_ns"] for n in range(segments) for row in stored(tmp_path, n)]
    assert sorted(starts) == list(range(1, 20_001))


def in_four_threads(record: Callable[[int], None]) -> None:
    """Calls it with 0 to 3, in threads that take turns as often as they can."""
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=record, args=(t,)) for t in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)


def test_threads_do_not_overwrite_each_other(tmp_path: Path) -> None:
    writer = TableWriter(SAMPLES, str(tmp_path), "who")

    def record(thread: int) -> None:
        for i in range(5000):
            writer.append(time_ns=1 + thread * 5000 + i, counter=thread, value=i / 2)

    in_four_threads(record)
    rows = sorted(stored(tmp_path), key=lambda row: row["time_ns"])
    assert rows == [
        {"time_ns": n + 1, "counter": n // 5000, "device": -1, "value": n % 5000 / 2}
        for n in range(20_000)
    ]


def test_an_existing_file_is_never_written_into(tmp_path: Path, writer: TableWriter) -> None:
    (tmp_path / "who.0.arrows").write_bytes(b"somebody else's")
    writer.append(start_ns=1)
    assert (tmp_path / "who.0.arrows").read_bytes() == b"somebody else's"
    assert [row["start_ns"] for row in stored(tmp_path, 1)] == [1]


def test_a_file_has_its_name_only_once_it_is_a_stream(
    tmp_path: Path, writer: TableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt  # like SIGKILL, it ends `append` wherever it stands

    monkeypatch.setattr(os, "posix_fallocate", killed)
    with pytest.raises(KeyboardInterrupt):
        writer.append(start_ns=1)
    assert list(tmp_path.glob("*.arrows")) == []
    assert segments_in(tmp_path, SPANS) == [], "what it leaves is no problem worth telling"


def test_where_files_cannot_be_mapped_rows_are_written(
    tmp_path: Path, writer: TableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_mapping(*_: object, **__: object) -> None:  # a network file system, not to be had here
        raise OSError(19, "No such device")

    monkeypatch.setattr(mmap, "mmap", no_mapping)
    rows = [writer.append(start_ns=i, tokens=i) for i in range(1, 101)]
    rows[4].set(end_ns=77)
    found = stored(tmp_path)
    assert [row["tokens"] for row in found] == list(range(1, 101))
    assert found[4]["end_ns"] == 77


def test_no_descriptor_is_kept_by_the_writer(tmp_path: Path) -> None:
    """A program that closes every descriptor and opens its own file must find no byte of ours in
    it, even if the writer goes on."""
    program = f"""
import os
from rltrace.testing.inside.trace import SPANS
from rltrace.trace.segment import TableWriter
folder = {str(tmp_path)!r}
writer = TableWriter(SPANS, folder, "who")
for i in range(1, 40): writer.append(start_ns=i)
os.closerange(3, 256)
theirs = [open(folder + f"/theirs{{n}}", "wb") for n in range(8)]
for i in range(40, 20000): writer.append(start_ns=i)
for f in theirs: f.write(b"x" * 10); f.flush()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert all((tmp_path / f"theirs{n}").read_bytes() == b"x" * 10 for n in range(8))
    assert len(stored(tmp_path)) == 19_999


def test_released_batches_take_no_more(tmp_path: Path, writer: TableWriter) -> None:
    row = writer.append(start_ns=1)
    before = (tmp_path / "who.0.arrows").read_bytes()
    release_maps()
    row.set(end_ns=5)
    assert (tmp_path / "who.0.arrows").read_bytes() == before


USES = TABLES["uses"]
OF_ALL = {"step": 3, "version": 2, "fate": 0}


def of_each(count: int) -> dict[str, Any]:
    """Columns of so many uses that have a value a row, in each kind of sequence."""
    return {
        "time_ns": range(1, count + 1),
        "trajectory": [i * i - 7 for i in range(count)],
        "tokens": memoryview(bytes(i % 256 for i in range(count))),
        "sum_w": tuple(UNKNOWN if i % 3 else i / 7 for i in range(count)),
    }


def bits(folder: Path, who: str) -> list[bytes]:
    """What a writer has stored, bit by bit: each column of its rows."""
    with pa.memory_map(str(folder / f"{who}.0.arrows")) as source:
        columns = ipc.open_stream(source).read_all().columns
        used = columns[0].to_numpy() != 0
        return [column.to_numpy()[used].tobytes() for column in columns]


@pytest.mark.parametrize("count", [1, 4, 5, 63, 64, 65, 5000])
@pytest.mark.parametrize("before", [0, 1, 62, 64, 100])
def test_rows_of_one_call_are_bit_by_bit_those_of_many(
    tmp_path: Path, count: int, before: int
) -> None:
    """However many rows the batch has had that they begin in, and how many batches they take."""
    whole, single = TableWriter(USES, str(tmp_path), "whole"), TableWriter(USES, str(tmp_path), "s")
    for writer in (whole, single):
        for i in range(before):
            writer.append(time_ns=i + 10**6)
    assert (
        sum(end - first for _, first, end in whole.extend(count, OF_ALL | of_each(count))) == count
    )
    for row in zip(*of_each(count).values(), strict=True):
        known = dict(zip(of_each(0), row, strict=True))
        single.append(**OF_ALL, **{n: v for n, v in known.items() if v is not UNKNOWN})
    assert bits(tmp_path, "whole") == bits(tmp_path, "s")
    last = whole.append(time_ns=9)
    assert whole.batch.columns[0][last._slot] == 9, "the next row has a place of its own"


def test_no_row_at_all_makes_no_file(tmp_path: Path) -> None:
    assert not TableWriter(USES, str(tmp_path), "who").extend(0, OF_ALL | of_each(0))
    assert list(tmp_path.iterdir()) == []


def test_until_its_marker_is_stored_no_row_of_a_call_is_there(tmp_path: Path) -> None:
    """Whoever reads meanwhile, or kills the process, finds none. What a time limit strikes leaves
    space without rows, and the next rows are whole."""
    writer = TableWriter(USES, str(tmp_path), "who")
    writer.append(time_ns=1)
    seen = []

    class TimeLimit(BaseException):
        pass

    class Looks:
        def __index__(self) -> int:
            seen.append([row["time_ns"] for row in stored(tmp_path)])
            if len(seen) > 5:
                raise TimeLimit
            return 4

    writer.extend(5, {"time_ns": 7, "trajectory": range(5), "tokens": [Looks() for _ in range(5)]})
    assert seen == [[1]] * 5
    for count in (5, 1):  # a few rows are stored one by one
        with pytest.raises(TimeLimit):
            writer.extend(count, {"time_ns": 8, "trajectory": 9, "tokens": [Looks()] * count})
    writer.extend(2, {"time_ns": 9, "trajectory": [7, 8], "tokens": 4})
    found = [(row["time_ns"], row["trajectory"], row["tokens"]) for row in stored(tmp_path)]
    assert found == [(1, -1, -1), *((7, i, 4) for i in range(5)), (9, 7, 4), (9, 8, 4)]


def test_an_odd_value_of_many_leaves_its_own_cell_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, object]] = []
    monkeypatch.setattr("rltrace.trace.segment.on_misfit", lambda *odd: told.append(odd))
    writer = TableWriter(USES, str(tmp_path), "who")
    tokens = [1, "x", 5.0, None, 2**40, 6]
    writer.extend(6, {"time_ns": 5, "trajectory": range(6), "tokens": tokens, "step": 2**40})
    found = [(row["trajectory"], row["tokens"], row["step"]) for row in stored(tmp_path)]
    assert found == [(0, 1, -1), (1, -1, -1), (2, 5, -1), (3, -1, -1), (4, -1, -1), (5, 6, -1)]
    assert told == [("tokens", "x"), ("tokens", None), ("tokens", 2**40), *[("step", 2**40)] * 6]


@pytest.mark.parametrize("trajectories", [[1, 2], [1, 2, 3, 4]])
def test_a_column_of_another_length_stores_nothing(tmp_path: Path, trajectories: list[int]) -> None:
    writer = TableWriter(USES, str(tmp_path), "who")
    with pytest.raises(ValueError, match="3 rows need as many values of each of trajectory"):
        writer.extend(3, {"time_ns": 5, "trajectory": trajectories})
    assert list(tmp_path.iterdir()) == []


def test_rows_of_one_call_are_completed_all_alike(tmp_path: Path) -> None:
    """In all batches; once a child was forked, its parent's are left alone."""
    writer = TableWriter(USES, str(tmp_path), "who")
    rows = writer.extend(300, OF_ALL | of_each(300))
    writer.append(time_ns=10**6, step=5)
    rows.set(step=4, version=1.0)
    assert [row["step"] for row in stored(tmp_path)] == [4] * 300 + [5]
    assert [row["version"] for row in stored(tmp_path)] == [1] * 300 + [-1]
    before = (tmp_path / "who.0.arrows").read_bytes()
    release_maps()
    rows.set(step=7)
    assert (tmp_path / "who.0.arrows").read_bytes() == before


def test_many_rows_are_written_where_files_cannot_be_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_mapping(*_: object, **__: object) -> None:
        raise OSError(19, "No such device")

    TableWriter(USES, str(tmp_path), "mapped").extend(100, OF_ALL | of_each(100))
    monkeypatch.setattr(mmap, "mmap", no_mapping)
    TableWriter(USES, str(tmp_path), "written").extend(100, OF_ALL | of_each(100))
    assert bits(tmp_path, "written") == bits(tmp_path, "mapped")


def test_slots_that_do_not_lie_in_a_line_get_their_rows_too(tmp_path: Path) -> None:
    """Without a GIL another thread may get slots between those of a call."""
    writer = TableWriter(USES, str(tmp_path), "who")
    writer.append(time_ns=1)
    writer.batch.slots = itertools.count(2, 2)
    theirs = range(3, writer.batch.rows, 2)
    for slot in theirs:
        writer.batch.columns[0][slot] = 10**6 + slot
    writer.extend(200, OF_ALL | of_each(200))
    found = {(row["time_ns"], row["trajectory"], row["fate"]) for row in stored(tmp_path)}
    others = {(1, -1, -1), *((10**6 + slot, -1, -1) for slot in theirs)}
    assert found == others | {(i + 1, i * i - 7, 0) for i in range(200)}


def test_threads_that_store_many_rows_and_single_ones_do_not_overwrite_each_other(
    tmp_path: Path,
) -> None:
    writer = TableWriter(USES, str(tmp_path), "who")

    def record(thread: int) -> None:
        for call in range(100):
            ids = range(call * 90, call * 90 + 89)
            writer.extend(89, {"time_ns": 5, "trajectory": ids, "step": ids, "version": thread})
            writer.append(time_ns=5, trajectory=call * 90 + 89, step=call * 90 + 89, version=thread)

    in_four_threads(record)
    found = sorted((r["version"], r["trajectory"], r["step"]) for r in stored(tmp_path))
    assert found == [(thread, i, i) for thread in range(4) for i in range(9000)]
