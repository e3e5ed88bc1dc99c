"""A run that is followed while it is written gives out each row once, as later readers find it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rltrace
from benchmarks.make_trace import Workload, make
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.trace import (
    SPANS,
    TABLES,
    GrowingSegment,
    RltraceError,
    Stage,
    TableWriter,
    create_run,
    growing,
    open_own,
    parquet,
    segment,
)
from rltrace.trace.follow import Follower, Rows
from tests.trace.following import assert_same, follow_to_the_end

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run-schema-1"

SMALL = {"steps": 4, "prompts": 4, "group": 2}

WRITER = """
import sys, threading, random
from rltrace.testing.inside.hooks import Recorder
recorder = Recorder(sys.argv[1], role="writer")
def work(seed):
    draw = random.Random(seed)
    n = 0
    while True:
        n += 1
        outer = recorder.begin(recorder.name(f"outer {n % 50}"), 0, tokens=n)
        row = recorder.append("trajectories", start_ns=n, trajectory=n)
        for _ in range(draw.randrange(6)):
            recorder.begin(recorder.name("inner"), 1, bytes=n).end()
        row.set(end_ns=n + 1, response_tokens=n % 100)
        if draw.random() < 0.1:
            outer.discard()
        elif draw.random() < 0.9:
            outer.set(items=n % 7)
            outer.end()
        recorder.append("samples", time_ns=n, counter=recorder.name("x_bytes"), value=n / 2)
for seed in range(4):
    threading.Thread(target=work, args=(seed,)).start()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    create_run(str(path), ["job"], {}, "0")
    return path


@pytest.fixture
def recorder(folder: Path) -> Recorder:
    return Recorder(str(folder), role="learner")


