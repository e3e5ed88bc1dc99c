"""The parsers of a run directory's own files: segments, names, processes, clocks, manifests."""

from __future__ import annotations

import json
import struct
from itertools import product
from pathlib import Path

import numpy as np

import rltrace
from rltrace.testing.inside.report import entries, inventory
from rltrace.testing.inside.trace import (
    ENDS,
    MANIFEST_FILE,
    PARQUET,
    TABLES,
    WIDTH_BYTES,
    FollowedNames,
    GrowingSegment,
    RunFiles,
    Table,
    Taken,
    align,
    batch_message,
    read_clock_files,
    read_described,
    read_ends,
    read_manifest,
    schema_message,
    segments_in,
)
from rltrace.testing.inside.trace import RunFollower as Follower
from tests.fuzz.target import Target, costly, modules, parts, put

_TABLES = list(TABLES.values())
_OPENED = 8  # of so many runs, one is opened as a database
_WHO = "host-1-2-abcdef"
_META = {"schema_version": 1, "id": "run", "command": ["python", "a.py"], "start_real_ns": 10**18}


def batch(table: Table, rows: list[list[float]]) -> bytes:
    """A whole batch of a segment."""
    message, offsets, body_bytes = batch_message(table, len(rows))
    body = bytearray(body_bytes)
    for i, column in enumerate(table.columns):
        for n, row in enumerate(rows):
            place = offsets[i] + n * WIDTH_BYTES[column.kind]
            struct.pack_into(f"<{column.kind}", body, place, row[i])
    return message + bytes(body)


def segment(table: Table, *rows: int) -> bytes:
    """A segment with a batch of each of these numbers of rows, every fifth one not stored."""

    def row(n: int) -> list[float]:
        times = iter(range(10**9 + n * 1000, 10**10))
        values = [next(times) if c.is_time else n % 5 for c in table.columns]
        return [0 if n % 5 == 4 else values[0], *values[1:]]

    return schema_message(table) + b"".join(batch(table, [*map(row, range(n))]) for n in rows)


def _segments() -> list[bytes]:
    shapes = [(), (3,), (1, 5), (8,)]
    whole = [
        bytes([i]) + segment(table, *rows)
        for (i, table), rows in product(enumerate(_TABLES), shapes)
    ]
    came = [bytes([way * len(_TABLES)]) + whole[2][1:] for way in (_GREW, _TAKEN, _CUT)]
    return [*whole, *came, whole[1] + b"\xff\xff\xff\xff\0\0\0\0", whole[2][:-9], bytes(9)]


