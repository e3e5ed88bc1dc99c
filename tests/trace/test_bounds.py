"""How much of anybody's run is read, and what of it makes sense."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rltrace
from rltrace.testing.handmade_runs import process, rows, run_of, turns
from rltrace.testing.inside.trace import (
    EVENT_TABLES,
    MOST_SEGMENT_BYTES,
    SPANS,
    TABLES,
    RltraceError,
    bounds,
    ranges_of,
    weigh,
)
from rltrace.testing.inside.trace import RunFollower as Follower
from rltrace.testing.inside.trace import compaction_compact as compact
from tests.fuzz.hostile_inputs import one_batch
from tests.fuzz.hostile_runs import TELLS_PEAK


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = process("trainer", *turns(6.0, 6.0, 6.0, 6.0))
    ids = [str(n) for n in range(4)]
    at = [10.0 * n + 1 for n in range(4)]
    rows(made, "trajectories", trajectory=ids, start_s=at, end_s=[t + 3 for t in at],
         first_version=[0] * 4, last_version=[0] * 4, finish="stop")  # fmt: skip
    rows(made, "uses", trajectory=ids, step=[*range(4)], version=[1] * 4, tokens=[5] * 4,
         time_s=[t + 7 for t in at], fate="trained")  # fmt: skip
    return run_of(tmp_path, made).path


def command(*words: object) -> tuple[int, str, float, float]:
    """Exit code, what stands on stderr, seconds of CPU and MB of the most memory of a command."""
    with tempfile.NamedTemporaryFile("r") as peak:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        whole = [sys.executable, "-c", TELLS_PEAK, peak.name, *map(str, words)]
        done = subprocess.run(whole, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return done.returncode, done.stderr.strip(), cpu_s, int(peak.read()) / 1024


def segment_of(run: Path, table: str) -> Path:
    return min((run / table).glob("*.arrows"))


def with_value(run: Path, table: str, column: str, value: float) -> None:
    """Gives the second row of a table's segment another value."""
    path = segment_of(run, table)
    read = pa.ipc.open_stream(path.read_bytes()).read_all()
    at = read.schema.get_field_index(column)
    values = np.array(read.column(at).to_numpy())
    values[1] = value
    read = read.set_column(at, read.schema.field(at), pa.array(values))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, read.schema) as writer:
        writer.write_table(read)


@pytest.mark.parametrize("is_compacted", [False, True], ids=["segments", "compacted"])
@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("spans", "stage", 127),
        ("spans", "phase", -128),
        ("trajectories", "finish", 127),
        ("uses", "fate", 127),
        ("trajectories", "first_version", -(2**31)),
        ("uses", "version", -(2**31)),
        ("uses", "step", -(2**31)),
    ],
)
def test_a_row_of_no_possible_value_is_left_out_and_named(
    run: Path, table: str, column: str, value: int, is_compacted: bool
) -> None:
    before = rltrace.open_run(run).rows(table)
    with_value(run, table, column, value)
    if is_compacted:
        compact(rltrace.open_run(run))
        for segment in run.glob("*/*.arrows"):
            segment.unlink()
    opened = rltrace.open_run(run)
    assert len(opened.sql(f"FROM {table}").fetchall()) == before - 1
    named = [p["target"] for p in opened.problems if p["what"] == "impossible-values"]
    assert named == [f"{table}.{column}"]
    follower = Follower(run)
    given = sum(len(rows) for rows in (follower.poll()[table], follower.unfinished(table)))
    assert given == before - 1
    for name in EVENT_TABLES:
        opened.sql(f"FROM {name}").fetchall()
    assert opened.sql("SELECT * FROM lags").fetchall() is not None


@pytest.mark.parametrize("value", [-7, -(2**31)])
def test_a_count_that_cannot_be_is_unknown_and_its_row_stays(run: Path, value: int) -> None:
    with_value(run, "uses", "tokens", value)
    opened = rltrace.open_run(run)
    assert sorted(opened.sql("SELECT tokens FROM raw_uses").fetchall()) == [(-1,), *[(5,)] * 3]
    assert [p["target"] for p in opened.problems] == ["uses.tokens"]


ALL = len(SPANS.columns)


@pytest.mark.parametrize(
    ("columns", "rows_of_batch", "times"),
    [(1, 0, 100_000), (ALL, 0, 100_000), (ALL, 1, 100_000), (1, 1 << 16, 8), (ALL, 1 << 20, 1)],
)
def test_many_batches_or_rows_of_few_bytes_cost_little(
    run: Path, columns: int, rows_of_batch: int, times: int
) -> None:
    head, batch = one_batch(SPANS.columns[:columns], rows_of_batch, 1_700_000_000_000_000_000)
    segment_of(run, "spans").write_bytes(head + batch * times)
    for words in (("report", run), ("top", run, "--once"), ("query", run, "from spans")):
        code, said, cpu_s, peak_mb = command(*words)
        assert code in (0, 3, 4), said
        assert cpu_s < 20
        assert peak_mb < 1000
    assert "torn-file" in [p["what"] for p in _read(run).problems]


