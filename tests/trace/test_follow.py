"""A run that is followed while it is written gives out each row once, as later readers find it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import rltrace
from benchmarks.make_trace import Workload, make
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.trace import (
    SPANS,
    TABLES,
    GrowingSegment,
    Stage,
    TableWriter,
    open_own,
    schema_message,
    segment,
)
from rltrace.testing.inside.trace import compaction as parquet
from rltrace.testing.inside.trace import run_follower as growing
from rltrace.trace.read.run_follower import RunFollower as Follower
from tests.trace.following import Followed
from tests.trace.test_run import FIXTURE


@pytest.fixture
def recorder(run_path: Path) -> Recorder:
    """A process that records into `run_path`, for a test to record its rows."""
    return Recorder(str(run_path), role="learner")


def names(follower: Follower, rows: object) -> list[str]:
    return [follower.name(n) for n in rows["name"].tolist()]  # type: ignore[index]


def test_each_row_once_while_threads_write_and_their_process_is_killed(
    run_path: Path, job: subprocess.Popen[str]
) -> None:
    followed = Followed(run_path)
    while sum(len(rows) for rows in followed.found["spans"]) < 5_000:
        followed.poll()
        time.sleep(0.02)
    job.kill()
    job.wait()
    followed.assert_whole()


@pytest.mark.parametrize(("nodes", "is_compacted"), [(1, False), (3, False), (1, True)])
def test_a_whole_run_at_one_go(tmp_path: Path, nodes: int, is_compacted: bool) -> None:
    path = tmp_path / "run"
    load = Workload(steps=4, prompts=4, group=2, nodes=nodes, gpus=2 * nodes, kill_step=3)
    make(path, load)
    if is_compacted:
        parquet.compact(rltrace.open_run(path))
        parquet.delete_segments(path)
    Followed(path).assert_whole()


def test_a_run_of_the_first_schema() -> None:
    Followed(FIXTURE).assert_whole()


def test_torn_and_foreign_files_are_named_and_the_rest_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make(path, Workload(steps=4, prompts=4, group=2, torn=True))
    (path / "spans" / "notes.txt").write_text("not ours")
    (path / "spans" / "empty.0.arrows").touch()
    (path / "spans" / "garbage.0.arrows").write_bytes(random.Random(1).randbytes(5000))
    (path / "samples" / "other.0.arrows").write_bytes(schema_message(TABLES["rewards"]))
    (path / "process" / "broken.json").write_text("{")
    (path / "problems" / "broken.jsonl").write_text("no json\n")
    followed = Followed(path)
    followed.assert_whole()
    problems = followed.follower.problems
    torn, garbage = "spans/node0-9002-1.0.arrows", "spans/garbage.0.arrows"
    found = {torn, garbage, "samples/other.0.arrows", "process/broken.json"}
    assert set(problems) == found
    assert "not a segment of this table" in problems["samples/other.0.arrows"]
    run = rltrace.open_run(path)
    assert min(run.rows("spans"), run.rows("samples")) > 0
    named = {problem["target"]: problem["what"] for problem in run.problems}
    assert named.keys() >= {*found, "spans/notes.txt"}
    assert named[torn] == "torn-file"


def test_an_interval_is_unfinished_until_it_ends(run_path: Path, recorder: Recorder) -> None:
    span = recorder.begin(recorder.name("generate"), Stage.ROLLOUT)
    taken_back = recorder.begin(recorder.name("no"), Stage.TRAIN)
    follower = Follower(run_path)
    assert len(follower.poll()["spans"]) == 0
    assert follower.unfinished("spans")["end_ns"].tolist() == [-1, -1]
    span.set(tokens=7)  # what becomes known on the way is seen
    taken_back.discard()
    follower.poll()
    assert follower.unfinished("spans")["tokens"].tolist() == [7]
    span.end()
    polled = [follower.poll()["spans"] for _ in range(3)]
    assert [len(rows) for rows in polled] == [0, 1, 0]
    assert len(follower.unfinished("spans")) == 0
    assert names(follower, polled[1]) == ["generate"]


def test_what_is_stored_with_the_end_is_complete(run_path: Path, recorder: Recorder) -> None:
    """A hook stores `end_ns` first and other columns right after: a row is not given out before."""
    row = recorder.append("trajectories", trajectory=5, start_ns=10**12)
    assert row is not None
    follower = Follower(run_path)
    row.set(end_ns=10**12 + 5)
    assert len(follower.poll()["trajectories"]) == 0
    row.set(response_tokens=100)
    assert follower.poll()["trajectories"]["response_tokens"].tolist() == [100]


def test_when_nothing_more_can_come_what_has_ended_is_complete(
    run_path: Path, recorder: Recorder
) -> None:
    """Counts below zero are unknown, there as well."""
    before = time.time_ns()
    recorder.begin(recorder.name("a"), Stage.TRAIN, tokens=-5, bytes=7).end()
    recorder.begin(recorder.name("b"), Stage.TRAIN, tokens=-7)
    follower = Follower(run_path)
    ended = frozenset({recorder.who})
    done, going_on = follower.poll(ended)["spans"], follower.unfinished("spans")
    assert (names(follower, done), names(follower, going_on)) == (["a"], ["b"])
    assert len(follower.poll(ended)["spans"]) == 0
    assert (done["tokens"].tolist(), done["bytes"].tolist()) == ([-1], [7])
    assert going_on["tokens"].tolist() == [-1]
    assert set(follower.problems) == {"spans.tokens"}
    # Times are those of the run.
    assert abs(done["start_ns"].tolist()[0] - before) < 10**9
    assert abs(follower.now_ns() - time.time_ns()) < 10**9


def test_rows_behind_one_that_was_taken_back_are_found_at_the_same_look(
    run_path: Path, recorder: Recorder
) -> None:
    name = recorder.name("s")
    for n in range(1, 301):
        span = recorder.begin(name, Stage.ENV, tokens=n)
        span.end() if n % 64 else span.discard()
    follower = Follower(run_path)
    spans = follower.poll()["spans"], follower.unfinished("spans")
    assert sum(len(rows) for rows in spans) == 296


@pytest.mark.parametrize("deleted", [False, True])
def test_segments_take_turns_and_those_that_are_deleted_are_looked_for_no_more(
    run_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    """Somebody deletes them by hand, say, while another follows."""
    monkeypatch.setattr(segment, "SEGMENT_BYTES", 20_000)
    followed = Followed(run_path)
    for n in range(1501):
        recorder.begin(recorder.name("s"), Stage.ENV, tokens=n).end()
        if n % 500 == 0:
            followed.poll()
            written = sorted(
                (run_path / "spans").glob("*.arrows"),
                key=lambda path: int(path.name.split(".")[-2]),
            )
            followed.poll()
            for finished in written[:-1] if deleted else ():
                finished.unlink()
    assert len(written) > 1
    if not deleted:
        followed.assert_whole()
        return
    looked_for: set[Path] = set()

    def opened(path: Path) -> tuple[int, os.stat_result]:
        looked_for.add(path)
        return open_own(path)

    monkeypatch.setattr(growing, "open_own", opened)
    for _ in range(2):
        followed.poll([recorder.who])
    spans = run_path / "spans"
    assert {path for path in looked_for if path.parent == spans} == {*spans.glob("*.arrows")}
    tokens = [n for rows in followed.found["spans"] for n in rows["tokens"].tolist()]
    assert len(tokens) == len({*tokens})
    assert tokens[-1] == 1500
    assert followed.follower.problems == {}


def test_a_quiet_segment_is_hardly_read(
    run_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look reads what is new and what is open, not the file."""
    long_lasting = recorder.begin(recorder.name("run"), Stage.OTHER)
    for n in range(20_000):
        recorder.begin(recorder.name("s"), Stage.ENV, tokens=n).end()
    [path] = (run_path / "spans").glob("*.arrows")
    read_bytes = []

    pread = os.pread

    def counting(file: int, size: int, offset: int) -> bytes:
        read_bytes.append(size)
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", counting)
    follower = Follower(run_path)
    follower.poll()
    follower.poll()
    whole, read_bytes[:] = sum(read_bytes), []
    assert whole < 2 * path.stat().st_size
    follower.poll()
    assert sum(read_bytes) < 1000
    long_lasting.end()


