"""A table's file is a stock Arrow stream at every instant, whatever happens to its writer."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
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


def test_threads_do_not_overwrite_each_other(tmp_path: Path) -> None:
    writer = TableWriter(SAMPLES, str(tmp_path), "who")
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def record(thread: int) -> None:
        for i in range(5000):
            writer.append(time_ns=1 + thread * 5000 + i, counter=thread, value=i / 2)

    threads = [threading.Thread(target=record, args=(t,)) for t in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
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
