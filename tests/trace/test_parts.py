"""A compacted run is cut into parts by step, and a few steps of it are read without the others."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import rltrace
from benchmarks.make_trace import Workload, make
from rltrace.testing.handmade_runs import process, run_of
from rltrace.testing.inside.analysis import asked_steps, narrow, summarize
from rltrace.testing.inside.trace import (
    GIVEN_NAN,
    TABLES,
    RltraceError,
    Stage,
    delete_segments,
    read_manifest,
)
from rltrace.testing.inside.trace import CompactManifest as Manifest
from rltrace.testing.inside.trace import compaction_compact as compact
from rltrace.trace.compact.sorted_parts import cuts
from tests.conftest import MadeOnce, Record
from tests.trace.following import read

STEPS = 40
LOAD = Workload(placement="async", steps=STEPS, prompts=16, group=4, spans=80_000, nodes=2)
PART_BYTES = 200_000


@pytest.fixture(scope="module")
def whole(made_once: MadeOnce) -> Path:
    """As it was recorded; not to be written into."""
    return made_once("parts-whole", lambda folder: make(folder / "run", LOAD)) / "run"


@pytest.fixture(scope="module")
def compacted(whole: Path, made_once: MadeOnce) -> Path:
    """In parts, and without segments; not to be written into."""

    def into(folder: Path) -> None:
        shutil.copytree(whole, folder / "run")
        compact(rltrace.open_run(folder / "run"), part_bytes=PART_BYTES)
        delete_segments(folder / "run")

    return made_once("parts-compacted", into) / "run"


@pytest.fixture
def copy(compacted: Path, tmp_path: Path) -> Path:
    """The compacted one, of the test's own."""
    return Path(shutil.copytree(compacted, tmp_path / "run"))


def manifest_of(path: Path) -> Manifest:
    found = read_manifest(path)
    assert found is not None
    return found


def rows(path: Path, table: str, steps: str = "") -> list[tuple[Any, ...]]:
    run = rltrace.open_run(path)
    if steps:
        narrow(run, asked_steps(steps))
    columns = ", ".join(f'"{c.name}"' for c in TABLES[table].columns if not c.is_name)
    return sorted(run.sql(f"SELECT {columns}, who FROM {table}").fetchall(), key=repr)


def test_every_row_is_in_one_part(whole: Path, compacted: Path) -> None:
    for table in TABLES.values():
        assert read(compacted, table) == read(whole, table), table.name


def test_parts_follow_each_other_and_begin_with_steps(compacted: Path) -> None:
    manifest = manifest_of(compacted)
    starts = {start for _, start, _, _ in rltrace.open_run(compacted).step_rows()}
    for name, table in TABLES.items():
        parts = manifest.tables[name]
        marker = table.columns[0].name
        for before, after in pairwise(parts):
            assert before.until_ns == after.from_ns
            assert after.from_ns in starts
        for part in parts:
            found = duckdb.sql(f"SELECT {marker} FROM '{part.path}'").fetchnumpy()[marker]
            assert (np.diff(found) >= 0).all()
            assert ((found >= part.from_ns) & (found < part.until_ns)).all()
            assert len(found) == part.rows
    spans = manifest.tables["spans"]
    assert len(spans) > STEPS / 2
    steps = [part.steps for part in spans if part.steps is not None]
    assert [first for first, _ in steps[1:]] == [last + 1 for _, last in steps[:-1]]
    assert f"-steps-{steps[3][0]}-" in spans[3].path.name


@pytest.mark.parametrize("steps", ["0", "7", "11..13", "25..", "..4"])
def test_steps_are_the_same_of_segments_and_of_parts(
    whole: Path, compacted: Path, steps: str
) -> None:
    for table in TABLES:
        assert rows(compacted, table, steps) == rows(whole, table, steps), table


def test_what_a_range_of_steps_holds(whole: Path) -> None:
    everything, part = rltrace.open_run(whole), rltrace.open_run(whole)
    narrow(part, asked_steps("11..13"))
    ask = "SELECT step, start_ns FROM steps ORDER BY step"
    assert [step for step, _ in part.sql(ask).fetchall()] == [11, 12, 13]
    starts = dict(everything.sql(ask).fetchall())
    since, until = starts[11], starts[14]
    for table in ("spans", "trajectories", "syncs"):
        of_steps = "AND (stage <> 14 OR step BETWEEN 11 AND 13)" if table == "spans" else ""
        going_on = f"start_ns < {until} AND end_ns >= {since} {of_steps}"
        expected = everything.sql(f"SELECT count(*) FROM raw_{table} WHERE {going_on}").fetchall()
        count = part.sql(f"SELECT count(*) FROM raw_{table} WHERE {going_on}").fetchall()
        assert count == expected
        late = f"SELECT count(*) FROM raw_{table} WHERE start_ns >= {until}"
        assert part.sql(late).fetchall() == [(0,)]
    # Samples lag by up to two steps: those that were used are known, whenever they were generated.
    lags = "SELECT trajectory, lag, fate FROM lags WHERE step BETWEEN 11 AND 13 ORDER BY ALL"
    assert part.sql(lags).fetchall() == everything.sql(lags).fetchall()
    assert part.sql("SELECT count(*) FROM lags WHERE lag > 1").fetchall()[0][0]