def _read(run: Path) -> Any:
    opened = rltrace.open_run(run)
    opened.rows("spans")
    return opened


def test_a_batch_that_is_a_hole_has_no_row_and_is_not_read(run: Path) -> None:
    before = rltrace.open_run(run).rows("spans")
    head, batch = one_batch(SPANS.columns, 1 << 16, 0)
    body = len(batch) - 4096
    with open(segment_of(run, "spans").with_name("node0-4001-7601.7.arrows"), "wb") as file:
        file.write(head)
        for _ in range(20):
            file.write(batch[:4096])
            file.seek(body, os.SEEK_CUR)
        file.truncate(file.tell())
    code, said, cpu_s, peak_mb = command("top", run, "--once", "--json")
    assert (code, said) == (0, "")
    assert cpu_s < 20
    assert peak_mb < 500
    assert rltrace.open_run(run).rows("spans") == before


def test_a_run_is_weighed_before_it_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stated = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    assert weigh(run) >= stated
    monkeypatch.setattr(bounds, "MOST_TOTAL_BYTES", 10 << 20)
    for number in range(8):
        path = run / "spans" / f"h-1-1-ab.{number}.arrows"
        path.touch()
        os.truncate(path, min(MOST_SEGMENT_BYTES, 64 << 20))
    with pytest.raises(RltraceError, match="RLTRACE_BOUNDS"):
        rltrace.open_run(run)


@pytest.mark.parametrize(("bound", "folder"), [("MOST_FILES", "x"), ("MOST_PROCESSES", "process")])
def test_a_run_of_too_many_files_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, bound: str, folder: str
) -> None:
    monkeypatch.setattr(bounds, bound, 40)
    (run / folder).mkdir(exist_ok=True)
    for number in range(41):
        (run / folder / f"{number}.json").write_text("{}")
    for reads in (rltrace.open_run, Follower):
        with pytest.raises(RltraceError, match="RLTRACE_BOUNDS"):
            reads(run)


@pytest.mark.parametrize("said", ["abc", "0", "-4", "1.5", ""])
def test_bounds_that_are_no_number_are_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("RLTRACE_BOUNDS", said)
    code, sentence, _, _ = command("top", run, "--once", "--json")
    assert (code, len(sentence.splitlines())) == (2, 1)


def test_a_command_has_its_memory_and_no_more(run: Path) -> None:
    endless = "SELECT len(list(hash(range))) FROM range(400000000)"
    code, said, _, peak_mb = command("query", run, endless)
    assert (code, len(said.splitlines())) == (4, 1)
    assert peak_mb < 2000


_TAKES_MORE = """
import sys
from rltrace.entry import main
try:
    main()
except SystemExit as ended:
    import numpy
    numpy.empty(1100 << 17)
    sys.exit(ended.code)
"""


def test_of_a_command_s_memory_libraries_leave_most_to_what_it_reads(run: Path) -> None:
    words = [sys.executable, "-c", _TAKES_MORE, "report", run]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("place", ["run.json", "spans"])
def test_a_pipe_behind_a_url_is_waited_for_by_nobody(run: Path, place: str) -> None:
    path = run / place if place.endswith(".json") else segment_of(run, place)
    path.unlink()
    os.mkfifo(path)
    code, said, _, _ = command("report", f"file://{run}")
    assert (code, len(said.splitlines())) == ((4, 1) if place == "run.json" else (0, 0))
    assert command("ls", f"file://{run.parent}")[0] in (0, 4)


def test_parents_are_found_however_many_processes_there_are(run: Path, tmp_path: Path) -> None:
    """Each began the next: none has a role but the first. Once a square of their number."""
    told = json.loads(min((run / "process").iterdir()).read_text())
    for n in range(4000):
        facts = {**told, "role": "actor" if n == 0 else None, "pid": n + 10, "ppid": n + 9}
        facts["start_ns"] = told["start_ns"] + 1 + n
        (run / "process" / f"node0-{n + 10}-{n}-ab.json").write_text(json.dumps(facts))
    found = [one.child_of for one in rltrace.open_run(run).processes if one.pid >= 10]
    assert found.count("actor") == 3999


def test_tables_have_ranges_for_all_codes() -> None:
    """A code that has no range would be a place beyond a list of words."""
    for table in TABLES.values():
        ranges = ranges_of(table.columns)
        assert all(column.name in ranges for column in table.columns if column.codes)
