"""Runs that somebody else made: what lies in them is read where it is a plain file of the run's."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.trace import (
    FOLLOW_VARIABLE,
    RltraceError,
    delete_segments,
    read_run_json,
    update_run_json,
)
from rltrace.testing.inside.trace import RunFollower as Follower
from rltrace.testing.inside.trace import compaction_compact as compact
from tests.conftest import Record
from tests.hooks.conftest import untraced
from tests.trace.test_run import old_copy

_SECRET = "what-is-told-outside"

_LOOK = """
import resource, signal, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
import rltrace
from rltrace.testing.inside.report import inventory
from rltrace.testing.inside.report import entries
from rltrace.testing.inside.trace import RltraceError
from rltrace.testing.inside.trace import RunFollower as Follower

def looks(path):
    entries([path])
    try:
        run = rltrace.open_run(path)
        rows = sum(run.rows(table) for table in ("spans", "samples"))
        said = [str(problem) for problem in run.problems]
        inventory(run)
        texts = run.sql("SELECT text FROM names").fetchall()
        follower = Follower(path)
        follower.poll()
        print(path.name, rows, said, texts, follower.names, follower.problems, flush=True)
    except RltraceError as error:
        print(path.name, error, flush=True)

for path in sys.argv[1:]:
    looks(Path(path))
