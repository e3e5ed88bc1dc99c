"""Opening runs: whole, torn, foreign, compacted, and the ones that earlier versions wrote."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.trace import (
    UNREADABLE,
    WRONG_USAGE,
    RltraceError,
    delete_segments,
    update_run_json,
)
from rltrace.testing.inside.trace import RunFollower as Follower
from rltrace.testing.inside.trace import compaction_compact as compact
from tests.cli.conftest import invoke
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
                t.first_token()
                t.finish("stop", response_tokens=g, version=n // 2)
            rltrace.reward(f"t{n}-{g}", g / 4)
            rltrace.use(f"t{n}-{g}", version=n, tokens=g)
        with rltrace.span("train"), rltrace.weight_update(n, bytes=10): pass
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


@pytest.mark.parametrize("compacted", [False, True])
def test_what_is_counted_of_each_table_is_what_is_in_it(
    run_path: Path, record: Record, compacted: bool
) -> None:
    record(BUSY)
    if compacted:
        compact(rltrace.open_run(run_path))
        delete_segments(run_path)
    run = rltrace.open_run(run_path)
    told = "sum(n)::BIGINT, min(first_ns), max(last_ns), sum(backwards)::BIGINT FROM event_rows"
    counted = {of: rest for of, *rest in run.sql(f"SELECT of_table, {told} GROUP BY 1").fetchall()}
    assert counted.keys() == {"trajectories", "rewards", "uses", "syncs", "samples"}
    for table, figures in counted.items():
        start, end = "start_ns", "greatest(start_ns, end_ns)"
        if table in ("uses", "samples"):
            start = end = "time_ns"
        (there,) = run.sql(f"SELECT count(*), min({start}), max({end}), 0 FROM {table}").fetchall()
        assert tuple(figures) == there


@pytest.mark.parametrize("remove", [False, True], ids=["beside its segments", "alone"])
def test_a_compacted_run_answers_the_same(run_path: Path, record: Record, remove: bool) -> None:
    """And is the same when it is compacted again."""
    record(BUSY)
    run = rltrace.open_run(run_path)
    before = [run.sql(question).fetchall() for question in QUESTIONS]
    with pytest.raises(RltraceError, match="not compacted"):
        delete_segments(run_path)
    assert compact(run).rows["uses"] == 80
    if remove:
        delete_segments(run_path)
        assert not list(run_path.glob("*/*.arrows"))
    compacted = rltrace.open_run(run_path)
    assert compacted.is_compacted
    assert [compacted.sql(question).fetchall() for question in QUESTIONS] == before
    files = {path: path.read_bytes() for path in run_path.glob("parquet/*/*")}
    assert compact(compacted).rows["uses"] == 80
    assert {path: path.read_bytes() for path in run_path.glob("parquet/*/*")} == files != {}


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
    assert run.sql(each).fetchall() == [(240, 3, 2)]
    if remove:  # nothing is left of what was compacted but Parquet
        with pytest.raises(RltraceError, match="cannot be compacted again"):
            compact(rltrace.open_run(run_path))
        with pytest.raises(RltraceError, match="what has come since"):
            delete_segments(run_path)
    else:
        compact(run)
    again = rltrace.open_run(run_path)
    assert again.is_compacted is not remove
    assert again.sql(each).fetchall() == [(240, 3, 2)]


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
    with pytest.raises(RltraceError, match="does not exist"):
        rltrace.open_run(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT nope FROM spans", "(spans has start_ns, end_ns, name, stage, "),
        ("SELECT s.nope FROM main.spans s", "(spans has start_ns, "),
        ("SELECT nope FROM spans JOIN uses USING (step)", "rank; uses has time_ns, trajectory, "),
        ("SELECT lag, nope FROM LAGS", "(lags has trajectory, step, "),
        ("SELECT * EXCLUDE (nope) FROM names, processes", "(names has id, text; processes has "),
        ('SELECT 1 FROM spans WHERE stage = "train"', "single quotes)"),
        ("SELECT nope", "(tables: advantage_baseline, captured, captured_tokens, "),
        ("SELEC 1", "does not run"),
    ],
)
def test_a_query_for_a_column_that_is_not_there_is_told_those_that_are(
    run_path: Path, query: str, says: str
) -> None:
    with pytest.raises(RltraceError) as caught:
        rltrace.open_run(run_path).sql(query)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == WRONG_USAGE


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


def test_tables_in_one_file_are_the_run_while_its_segments_are_as_they_were(tmp_path: Path) -> None:
    """So a run was compacted before there were parts."""
    path = Path(shutil.copytree(f"{FIXTURE}-wrapped", tmp_path / "run"))
    shutil.copytree(f"{FIXTURE}-compacted/parquet", path / "parquet")
    assert rltrace.open_run(path).is_compacted
    with min(path.glob("spans/*.arrows")).open("ab") as segment:
        segment.write(b"more")
    assert not rltrace.open_run(path).is_compacted


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


def _newer(parquet: Path) -> None:
    manifest = parquet / "manifest.json"
    said = manifest.read_text()
    manifest.write_text(said.replace('"schema_version":1', '"schema_version":99'))
    assert manifest.read_text() != said


WHY_UNREADABLE: dict[str, Callable[[Path], object]] = {
    "manifest.json is missing": lambda parquet: (parquet / "manifest.json").unlink(),
    "manifest.json is damaged": lambda parquet: (parquet / "manifest.json").write_text('{"sch'),
    "a later version of rltrace": _newer,
    "files that manifest.json names are missing": lambda parquet: shutil.rmtree(parquet / "spans"),
}


@pytest.mark.parametrize("why", WHY_UNREADABLE)
@pytest.mark.parametrize("command", ["report", "info", "compact", "top --once"])
def test_of_the_only_copy_each_command_says_why_it_cannot_be_read_and_leaves_every_file(
    kept: Path, why: str, command: str
) -> None:
    WHY_UNREADABLE[why](kept / "parquet")
    before = {file: file.read_bytes() for file in kept.rglob("*") if file.is_file()}
    done = invoke(*command.split(), kept)
    assert done.exit_code == UNREADABLE
    assert why in done.output
    assert {file: file.read_bytes() for file in before} == before
