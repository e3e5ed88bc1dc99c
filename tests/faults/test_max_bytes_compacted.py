"""A run under `--max-bytes` that is compacted as well: no row is lost between the two, or counted
twice."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

import rltrace
from rltrace.run.capping import Cap
from rltrace.trace.clock import node_id
from rltrace.trace.errors import RltraceError
from rltrace.trace.files import RunFiles
from rltrace.trace.parquet import compact, delete_segments
from rltrace.trace.run_dir import update_run_json
from rltrace.trace.schema import Table
from rltrace.trace.survey import Survey, survey
from tests.conftest import Record
from tests.faults.capped import LOOP, OF_STEPS, STEPS, all_rows, segments_bytes, spans


def test_compacted_while_it_is_recorded(run_path: Path, record: Record) -> None:
    """What was dropped is shown of neither, whether it had been compacted before or not, and the
    next compaction leaves it out. Compaction takes no room from the details."""
    record(LOOP)
    update_run_json(str(run_path), settings={"max_bytes": 1})
    before, size = all_rows(run_path), segments_bytes(run_path)
    compact(rltrace.open_run(run_path), part_bytes=100_000)
    assert len(list((run_path / "parquet" / "spans").iterdir())) > 5
    cap = Cap(str(run_path), node_id(), size)
    cap.keep()
    assert rltrace.open_run(run_path).dropped is None
    for part in (0.6, 0.3):
        cap._max_bytes = int(part * size)
        cap.keep()
        plain = run_path.with_name(f"plain-{part}")
        shutil.copytree(run_path, plain, ignore=shutil.ignore_patterns("parquet"))
        with_parquet, without = rltrace.open_run(run_path), rltrace.open_run(plain)
        assert with_parquet.dropped == without.dropped
        for question in (OF_STEPS, "FROM uses ORDER BY time_ns", "FROM dropped_steps"):
            assert with_parquet.sql(question).fetchall() == without.sql(question).fetchall()
        assert with_parquet.step_rows() == without.step_rows()
        assert all_rows(run_path) == before
        shown, dropped = spans(run_path), with_parquet.dropped
        assert dropped is not None
        record("with rltrace.span('late'): pass")  # so that there is something to compact
        rows = compact(rltrace.open_run(run_path)).rows["spans"]
        assert rows == shown + 1 + dropped.hidden.get("spans", 0)
        assert spans(run_path) == shown + 1
        late = [one for one in all_rows(run_path) if one not in before]
        assert [(step, what) for step, what, _, _ in late] == [(-1, "other")]
        before = sorted([*(one for one in before if one[0] >= 0), *late])


def test_dropped_while_it_is_compacted(
    run_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments go after they were looked at and before their rows are taken, or after that."""
    record(LOOP)
    update_run_json(str(run_path), settings={"max_bytes": 1})
    before, size = all_rows(run_path), segments_bytes(run_path)
    shares = iter((0.8, 0.6, 0.4, 0.2))

    def survey_and_drop(files: RunFiles, table: Table, ended: bool) -> Survey:
        found = survey(files, table, ended)
        Cap(str(run_path), node_id(), int(next(shares, 0.2) * size)).keep()
        return found

    monkeypatch.setattr("rltrace.trace.survey.survey", survey_and_drop)
    compact(rltrace.open_run(run_path), part_bytes=100_000)
    assert segments_bytes(run_path) < 0.3 * size
    assert all_rows(run_path) == before
    delete_segments(run_path)
    assert all_rows(run_path) == before


def test_two_that_compact_at_once_do_so_one_after_the_other(run_path: Path, record: Record) -> None:
    record(LOOP)
    before, others = all_rows(run_path), []

    def compact_too() -> None:
        others.append(compact(rltrace.open_run(run_path)))

    other = Thread(target=compact_too)

    def begin_another(table: str) -> None:
        if table == "uses":
            other.start()
            other.join(1.0)  # long enough to write into the midst, were it let

    done = compact(rltrace.open_run(run_path), begin_another)
    other.join()
    assert [one.rows for one in others] == [done.rows]
    delete_segments(run_path)
    assert all_rows(run_path) == before


def test_a_compaction_that_is_killed_leaves_the_run_as_it_was(
    run_path: Path, record: Record
) -> None:
    record(LOOP)
    update_run_json(str(run_path), settings={"max_bytes": 1})
    before, size = all_rows(run_path), segments_bytes(run_path)
    compact(rltrace.open_run(run_path))
    Cap(str(run_path), node_id(), size // 2).keep()
    record(f"with rltrace.span('late', step={STEPS}): pass")  # there is something to compact
    code = f"""
import os, rltrace
from rltrace.trace.parquet import compact
compact(rltrace.open_run({str(run_path)!r}), lambda t: t == "uses" and os.kill(os.getpid(), 9))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    for _ in range(2):
        assert [one for one in all_rows(run_path) if one[0] < STEPS] == before
        compact(rltrace.open_run(run_path))


def test_what_is_in_parquet_only_is_not_lost_to_a_process_that_comes_late(
    run_path: Path, record: Record
) -> None:
    record(LOOP)
    Cap(str(run_path), node_id(), segments_bytes(run_path) // 2).keep()
    compact(rltrace.open_run(run_path))
    delete_segments(run_path)
    shown = spans(run_path)
    record("with rltrace.span('train'): pass")
    with pytest.raises(RltraceError, match="it is read as it is, with what has come since"):
        compact(rltrace.open_run(run_path))
    assert spans(run_path) == shown + 1