def test_a_file_that_is_cut_is_named_and_read_no_further(
    run_path: Path, recorder: Recorder
) -> None:
    recorder.begin(recorder.name("a"), Stage.TRAIN).end()
    recorder.append("samples", time_ns=1, counter=recorder.name("c"), value=1.0)
    follower = Follower(run_path)
    follower.poll()
    [path] = (run_path / "spans").glob("*.arrows")
    copy = path.read_bytes()[:1500]
    path.unlink()  # the writer's map goes on with the old file
    path.write_bytes(copy)
    recorder.append("samples", time_ns=2, counter=recorder.name("c"), value=2.0)
    assert follower.poll()["samples"]["value"].tolist() == [2.0]
    assert "shorter" in follower.problems[f"spans/{path.name}"]
    assert not follower.gone
    shutil.rmtree(run_path)
    assert not any(len(rows) for rows in follower.poll().values())
    assert follower.gone


def test_processes_and_what_they_say_of_themselves_come_in(
    run_path: Path, recorder: Recorder
) -> None:
    follower = Follower(run_path)
    follower.poll()
    assert [p.role for p in follower.processes] == ["learner"]
    recorder.describe(rank=3)
    Recorder(str(run_path), role="rollout")
    follower.poll()
    assert [(p.role, p.rank) for p in follower.processes] == [("learner", 3), ("rollout", None)]
    assert all(p.clock_bound_ns == 0 for p in follower.processes)


def test_slots_that_are_stored_late_are_not_lost(tmp_path: Path) -> None:
    """A thread claims a slot and may be stopped before it stores the row, for as long as it
    likes."""
    writer = TableWriter(SPANS, str(tmp_path), "who")
    claimed = [writer.claim() for _ in range(10)]
    follower = GrowingSegment(tmp_path / "who.0.arrows", SPANS)
    seen = []
    for slot in (9, 3, 0, 1, 2, 4, 5, 6, 7, 8):
        batch, place = claimed[slot]
        batch.columns[1][place] = 5
        batch.columns[0][place] = 4
        seen.append(len(follower.poll(final=True)[0]))
    assert seen == [1] * 10