@pytest.fixture
def writing(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose threads record as fast as they can."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(folder)]) as process:
        try:
            yield process
        finally:
            process.kill()


def test_each_row_once_while_threads_write_and_their_process_is_killed(
    folder: Path, writing: subprocess.Popen[bytes]
) -> None:
    follower = Follower(folder)
    found: dict[str, list[Rows]] = {name: [] for name in TABLES}
    while sum(len(rows) for rows in found["spans"]) < 10_000:
        for name, rows in follower.poll().items():
            found[name].append(rows)
        time.sleep(0.02)
    writing.kill()
    writing.wait()
    for name, parts in follow_to_the_end(follower).items():
        found[name] += parts
    assert_same(follower, folder, found)


def test_an_interval_is_unfinished_until_it_ends(folder: Path, recorder: Recorder) -> None:
    span = recorder.begin(recorder.name("generate"), Stage.ROLLOUT)
    follower = Follower(folder)
    assert len(follower.poll()["spans"]) == 0
    assert follower.unfinished("spans")["end_ns"].tolist() == [-1]
    span.set(tokens=7)  # what becomes known on the way is seen
    follower.poll()
    assert follower.unfinished("spans")["tokens"].tolist() == [7]
    span.end()
    polled = [follower.poll()["spans"] for _ in range(3)]
    assert [len(rows) for rows in polled] == [0, 1, 0]
    assert len(follower.unfinished("spans")) == 0
    assert follower.name(int(polled[1]["name"][0])) == "generate"


def test_what_is_stored_with_the_end_is_complete(folder: Path, recorder: Recorder) -> None:
    """A hook stores `end_ns` first and other columns right after: a row is not given out before."""
    row = recorder.append("trajectories", trajectory=5, start_ns=10**12)
    assert row is not None
    follower = Follower(folder)
    row.set(end_ns=10**12 + 5)
    assert len(follower.poll()["trajectories"]) == 0
    row.set(response_tokens=100)
    assert follower.poll()["trajectories"]["response_tokens"].tolist() == [100]


def test_when_nothing_more_can_come_what_has_ended_is_complete(
    folder: Path, recorder: Recorder
) -> None:
    recorder.begin(recorder.name("a"), Stage.TRAIN).end()
    recorder.begin(recorder.name("b"), Stage.TRAIN)
    follower = Follower(folder)
    ended = frozenset({recorder.who})
    assert [follower.name(n) for n in follower.poll(ended)["spans"]["name"].tolist()] == ["a"]
    assert [follower.name(n) for n in follower.unfinished("spans")["name"].tolist()] == ["b"]
    assert len(follower.poll(ended)["spans"]) == 0


def test_counts_below_zero_are_unknown(folder: Path, recorder: Recorder) -> None:
    recorder.begin(recorder.name("a"), Stage.TRAIN, tokens=-5, bytes=7).end()
    recorder.begin(recorder.name("b"), Stage.TRAIN, tokens=-7)
    follower = Follower(folder)
    ended = follower.poll(frozenset({recorder.who}))["spans"]
    assert (ended["tokens"].tolist(), ended["bytes"].tolist()) == ([-1], [7])
    assert follower.unfinished("spans")["tokens"].tolist() == [-1]
    assert set(follower.problems) == {"spans.tokens"}


def test_a_span_that_is_taken_back_is_gone(folder: Path, recorder: Recorder) -> None:
    span = recorder.begin(recorder.name("no"), Stage.TRAIN)
    follower = Follower(folder)
    follower.poll()
    assert len(follower.unfinished("spans")) == 1
    span.discard()
    follower.poll()
    assert len(follower.unfinished("spans")) == 0
    assert follow_to_the_end(follower)["spans"][-1]["name"].tolist() == []


def test_rotation(folder: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "SEGMENT_BYTES", 20_000)
    follower = Follower(folder)
    found: dict[str, list[Rows]] = {name: [] for name in TABLES}
    for n in range(1500):
        recorder.begin(recorder.name("s"), Stage.ENV, tokens=n).end()
        if n % 500 == 0:
            for name, rows in follower.poll().items():
                found[name].append(rows)
    assert len(list((folder / "spans").glob("*.arrows"))) > 1
    for name, parts in follow_to_the_end(follower).items():
        found[name] += parts
    assert_same(follower, folder, found)


def test_segments_that_are_deleted_are_looked_for_no_more(
    folder: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody deletes them by hand, say, while another follows."""
    monkeypatch.setattr(segment, "SEGMENT_BYTES", 20_000)
    follower = Follower(folder)
    tokens: list[int] = []
    for n in range(3000):
        recorder.begin(recorder.name("s"), Stage.ENV, tokens=n).end()
        if n % 500 == 0:
            tokens += follower.poll()["spans"]["tokens"].tolist()
            written = (folder / "spans").glob("*.arrows")
            for finished in sorted(written, key=lambda path: int(path.name.split(".")[-2]))[:-1]:
                tokens += follower.poll()["spans"]["tokens"].tolist()
                finished.unlink()
    looked_for: list[Path] = []

    def opened(path: Path) -> tuple[int, os.stat_result]:
        looked_for.append(path)
        return open_own(path)

    monkeypatch.setattr(growing, "open_own", opened)
    for rows in follow_to_the_end(follower)["spans"]:
        tokens += rows["tokens"].tolist()
    assert {path for path in looked_for if path.parent.name == "spans"} == {
        *(folder / "spans").glob("*.arrows")
    }
    assert len(tokens) == len({*tokens})
    assert tokens[-1] == 2999
    assert follower.problems == {}


def test_a_quiet_segment_is_hardly_read(
    folder: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look reads what is new and what is open, not the file."""
    long_lasting = recorder.begin(recorder.name("run"), Stage.OTHER)
    for n in range(20_000):
        recorder.begin(recorder.name("s"), Stage.ENV, tokens=n).end()
    [path] = (folder / "spans").glob("*.arrows")
    read_bytes = []

    def counting(file: int, size: int, offset: int) -> bytes:
        read_bytes.append(size)
        return os.pread(file, size, offset)

    monkeypatch.setattr(growing, "os", _Os(counting))
    follower = Follower(folder)
    follower.poll()
    follower.poll()
    whole, read_bytes[:] = sum(read_bytes), []
    assert whole < 2 * path.stat().st_size
    follower.poll()
    assert sum(read_bytes) < 1000
    long_lasting.end()


class _Os:
    """`os` with another `pread`."""

    def __init__(self, pread: object) -> None:
        self.pread = pread

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_whole_run_at_one_go(tmp_path: Path, nodes: int) -> None:
    make(tmp_path / "run", Workload(**SMALL, nodes=nodes, gpus=2 * nodes, kill_step=3))
    follower = Follower(tmp_path / "run")
    assert_same(follower, tmp_path / "run", follow_to_the_end(follower))


def test_a_run_of_the_first_schema() -> None:
    follower = Follower(FIXTURE)
    assert_same(follower, FIXTURE, follow_to_the_end(follower))
    roles = {p.who: (p.role, p.child_of) for p in rltrace.open_run(FIXTURE).processes}
    assert {p.who: (p.role, p.child_of) for p in follower.processes} == roles


def test_torn_and_foreign_files_are_named_and_the_rest_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make(path, Workload(**SMALL, torn=True))
    (path / "spans" / "notes.txt").write_text("not ours")
    (path / "spans" / "empty.0.arrows").touch()
    (path / "samples" / "other.0.arrows").write_bytes(_stream_of_another_table())
    follower = Follower(path)
    assert_same(follower, path, follow_to_the_end(follower))
    assert set(follower.problems) == {"spans/node0-9002-1.0.arrows", "samples/other.0.arrows"}
    assert "not a segment of this table" in follower.problems["samples/other.0.arrows"]


def _stream_of_another_table() -> bytes:
    from rltrace.testing.inside.trace import schema_message

    return schema_message(TABLES["rewards"])


def test_a_file_that_is_cut_is_named_and_read_no_further(folder: Path, recorder: Recorder) -> None:
    recorder.begin(recorder.name("a"), Stage.TRAIN).end()
    recorder.append("samples", time_ns=1, counter=recorder.name("c"), value=1.0)
    follower = Follower(folder)
    follower.poll()
    [path] = (folder / "spans").glob("*.arrows")
    copy = path.read_bytes()[:1500]
    path.unlink()  # the writer's map goes on with the old file
    path.write_bytes(copy)
    recorder.append("samples", time_ns=2, counter=recorder.name("c"), value=2.0)
    assert follower.poll()["samples"]["value"].tolist() == [2.0]
    assert "shorter" in follower.problems[f"spans/{path.name}"]


def test_a_run_that_is_deleted(folder: Path, recorder: Recorder) -> None:
    recorder.begin(recorder.name("a"), Stage.TRAIN)
    follower = Follower(folder)
    follower.poll()
    assert not follower.gone
    shutil.rmtree(folder)
    assert not any(len(rows) for rows in follower.poll().values())
    assert follower.gone


def test_processes_and_what_they_say_of_themselves_come_in(
    folder: Path, recorder: Recorder
) -> None:
    follower = Follower(folder)
    follower.poll()
    assert [p.role for p in follower.processes] == ["learner"]
    recorder.describe(rank=3)
    Recorder(str(folder), role="rollout")
    follower.poll()
    assert [(p.role, p.rank) for p in follower.processes] == [("learner", 3), ("rollout", None)]
    assert all(p.clock_bound_ns == 0 for p in follower.processes)


def test_times_are_those_of_the_run(folder: Path, recorder: Recorder) -> None:
    before = time.time_ns()
    recorder.begin(recorder.name("a"), Stage.TRAIN).end()
    follower = Follower(folder)
    [start] = follower.poll(frozenset({recorder.who}))["spans"]["start_ns"].tolist()
    assert abs(start - before) < 10**9
    assert abs(follower.now_ns() - time.time_ns()) < 10**9


def test_a_compacted_run_without_segments(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make(path, Workload(**SMALL, kill_step=3))
    parquet.compact(rltrace.open_run(path))
    parquet.delete_segments(path)
    follower = Follower(path)
    assert_same(follower, path, follow_to_the_end(follower))


def test_no_run_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RltraceError, match="is no run"):
        Follower(tmp_path)


def test_slots_that_are_stored_late_are_not_lost(tmp_path: Path) -> None:
    """A thread claims a slot and may be stopped before it stores the row, for as long as it
    likes."""
    writer = TableWriter(SPANS, str(tmp_path), "who")
    claimed = [writer.claim() for _ in range(10)]
    follower = GrowingSegment(tmp_path / "who.0.arrows", SPANS)

    def store(slot: int) -> None:
        batch, place = claimed[slot]
        batch.columns[1][place] = 5
        batch.columns[0][place] = 4

    seen = []
    for slot in (9, 3, 0, 1, 2, 4, 5, 6, 7, 8):
        store(slot)
        seen.append(len(follower.poll(final=True)[0]))
    assert seen == [1] * 10


def test_rows_behind_one_that_was_taken_back_are_found_at_the_same_look(
    folder: Path, recorder: Recorder
) -> None:
    name = recorder.name("s")
    for n in range(1, 301):
        span = recorder.begin(name, Stage.ENV, tokens=n)
        span.end() if n % 64 else span.discard()
    follower = Follower(folder)
    spans = follower.poll()["spans"], follower.unfinished("spans")
    assert sum(len(rows) for rows in spans) == 296


def test_threads_that_follow_and_write_agree(folder: Path, recorder: Recorder) -> None:
    """Rows that are stored in one thread are seen from another at once."""
    follower = Follower(folder)
    name = recorder.name("s")
    done = threading.Event()

    def write() -> None:
        for n in range(5000):
            recorder.append("samples", time_ns=n + 1, counter=name, value=float(n))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    values: list[float] = []
    while not done.is_set():
        values += follower.poll()["samples"]["value"].tolist()
    values += follower.poll()["samples"]["value"].tolist()
    thread.join()
    assert values == np.arange(5000.0).tolist()
