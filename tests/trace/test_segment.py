"""A table's file is a stock Arrow stream at every instant, whatever happens to its writer."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc

from rltrace.testing.inside.trace import (
    SAMPLES,
    SPANS,
    TABLES,
    Table,
    batch_message,
    read_segments,
    schema_message,
)
from rltrace.trace.segment import (
    FIRST_BATCH_ROWS,
    LARGEST_BATCH_ROWS,
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


def read(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source, ipc.open_stream(source) as stream:
        table = stream.read_all()
    table.validate(full=True)
    return table


def stored(path: Path) -> list[dict]:
    return [row for row in read(path).to_pylist() if next(iter(row.values())) != 0]


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


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda t: t.name)
def test_the_marker_is_the_first_column_and_a_time(table: Table) -> None:
    assert table.columns[0].is_time


def test_a_full_batch_costs_at_most_64_bytes_a_span() -> None:
    header, _, body_bytes = batch_message(SPANS, LARGEST_BATCH_ROWS)
    assert (len(header) + body_bytes) / LARGEST_BATCH_ROWS <= 64


def test_rows_are_read_back_over_many_batches(tmp_path: Path) -> None:
    writer = TableWriter(SAMPLES, str(tmp_path), "who")
    for i in range(1, 30_000):
        writer.append(time_ns=i, counter=i % 7, value=i / 2)
    rows = stored(tmp_path / "who.0.arrows")
    assert [row["time_ns"] for row in rows] == list(range(1, 30_000))
    assert rows[99] == {"time_ns": 100, "counter": 2, "device": -1, "value": 50.0}


def test_the_file_is_valid_before_and_after_every_single_row(tmp_path: Path) -> None:
    writer = TableWriter(SPANS, str(tmp_path), "who")
    path = tmp_path / "who.0.arrows"
    for i in range(1, FIRST_BATCH_ROWS * 2):
        writer.append(start_ns=i, stage=3)
        assert len(stored(path)) == i


def test_a_row_without_its_marker_does_not_exist(tmp_path: Path) -> None:
    writer = TableWriter(SPANS, str(tmp_path), "who")
    batch, slot = writer.claim()
    batch.columns[SPANS.index("tokens")][slot] = 5
    assert stored(tmp_path / "who.0.arrows") == []


def test_what_is_not_stored_is_unknown(tmp_path: Path) -> None:
    writer = TableWriter(TABLES["uses"], str(tmp_path), "who")
    writer.append(time_ns=5)
    (row,) = stored(tmp_path / "who.0.arrows")
    assert row["tokens"] == -1
    assert row["sum_w"] != row["sum_w"]  # NaN


def test_a_row_can_be_completed_after_later_batches_have_begun(tmp_path: Path) -> None:
    writer = TableWriter(SPANS, str(tmp_path), "who")
    first = writer.append(start_ns=1)
    for i in range(2, 5000):
        writer.append(start_ns=i)
    first.set(end_ns=99)
    assert stored(tmp_path / "who.0.arrows")[0]["end_ns"] == 99


def test_a_small_process_costs_kilobytes(tmp_path: Path) -> None:
    writer = TableWriter(SPANS, str(tmp_path), "who")
    for i in range(1, 11):
        writer.append(start_ns=i)
    assert (tmp_path / "who.0.arrows").stat().st_size < 8192


def test_batches_grow_only_where_they_fill_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 10**12
    monkeypatch.setattr("rltrace.trace.segment.monotonic_ns", lambda: now_ns)
    writer = TableWriter(SPANS, str(tmp_path), "who")
    sizes = []
    for i in range(1, 3000):
        now_ns += 10**7 if i < 1500 else 10**8  # a hundred rows a second, then ten
        writer.append(start_ns=i)
        if not sizes or sizes[-1] is not writer.batch:
            sizes.append(writer.batch)
    rows = [batch.rows for batch in sizes]
    assert rows[:3] == [64, 256, 1024]
    assert set(rows[3:]) == {1024}


def test_a_long_segment_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rltrace.trace.segment.SEGMENT_BYTES", 100_000)
    writer = TableWriter(SPANS, str(tmp_path), "who")
    for i in range(1, 20_001):
        writer.append(start_ns=i)
    paths = sorted(tmp_path.glob("who.*.arrows"))
    assert len(paths) > 1
    starts = [row["start_ns"] for path in paths for row in stored(path)]
    assert sorted(starts) == list(range(1, 20_001))


def test_threads_do_not_overwrite_each_other(tmp_path: Path) -> None:
    writer = TableWriter(SAMPLES, str(tmp_path), "who")
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def record(thread: int) -> None:
            for i in range(5000):
                writer.append(time_ns=1 + thread * 5000 + i, counter=thread)

        threads = [threading.Thread(target=record, args=(t,)) for t in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    rows = stored(tmp_path / "who.0.arrows")
    assert sorted(row["time_ns"] for row in rows) == list(range(1, 20_001))
    assert all((row["time_ns"] - 1) // 5000 == row["counter"] for row in rows)


def test_an_existing_file_is_never_written_into(tmp_path: Path) -> None:
    (tmp_path / "who.0.arrows").write_bytes(b"somebody else's")
    writer = TableWriter(SPANS, str(tmp_path), "who")
    writer.append(start_ns=1)
    assert (tmp_path / "who.0.arrows").read_bytes() == b"somebody else's"
    assert [row["start_ns"] for row in stored(tmp_path / "who.1.arrows")] == [1]


def test_a_file_has_its_name_only_once_it_is_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt  # like SIGKILL, it ends `append` wherever it stands

    monkeypatch.setattr(os, "posix_fallocate", killed)
    with pytest.raises(KeyboardInterrupt):
        TableWriter(SPANS, str(tmp_path), "who").append(start_ns=1)
    assert list(tmp_path.glob("*.arrows")) == []
    assert list(read_segments(tmp_path, SPANS)) == [], "what it leaves is no problem worth telling"


def test_where_files_cannot_be_mapped_rows_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_mapping(*_: object, **__: object) -> None:  # a network file system, not to be had here
        raise OSError(19, "No such device")

    monkeypatch.setattr(mmap, "mmap", no_mapping)
    writer = TableWriter(SPANS, str(tmp_path), "who")
    rows = [writer.append(start_ns=i, tokens=i) for i in range(1, 101)]
    rows[4].set(end_ns=77)
    assert [r["tokens"] for r in stored(tmp_path / "who.0.arrows")] == list(range(1, 101))
    assert stored(tmp_path / "who.0.arrows")[4]["end_ns"] == 77


def test_no_descriptor_is_kept_by_the_writer(tmp_path: Path) -> None:
    """A program that closes every descriptor and opens its own file must find no byte of ours in
    it, even if the writer goes on."""
    program = f"""