def test_a_step_is_read_without_the_other_parts(copy: Path) -> None:
    manifest = manifest_of(copy)
    run = rltrace.open_run(copy)
    narrow(run, asked_steps("15"))
    since, until = run.since_ns, run.until_ns
    assert until is not None
    read_bytes = all_bytes = 0
    for name in TABLES:
        near, carried = manifest.between(name, since, until)
        # Two steps back is as far as samples lag.
        before = [p for p in manifest.tables[name] if p.until_ns <= since][-4:]
        needed = near + (before if name in ("trajectories", "rewards") else [])
        for part in manifest.tables[name]:
            size = part.path.stat().st_size
            all_bytes += size
            if part in needed:
                read_bytes += size
            else:
                part.path.write_bytes(b"nothing of a Parquet file")
        assert len(near) <= 2
        assert len(carried) <= 1
    assert read_bytes < all_bytes / 5
    summary = summarize(run)
    assert [one.step for one in summary.steps.times] == [15]
    with pytest.raises(RltraceError, match="cannot be read"):
        rltrace.open_run(copy).connection.sql("FROM raw_spans").fetchall()


def test_the_report_of_a_part_is_that_of_its_steps(whole: Path, compacted: Path) -> None:
    entire = summarize(rltrace.open_run(whole), predict=False)
    run = rltrace.open_run(compacted)
    narrow(run, asked_steps("10..19"))
    part = summarize(run, predict=False)
    assert part.run.some_steps_only
    assert not part.health.alarms
    chosen = [one for one in entire.steps.times if 10 <= one.step <= 19]
    assert [one.step for one in part.steps.times] == list(range(10, 20))
    for mine, other in zip(part.steps.times, chosen, strict=True):
        assert mine.step_s == pytest.approx(other.step_s)
        assert mine.tau_s == pytest.approx(other.tau_s)
    lags = {bar.lag: bar.trajectories for bar in part.staleness.by_first_token}
    assert set(lags) == {0, 1, 2}
    assert part.run.shown_s == pytest.approx(sum(one.step_s for one in chosen), rel=0.05)
    assert part.run.lasted_s == entire.run.lasted_s


def test_cuts_are_where_steps_begin_and_within_a_step_that_is_too_long() -> None:
    sampled = np.arange(0, 1_000, 5, dtype=np.int64)
    starts = np.array([0, 90, 180, 900], np.int64)
    found = cuts(sampled, 1_000, starts, 100)
    assert found[:2] == [90, 180]
    assert all(280 <= cut <= 900 for cut in found[2:])
    assert max(np.diff([0, *found, 1_000])) <= 110
    assert cuts(sampled, 1_000, starts, 1_000) == []
    same = np.full(100, 7, np.int64)
    assert cuts(same, 1_000, starts, 10) == []  # one moment cannot be cut


@pytest.mark.parametrize("file", ["/etc/passwd", "../../other/spans.parquet", ""])
def test_a_manifest_names_no_file_outside_of_its_run(copy: Path, file: str) -> None:
    named = copy / "parquet" / "manifest.json"
    said = json.loads(named.read_text())
    said["tables"]["spans"][0]["file"] = file
    named.write_text(json.dumps(said))
    assert read_manifest(copy) is None


def test_what_is_unknown_and_what_was_no_number_stay_apart(run_path: Path, record: Record) -> None:
    record("""
for n in range(200):
    rltrace.reward(n, float("nan") if n % 4 else 1.0, component="exact")
    rltrace.reward(n, "no number", component="exact")
""")
    given = f"SELECT count(*) FILTER ({GIVEN_NAN}), count(*) FILTER (isnan(value)) FROM raw_rewards"
    assert rltrace.open_run(run_path).sql(given).fetchall() == [(150, 350)]
    compact(rltrace.open_run(run_path))
    delete_segments(run_path)
    assert rltrace.open_run(run_path).sql(given).fetchall() == [(150, 350)]


def test_a_span_that_was_left_ends_whatever_part_the_one_around_is_in(tmp_path: Path) -> None:
    """The same lane of another process is another one: what is open there goes on."""
    many = [(Stage.REWARD, 1 + n / 100, 1 + n / 100 + 0.005) for n in range(3000)]
    left = process("a", (Stage.OTHER, 0, 90), (Stage.ENV, 20, -1), *many)
    run = run_of(tmp_path, left, process("b", (Stage.OTHER, 0, 10), (Stage.ENV, 20, -1)))
    asked = "SELECT role, end_ns - start_ns FROM spans WHERE stage = 'env' ORDER BY role"
    assert run.sql(asked).fetchall() == [("a", 0), ("b", None)]
    compact(run, part_bytes=20_000)
    assert len([*run.path.rglob("spans/*.parquet")]) > 2
    delete_segments(run.path)
    assert rltrace.open_run(run.path).sql(asked).fetchall() == [("a", 0), ("b", None)]