def _read_segment(data: bytes, folder: Path) -> None:
    """The reader and the follower of segments, which have to find the same rows. The first byte
    says of which table, and how the file came to be what it is."""
    came, number = divmod(data[0] if data else 0, len(_TABLES))
    table, data = _TABLES[number], data[1:]
    path = folder / f"{_WHO}.0.arrows"
    following = GrowingSegment(path, table)
    seen = 0
    if came % 8 == _GREW:
        put(path, data[: len(data) // 2])
        seen = len(following.poll()[0])
    put(path, data)
    (segment,) = segments_in(folder, table)
    (found,) = {len(column) for column in segment.rest()}
    assert found * 8 <= len(data), "rows that are not there"
    seen += len(following.poll(final=True)[0]) + len(following.unfinished[0])
    if following.problem is None:
        assert seen == found, f"{seen} rows followed, {found} read"
    if came % 8 == _TAKEN:
        assert len(segment.rest(Taken(2, (1,), len(data)))[0]) <= found
    if came % 8 == _CUT:
        put(path, data[: len(data) // 2])
    again = len(following.poll(final=True)[0])
    assert again == 0 or following.problem


_GREW, _TAKEN, _CUT = 1, 2, 3


def _run_of(folder: Path, data: bytes, files: tuple[str, ...]) -> None:
    """A run directory of which the input is some files."""
    for name, content in zip(files, parts(data, len(files)), strict=True):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        put(path, content)


def _read_names(data: bytes, folder: Path) -> None:
    """The reader and the follower of names, which have to find the same texts."""
    names = folder / "names"
    names.mkdir(exist_ok=True)
    put(names / f"{_WHO}.jsonl", data)
    files = RunFiles(folder, _META)
    ids = files.translated(TABLES["samples"], _WHO, _SAMPLES)[1]
    texts = list(files.names)
    followed = FollowedNames(names)
    numbers = followed.translated(_WHO, _SAMPLES[1])
    assert len(ids) == len(numbers) == len(_SAMPLES[1])
    shown = [texts[i] if i >= 0 else None for i in ids]
    if data.endswith(b"\n"):  # else the last line may not be whole yet
        assert shown == [followed.texts[i] if i >= 0 else None for i in numbers]


_ROWS = [
    [time_ns, counter, 0, 1.0]
    for time_ns, counter in ((10**9, 0), (10**9 + 1, 1), (10**9 + 2, 2**31 - 1), (1, -1))
]
_SAMPLE = batch(TABLES["samples"], _ROWS)
_SAMPLES = [
    np.array(values, f"<{column.kind}")
    for column, values in zip(TABLES["samples"].columns, zip(*_ROWS, strict=True), strict=True)
]


def _prepare(folder: Path) -> None:
    """A run with one process and one table."""
    if (folder / "run.json").exists():
        return
    put(folder / "run.json", json.dumps(_META).encode())
    for name in ("names", "process", "clocks", "problems", "ends", *TABLES):
        (folder / name).mkdir()
    facts = {"node": "n", "clock": {"monotonic_ns": 5, "real_ns": 10**18, "bracket_ns": 1}}
    put(folder / "process" / f"{_WHO}.json", json.dumps(facts).encode())
    samples = schema_message(TABLES["samples"]) + _SAMPLE
    put(folder / "samples" / f"{_WHO}.0.arrows", samples)


def _read_processes(data: bytes, folder: Path) -> None:
    _prepare(folder)
    files = ("process/a.json", "process/b.json", "problems/a.jsonl", "ends/a.jsonl")
    _run_of(folder, data, files)
    found = RunFiles(folder, _META)
    read_ends(folder, found.processes)
    json.dumps([process.facts for process in found.processes])
    if costly(data, 1):
        Follower(folder).poll()
    if costly(data, _OPENED):
        run = rltrace.open_run(folder)
        inventory(run)


def _read_clocks(data: bytes, folder: Path) -> None:
    _run_of(folder, data, ("clocks/a.jsonl", "clocks/b.jsonl"))
    pairs, exchanges, _ = read_clock_files(folder / "clocks")
    for clock in align("a", pairs, exchanges).values():
        clock.to_unix(_TIMES)


def _read_endings(data: bytes, folder: Path) -> None:
    """What parents say of how their children ended."""
    _prepare(folder)
    _run_of(folder, data, (f"{ENDS}/{_WHO}.jsonl",))
    found = RunFiles(folder, _META)
    read_ends(folder, found.processes)


def _read_run_json(data: bytes, folder: Path) -> None:
    _prepare(folder)
    put(folder / "run.json", data)
    entries([folder])
    json.dumps(RunFiles(folder, read_described(str(folder))).problems)


def _read_manifest(data: bytes, folder: Path) -> None:
    if not (folder / PARQUET).exists():
        _prepare(folder)
        for name in (*TABLES, "names", "steps"):
            (folder / PARQUET / name).mkdir(parents=True)
            put(folder / PARQUET / f"{name}.parquet", b"")
            put(folder / PARQUET / name / "0.parquet", b"")
        for name in TABLES:
            for path in (folder / name).glob("*"):
                path.unlink()
    _run_of(folder, data, (f"{PARQUET}/{MANIFEST_FILE}",))
    if read_manifest(folder) is not None:
        RunFiles(folder, _META)
        Follower(folder)


_TIMES = np.array([0, -1, 1, 10**9, 2**62, -(2**63), 2**63 - 1], np.int64)

_T = "rltrace.trace"

TARGETS = (
    Target(
        "segment",
        _read_segment,
        modules(_T, "segments stream arrow_layout growing own_files taken"),
        _segments,
    ),
    Target("names", _read_names, modules(_T, "names files")),
    Target("process", _read_processes, modules(_T, "processes run_processes stated files follow")),
    Target("endings", _read_endings, modules(_T, "ends")),
    Target("clocks", _read_clocks, modules(_T, "alignment")),
    Target("run.json", _read_run_json, modules(_T, "run_dir stated")),
    Target("manifest", _read_manifest, modules(_T, "manifest")),
)