import os
from rltrace.testing.inside.trace import SPANS
from rltrace.trace.segment import TableWriter
writer = TableWriter(SPANS, {str(tmp_path)!r}, "who")
for i in range(1, 40): writer.append(start_ns=i)
os.closerange(3, 256)
theirs = [open({str(tmp_path)!r} + f"/theirs{{n}}", "wb") for n in range(8)]
for i in range(40, 20000): writer.append(start_ns=i)
for f in theirs: f.write(b"x" * 10); f.flush()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert all((tmp_path / f"theirs{n}").read_bytes() == b"x" * 10 for n in range(8))
    assert len(stored(tmp_path / "who.0.arrows")) == 19_999


def test_no_space_is_an_error_before_anything_is_mapped(tmp_path: Path) -> None:
    """With a limit on the file size every allocation past it fails, as on a full disk."""
    program = f"""
import resource
from rltrace.testing.inside.trace import SPANS
from rltrace.trace.segment import TableWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
writer = TableWriter(SPANS, {str(tmp_path)!r}, "who")
kept = 0
try:
    for i in range(1, 20000): writer.append(start_ns=i); kept = i
except OSError as error:
    print(kept)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    kept = int(done.stdout)
    assert kept >= FIRST_BATCH_ROWS
    assert len(stored(tmp_path / "who.0.arrows")) == kept


def test_released_batches_take_no_more(tmp_path: Path) -> None:
    writer = TableWriter(SPANS, str(tmp_path), "who")
    row = writer.append(start_ns=1)
    before = (tmp_path / "who.0.arrows").read_bytes()
    release_maps()
    row.set(end_ns=5)
    assert (tmp_path / "who.0.arrows").read_bytes() == before