"""


def look(*paths: Path) -> list[str]:
    """What every reader finds in runs, a line each, in a process that may take 3 GB."""
    done = untraced(sys.executable, "-c", _LOOK, *map(str, paths))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def make_odd(path: Path, kind: str, outside: Path) -> None:
    """Puts something else in the place of a file."""
    content = path.read_bytes()
    path.unlink()
    if kind == "link":
        path.symlink_to(outside)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(content)
        os.truncate(path, 1 << 42)


KINDS = ("link", "device", "pipe", "folder", "hole")
PLACES = (
    *("run.json", "process/*.json", "names/*.jsonl", "clocks/*.jsonl", "problems/*.jsonl"),
    *("spans/*.arrows", "parquet/manifest.json", "parquet/spans/*.parquet"),
)


def test_nothing_but_plain_files_of_the_run_is_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text(f'[0, "{_SECRET}"]\n{{"what": "{_SECRET}"}}\n')
    whole = tmp_path / "whole"
    old_copy(whole)
    for folder in ("clocks", "problems"):
        (whole / folder / "node.jsonl").write_text("{}\n")
    compacted = tmp_path / "compacted"
    shutil.copytree(whole, compacted)
    compact(rltrace.open_run(compacted))
    runs = []
    for place in PLACES:
        for kind in KINDS:
            path = tmp_path / f"{place.partition('/')[0]}-{len(runs)}-{kind}"
            shutil.copytree(compacted if place.startswith("parquet") else whole, path)
            make_odd(min(path.glob(place)), kind, outside)
            runs.append(path)
    found = look(*runs)
    assert len(found) == len(runs)
    assert not [line for line in found if _SECRET in line]
    for path, line in zip(runs, found, strict=True):
        if not path.name.startswith(("run.json", "parquet")):
            assert "ignored" in line or "larger than" in line, line


def test_a_folder_that_is_a_link_is_not_read(tmp_path: Path, record: Record) -> None:
    run = tmp_path / "run"
    record("with rltrace.span('rollout'): pass")
    (run / "spans").rename(tmp_path / "elsewhere")
    (run / "spans").symlink_to(tmp_path / "elsewhere")
    opened = rltrace.open_run(run)
    assert opened.rows("spans") == 0
    assert opened.problems[0]["target"] == "spans/spans"
    assert len(Follower(run).poll()["spans"]) == 0


def test_links_are_followed_where_that_is_asked_for(
    tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    record("with rltrace.span('rollout'): pass")
    store.mkdir()
    for number, path in enumerate(sorted(p for p in run.rglob("*") if p.is_file())):
        path.rename(store / str(number))
        path.symlink_to(store / str(number))
    monkeypatch.setenv(FOLLOW_VARIABLE, "1")
    assert rltrace.open_run(run).sql("SELECT name FROM spans").fetchall() == [("rollout",)]
    follower = Follower(run)
    assert len(follower.poll()["spans"]) + len(follower.unfinished("spans")) == 1


def test_a_compacted_table_that_is_a_link_is_not_read(tmp_path: Path, kept: Path) -> None:
    others = Path(shutil.copytree(kept, tmp_path / "others"))
    table, other = (min((path / "parquet/spans").iterdir()) for path in (kept, others))
    table.unlink()
    table.symlink_to(other)
    with pytest.raises(RltraceError, match="are missing, or no files of its own"):
        rltrace.open_run(kept)


def test_compacting_deletes_nothing_where_a_link_leads(tmp_path: Path) -> None:
    """And waits for no pipe."""
    run, outside = tmp_path / "run", tmp_path / "outside"
    old_copy(run)
    (outside / "deeper").mkdir(parents=True)
    (outside / "deeper" / "kept").write_text("kept")
    os.mkfifo(run / "fetched.json")
    (run / "parquet").symlink_to(outside)
    with pytest.raises(RltraceError, match="parquet is a link"):
        compact(rltrace.open_run(run))
    (run / "parquet").unlink()
    (run / "parquet").mkdir()
    (run / "parquet" / "spans").symlink_to(outside)
    compact(rltrace.open_run(run))
    assert (outside / "deeper" / "kept").read_text() == "kept"
    assert [path.name for path in outside.iterdir()] == ["deeper"]


def test_a_file_is_replaced_through_no_link(tmp_path: Path) -> None:
    """What is written first has a name that anybody can guess."""
    run, outside = tmp_path / "run", tmp_path / "outside"
    old_copy(run)
    outside.write_text("mine")
    (run / f"run.json.{os.getpid()}.tmp").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        update_run_json(str(run), shipped_to="x")
    assert outside.read_text() == "mine"
    update_run_json(str(run), shipped_to="x")
    assert read_run_json(str(run))["shipped_to"] == "x"


def test_what_cannot_be_said_of_a_process_is_unknown_and_named(
    run_path: Path, record: Record
) -> None:
    record("with rltrace.span('rollout'): pass")
    (file,) = (run_path / "process").glob("*.json")
    odd = {"start_ns": "soon", "pid": 1 << 70, "rank": [1], "settings": 3, "argv": "x"}
    odd["role"] = "\ud800lone"  # half a surrogate pair
    file.write_text(json.dumps(json.loads(file.read_text()) | odd))
    run = rltrace.open_run(run_path)
    (process,) = run.processes
    assert (process.pid, process.rank, process.role) == (-1, None, "\\ud800lone")
    assert run.sql("SELECT role FROM spans").fetchall() == [("\\ud800lone",)]
    said = [problem["detail"].split()[0] for problem in run.problems]
    assert said == ["pid", "rank", "start_ns", "argv", "settings"]
    assert run.rows("spans") == 1


def test_a_name_far_beyond_all_others_costs_nothing(run_path: Path, record: Record) -> None:
    record("with rltrace.span('rollout'): pass")
    (file,) = (run_path / "names").glob("*.jsonl")
    with file.open("a") as names:
        names.write('[1152921504606846976, "far"]\n[-1, "before"]\n[1.5, "half"]\n[true, "x"]\n')
    run = rltrace.open_run(run_path)
    assert run.sql("SELECT name FROM spans").fetchall() == [("rollout",)]
    assert [p["what"] for p in run.problems] == ["unreadable-line"] * 4


_TIMES = (1 << 62, (1 << 63) - 1, -5, -(1 << 63))


def test_rows_of_no_possible_time_are_left_out_and_named(run_path: Path, record: Record) -> None:
    """Sums of such times lead anywhere, and so did what goes on from one to the next."""
    record(
        f"""
for number, time in enumerate({_TIMES}):
    for start, end in ((time, 5), (5 + number, time)):
        recorder.active().append("spans", start_ns=start, end_ns=end, stage=0)
"""
    )
    opened = rltrace.open_run(run_path)
    kept = opened.sql("SELECT end_ns FROM raw_spans").fetchall()
    assert kept == [(-1,)] * 4
    (said,) = (p["detail"] for p in opened.problems if p["what"] == "impossible-times")
    assert said == "4 rows of no possible time: left out"
    follower = Follower(run_path)
    found = [follower.poll()["spans"], follower.unfinished("spans")]
    assert [end for rows in found for end in rows["end_ns"].tolist()] == [-1] * 4
    assert any("rows of no possible time: left out" in said for said in follower.problems.values())
    compact(opened)
    delete_segments(run_path)
    again = rltrace.open_run(run_path)
    assert again.sql("SELECT end_ns FROM raw_spans").fetchall() == kept
    assert [p["detail"] for p in again.problems] == [said]
