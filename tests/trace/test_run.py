"""Opening runs: whole, torn, foreign, compacted, and the ones that earlier versions wrote."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.trace import (
    UNREADABLE,
    WRONG_USAGE,
    Follower,
    RltraceError,
    compact,
    delete_segments,
    update_run_json,
)
from tests.conftest import Record

FIXTURE = Path(__file__).parent.parent / "fixtures" / "run-schema-1"


def old_copy(to: Path) -> Path:
    """A copy of the run of old, as old as that: a clone has just made its files, and a run that
    nobody has ended and of which something was heard a moment ago may go on."""
    shutil.copytree(FIXTURE, to)
    for path in to.rglob("*"):
        os.utime(path, (0, 0))
    return to


BUSY = """
for n in range(20):
    with rltrace.step(n):
        for g in range(4):
            with rltrace.trajectory(f"t{n}-{g}", group=n, version=n // 2) as t:
                with rltrace.span("rollout", tokens=g): pass
                t.finish("stop", response_tokens=g, version=n // 2)
            rltrace.reward(f"t{n}-{g}", g / 4)
            rltrace.use(f"t{n}-{g}", version=n, tokens=g)
        with rltrace.weight_update(n, bytes=10): pass
        rltrace.counter("queue", n)
"""

QUESTIONS = (
    "SELECT * EXCLUDE (start_ns, end_ns, lane) FROM spans ORDER BY start_ns",
    'SELECT trajectory, "group", first_version, finish, response_tokens FROM trajectories '
    "ORDER BY start_ns",
    "SELECT trajectory, value, outcome FROM rewards ORDER BY start_ns",
    "SELECT trajectory, lag, fate, tokens FROM lags ORDER BY step, tokens",
    "SELECT version, role, bytes FROM syncs ORDER BY start_ns",
    "SELECT counter, value FROM samples ORDER BY time_ns",
    "SELECT step, start_ns FROM steps ORDER BY 1",
    "SELECT * FROM stages ORDER BY ALL",
)


def test_half_a_surrogate_pair_in_what_a_process_says_of_itself(
    run_path: Path, record: Record
) -> None:
    record("with rltrace.span('rollout'): pass")
    for file in (run_path / "process").glob("*.json"):
        half = {"role": "\ud800lone", "adapter": "\ud800", "host": "\ud800"}
        file.write_text(json.dumps(json.loads(file.read_text()) | half))
    run = rltrace.open_run(run_path)
    assert run.processes[0].role == "\\ud800lone"
    assert ("\\ud800lone",) in run.sql("SELECT role FROM spans").fetchall()


@pytest.mark.parametrize("remove", [False, True], ids=["beside its segments", "alone"])
def test_a_compacted_run_answers_the_same(run_path: Path, record: Record, remove: bool) -> None:
    record(BUSY)
    run = rltrace.open_run(run_path)
    before = [run.sql(question).fetchall() for question in QUESTIONS]
    done = compact(run)
    assert done.rows["uses"] == 80
    if remove:
        delete_segments(run_path)
        assert not list(run_path.glob("*/*.arrows"))
    compacted = rltrace.open_run(run_path)
    assert compacted.is_compacted
    assert [compacted.sql(question).fetchall() for question in QUESTIONS] == before


@pytest.mark.parametrize("remove", [False, True], ids=["beside its segments", "alone"])
def test_a_run_that_grew_after_compaction_is_read_whole(
    run_path: Path, record: Record, remove: bool
) -> None:
    record(BUSY)
    compact(rltrace.open_run(run_path))
    if remove:
        delete_segments(run_path)
    record(BUSY)
    run = rltrace.open_run(run_path)
    assert not run.is_compacted
    assert run.rows("uses") == 160
    each = "SELECT count(*), count(DISTINCT name), count(DISTINCT who) FROM spans"
    assert run.sql(each).fetchall() == [(200, 2, 2)]
    if remove:  # nothing is left of what was compacted but Parquet
        with pytest.raises(RltraceError, match="cannot be compacted again"):
            compact(rltrace.open_run(run_path))
        with pytest.raises(RltraceError, match="what has come since"):
            delete_segments(run_path)
    else:
        compact(run)
    again = rltrace.open_run(run_path)
    assert again.is_compacted is not remove
    assert again.sql(each).fetchall() == [(200, 2, 2)]


def test_compacting_twice_changes_nothing(run_path: Path, record: Record) -> None:
    record(BUSY)
    compact(rltrace.open_run(run_path))
    delete_segments(run_path)
    files = contents(run_path / "parquet")
    assert compact(rltrace.open_run(run_path)).rows["uses"] == 80
    assert contents(run_path / "parquet") == files


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_is_being_recorded_keeps_its_segments(run_path: Path, record: Record) -> None:
    record(BUSY)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as wrap:
        update_run_json(str(run_path), wrap_pid=wrap.pid)
        assert not compact(rltrace.open_run(run_path)).settled
        with pytest.raises(RltraceError, match="still being recorded"):
            delete_segments(run_path)
        wrap.kill()
        wrap.wait()
        assert compact(rltrace.open_run(run_path)).settled
        delete_segments(run_path)
        assert rltrace.open_run(run_path).rows("uses") == 80


def test_segments_are_never_deleted_before_compaction(run_path: Path, record: Record) -> None:
    record(BUSY)
    with pytest.raises(RltraceError, match="not compacted"):
        delete_segments(run_path)


def test_a_file_cut_anywhere_gives_a_prefix_of_its_rows(run_path: Path, record: Record) -> None:
    record("for i in range(700):\n    with rltrace.span('rollout', items=i): pass")
    (path,) = (run_path / "spans").iterdir()
    whole = path.read_bytes()
    randomness = random.Random(5)
    for size in [0, 1, 7, 100, *(randomness.randrange(len(whole)) for _ in range(60))]:
        path.write_bytes(whole[:size])
        run = rltrace.open_run(run_path)
        items = [i for (i,) in run.sql("SELECT items FROM spans ORDER BY start_ns").fetchall()]
        assert items == list(range(len(items)))
        if len(items) < 700 and size not in _message_ends(whole):
            assert [p["what"] for p in run.problems] == ["torn-file"]
            assert path.name in run.problems[0]["target"]


def _message_ends(stream: bytes) -> set[int]:
    """Where a cut cannot be told from a stream that simply ends here."""
    ends = set()
    for at in range(0, len(stream), 8):
        if stream[at : at + 4] == b"\xff\xff\xff\xff" and stream[at + 4 : at + 8] != b"\xff" * 4:
            ends.add(at)
    return ends


def test_foreign_files_are_named_and_skipped(run_path: Path, record: Record) -> None:
    record(BUSY)
    (run_path / "spans" / "notes.txt").write_text("hello")
    (run_path / "spans" / "garbage.0.arrows").write_bytes(random.Random(1).randbytes(5000))
    (samples,) = (run_path / "samples").iterdir()
    shutil.copy(samples, run_path / "spans" / "misplaced.0.arrows")
    (run_path / "process" / "broken.json").write_text("{")
    (run_path / "problems" / "broken.jsonl").write_text("no json\n")
    run = rltrace.open_run(run_path)
    assert run.sql("SELECT count(*) FROM spans").fetchall() == [(100,)]
    named = " ".join(str(p["target"]) for p in run.problems)
    for name in ("notes.txt", "garbage.0", "misplaced.0", "broken.json", "broken.jsonl"):
        assert name in named


def test_rows_without_their_process_file_are_kept(run_path: Path, record: Record) -> None:
    record(BUSY)
    for folder in ("process", "names"):
        shutil.rmtree(run_path / folder)
        (run_path / folder).mkdir()
    run = rltrace.open_run(run_path)
    assert run.sql("SELECT count(*), min(name) FROM spans").fetchall() == [(100, "?")]
    assert "no-process-file" in [p["what"] for p in run.problems]
    compact(run)
    again = rltrace.open_run(run_path)
    assert len(again.processes) == 1
    assert "no-process-file" in [p["what"] for p in again.problems]


def test_an_empty_run_has_empty_tables(run_path: Path) -> None:
    run = rltrace.open_run(run_path)
    for question in QUESTIONS:
        assert run.sql(question).fetchall() == []
    compact(run)
    assert rltrace.open_run(run_path).sql("SELECT count(*) FROM spans").fetchall() == [(0,)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is no run"),
        ("", "cannot be read"),
        ("[1, 2]", "not a run's description"),
        ('{"id": 5}', "no schema version"),
        ('{"schema_version": 999}', "upgrade"),
    ],
)
def test_what_is_no_run_is_said_in_one_sentence(
    tmp_path: Path, content: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    for read in (rltrace.open_run, Follower):
        with pytest.raises(RltraceError, match=said) as caught:
            read(tmp_path)
        assert caught.value.exit_code == UNREADABLE
        assert "\n" not in str(caught.value)


def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(RltraceError, match="does not exist"):
        rltrace.open_run(tmp_path / "nowhere")


@pytest.mark.parametrize("query", ["SELEC 1", "SELECT x FROM nothing", "SELECT nope FROM spans"])
def test_a_wrong_query_is_said_in_one_sentence(run_path: Path, query: str) -> None:
    with pytest.raises(RltraceError, match="does not run") as caught:
        rltrace.open_run(run_path).sql(query)
    assert caught.value.exit_code == WRONG_USAGE
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT nope FROM spans", "no column 'nope' (spans has start_ns, end_ns, name, stage, "),
        ("SELECT s.nope FROM main.spans s", "no column 'nope' (spans has start_ns, "),
        ("SELECT nope FROM spans JOIN uses USING (step)", "rank; uses has time_ns, trajectory, "),
        ("SELECT lag, nope FROM LAGS", "(lags has trajectory, step, "),
        ("SELECT * EXCLUDE (nope) FROM names, processes", "(names has id, text; processes has "),
        ('SELECT 1 FROM spans WHERE stage = "train"', "text stands in single quotes)"),
        ("SELECT nope", "(tables: captured, captured_tokens, grouped_trajectories, "),
    ],
)
def test_a_query_for_a_column_that_is_not_there_is_told_those_that_are(
    run_path: Path, query: str, says: str
) -> None:
    with pytest.raises(RltraceError) as caught:
        rltrace.open_run(run_path).sql(query)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_column_that_an_older_writer_did_not_have_is_unknown(
    run_path: Path, record: Record
) -> None:
    import pyarrow as pa
    from pyarrow import ipc

    record("with rltrace.span('train', items=4): pass")
    (path,) = (run_path / "spans").iterdir()
    old = ipc.open_stream(path.read_bytes()).read_all().drop_columns(["items", "phase"])
    old = old.append_column("novel", pa.array([1] * old.num_rows))
    with ipc.new_stream(str(path), old.schema) as stream:
        stream.write_table(old)
    found = rltrace.open_run(run_path).sql("SELECT stage, items, phase FROM spans").fetchall()
    assert found == [("train", None, None)]


def test_the_first_schema_stays_readable(tmp_path: Path) -> None:
    """tests/fixtures/run-schema-1 was written when the schema was new, by two processes of which
    one was killed; whatever changes, it must be read with these answers."""
    path = tmp_path / "run"
    shutil.copytree(FIXTURE, path)
    run = rltrace.open_run(path)
    expected = json.loads((FIXTURE.parent / "run-schema-1.json").read_text())
    answers = {q: [list(row) for row in run.sql(q).fetchall()] for q in expected}
    assert answers == expected
    compact(run)
    again = rltrace.open_run(path)
    assert {q: [list(row) for row in again.sql(q).fetchall()] for q in expected} == expected


def test_a_run_that_nobody_holds_is_gone_with_its_database(tmp_path: Path, record: Record) -> None:
    record("with rltrace.span('rollout'): pass")
    run = rltrace.open_run(tmp_path / "run")
    assert run.sql("SELECT count(*) FROM spans").fetchall() == [(1,)]
    held = weakref.ref(run)
    gc.disable()  # not even a cycle is in the way
    try:
        del run
        assert held() is None
    finally:
        gc.enable()
