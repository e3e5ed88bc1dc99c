"""The timeline in each version of Perfetto's own engine: it reads what DuckDB reads."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from perfetto.trace_processor import TraceProcessor

import rltrace
from benchmarks.make_trace import make
from benchmarks.synthetic.workload import Workload
from rltrace.report.perfetto import TimelineCounts, write
from rltrace.testing.inside.hooks import identify
from rltrace.testing.inside.report import StepFindings as Findings
from rltrace.testing.inside.report import counters, find
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import Stage
from tests.report.timelines import DURATIONS, US, VERSIONS, awkward

STAGES = ", ".join(f"'{s.name.lower()}'" for s in Stage if s is not Stage.STEP)
SERVER = Path(__file__).with_name("trace_processor.mjs")


@dataclass(frozen=True)
class Loaded:
    """A run, what the writer said of its timeline, and the engine that has it loaded."""

    run: Run
    counts: TimelineCounts
    processor: TraceProcessor

    def stored(self, query: str) -> list[tuple[Any, ...]]:
        return self.run.sql(query).fetchall()

    def drawn(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a PerfettoSQL query, whose columns must have different names."""
        return [tuple(row.__dict__.values()) for row in self.processor.query(query)]


@contextmanager
def loaded(
    run: Run, path: Path, engine: Path, findings: Findings | None = None
) -> Iterator[Loaded]:
    """A run's timeline, written to `path`, in the engine of a folder, run by Node: it finds nothing
    wrong with it."""
    counts = write(run, path, findings)
    server = subprocess.Popen(["node", str(SERVER), str(engine)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port, "the engine did not start"
        processor = TraceProcessor(trace=str(path), addr=f"127.0.0.1:{port}")
        found = Loaded(run, counts, processor)
        wrong = "FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')"
        wrong += " AND name <> 'unknown_extension_fields'"  # colours, which v47 does not know
        assert found.drawn(f"SELECT name, value {wrong}") == []
        yield found
        processor.close()
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def small(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    folder = tmp_path_factory.mktemp("awkward")
    with loaded(awkward(folder / "run"), folder / "t.pftrace.gz", engine) as found:
        yield found


@pytest.fixture(scope="module", params=["colocated", "async"])
def large(
    request: pytest.FixtureRequest, engine: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loaded]:
    folder = tmp_path_factory.mktemp(request.param)
    make(folder / "run", Workload(placement=request.param, spans=20_000, unknown_versions=0.1))
    run = rltrace.open_run(folder / "run")
    with loaded(run, folder / "t.pftrace", engine, find(run)) as found:
        yield found


def test_the_engine_sees_every_row_and_its_true_duration(small: Loaded) -> None:
    counts = small.counts
    assert (counts.spans, counts.unended, counts.processes, counts.versions) == (13, 1, 2, 1)
    kinds = ("spans", "trajectories", "rewards", "syncs", "uses")
    everything = sum(small.run.rows(kind) for kind in kinds) + counts.versions
    assert small.drawn("SELECT count(*), sum(dur = -1) FROM slice") == [(everything, 1)]
    as_recorded = "dur > 0 AND category <> 'policy version'"
    lasting = small.drawn(f"SELECT sum(dur) FROM slice WHERE {as_recorded}")
    assert lasting == small.stored(DURATIONS)
    expected = small.stored(
        "SELECT start_ns, CASE end_ns WHEN -1 THEN -1 ELSE end_ns - start_ns END "
        f"FROM raw_spans WHERE stage <> {Stage.STEP:d}"
    )
    drawn = small.drawn(f"SELECT to_realtime(ts), dur FROM slice WHERE category IN ({STAGES})")
    assert sorted(drawn) == sorted(expected), "each span stands at its real time"
    shown = small.drawn("SELECT int_value FROM metadata WHERE name = 'tracing_started_ns'")
    first = f"SELECT min(start_ns) FROM raw_spans WHERE stage = {Stage.STEP:d}"
    assert shown == small.stored(first), "the view begins at the first step"


def test_slices_stand_on_the_tracks_of_their_process(small: Loaded) -> None:
    host, pid = small.run.processes[0].host, small.run.processes[0].pid
    lanes = small.drawn(
        "SELECT p.name AS process, t.name AS lane, count(*), max(s.depth) FROM slice s "
        "JOIN thread_track k ON s.track_id = k.id JOIN thread t USING (utid) "
        "JOIN process p USING (upid) GROUP BY 1, t.tid ORDER BY 1, t.tid"
    )
    assert lanes == [
        (f"learner ({host}:{pid})", "thread", 1, 0),
        (f"rollout 0 ({host}:{pid})", "thread", 7, 1),
        (f"rollout 0 ({host}:{pid})", "thread", 1, 0),
    ]
    others = small.drawn(
        "SELECT t.name, count(*) FROM slice s JOIN track t ON s.track_id = t.id "
        "WHERE t.name NOT NULL GROUP BY 1"
    )
    assert dict(others) == {
        "steps": 2,
        "policy versions": 1,
        "overlapping spans": 1,
        "trajectories": 5,
        "rewards": 1,
        "weight updates": 2,
        "phases of weight updates": 1,
        "samples used": 5,
    }
    assert small.drawn("SELECT name FROM process WHERE name NOT NULL ORDER BY upid") == [
        (f"learner ({host}:{pid})",),
        (f"rollout 0 ({host}:{pid})",),
    ], "first the one whose steps they are"
    packed = "SELECT count(DISTINCT track_id) FROM slice WHERE category = 'trajectory'"
    assert small.drawn(packed) == [(5,)], "five at a time need five rows"


def test_annotations_say_what_is_known_and_only_that(small: Loaded) -> None:
    def notes(where: str) -> list[dict[str, object]]:
        slices: dict[int, dict[str, object]] = {}
        for slice_id, key, whole, text, real in small.drawn(
            "SELECT s.id, a.key, a.int_value, a.string_value, a.real_value FROM slice s "
            "LEFT JOIN args a ON s.arg_set_id = a.arg_set_id AND a.key LIKE 'debug.%' "
            f"WHERE {where} ORDER BY s.ts"
        ):
            known = slices.setdefault(slice_id, {})
            if key is not None:
                value = next(v for v in (whole, text, real) if v is not None)
                known[key.removeprefix("debug.")] = value
        return list(slices.values())

    rollout = notes("category = 'rollout' AND dur > 0")
    assert {"step": 3, "version": 300, "tokens": 10**12} in rollout
    assert {"step": 0, "version": 0, "tokens": 0} in rollout
    assert {} in rollout
    assert notes("category = 'sync'") == [{"name": "sync"}]
    sample = {"trajectory": identify(0), "group": identify("g"), "first_version": 1}
    sample |= {"last_version": 1, "response_tokens": 17, "to_first_token_ns": 10 * US}
    use = {"fate": "stale", "used_in_step": 1, "used_by_version": 3, "lag_versions": 2}
    told = {"finish": "length", "waited_ns": 500 * US}
    assert notes("category = 'trajectory'")[0] == {**sample, **use, **told}
    assert notes("category = 'sample reward'") == [{"trajectory": identify(0), "value": 0.5}]
    bytes_of = {"version": 4, "bytes": 10**5, "gb_per_s": 2.0, "transport": "nccl"}
    updates = [{**bytes_of, "role": role} for role in ("source", "sink")]
    assert notes("category = 'weight update'") == updates
    made = {"version": 4, "participants": 2, "made_by_step": 1, "samples": 4}
    lags = {"largest_lag_versions": 2, "mean_lag_versions": 2.0}
    assert notes("category = 'policy version'") == [{**made, **lags}]


ARROWS = f"""
    WITH t AS (SELECT trajectory, min(start_ns) AS begun_ns FROM raw_trajectories
               WHERE trajectory <> -1 GROUP BY 1),
         r AS (SELECT trajectory, arg_max(start_ns, end_ns) AS judged_ns FROM raw_rewards
               WHERE trajectory <> -1 AND end_ns <> -1 GROUP BY 1),
         v AS ({VERSIONS}),
         u AS (SELECT u.time_ns, u.fate, u.version, coalesce(begun_ns <= u.time_ns, false) AS begun,
                      coalesce(judged_ns <= u.time_ns, false) AS judged, begun_ns, judged_ns
               FROM raw_uses u LEFT JOIN t USING (trajectory) LEFT JOIN r USING (trajectory)),
         made AS (SELECT u.time_ns <= v.start_ns AS used, v.start_ns, begun_ns, judged_ns
                  FROM u JOIN v ON v.version = u.version + 1 WHERE fate = 0 AND u.version >= 0)
    SELECT 'trajectory', 'sample reward', count(*) FROM raw_rewards JOIN t USING (trajectory)
    WHERE begun_ns <= start_ns
    UNION ALL SELECT 'sample reward', 'use', count(*) FROM u WHERE judged
    UNION ALL SELECT 'trajectory', 'use', count(*) FROM u WHERE begun AND NOT judged
    UNION ALL SELECT 'use', 'policy version', count(*) FROM made WHERE used
    UNION ALL SELECT 'sample reward', 'policy version', count(*) FROM made
    WHERE NOT used AND judged_ns <= start_ns
    UNION ALL SELECT 'trajectory', 'policy version', count(*) FROM made
    WHERE NOT used AND NOT coalesce(judged_ns <= start_ns, false) AND begun_ns <= start_ns
    UNION ALL SELECT 'policy version', 'weight update', count(*) FROM raw_syncs WHERE version >= 0
"""
DRAWN = "FROM flow f JOIN slice a ON f.slice_out = a.id JOIN slice b ON f.slice_in = b.id"


def test_every_arrow_is_one_that_the_tables_tell_of(small: Loaded, large: Loaded) -> None:
    for found in (small, large):
        query = f"SELECT a.category AS begins, b.category AS ends, count(*) {DRAWN} GROUP BY 1, 2"
        told = [row for row in found.stored(ARROWS) if row[2]]
        assert sorted(found.drawn(query)) == sorted(told)
        assert found.counts.arrows == sum(row[2] for row in told)


def test_an_arrow_joins_what_belongs_together(large: Loaded) -> None:
    def both_ends(key: str, other: str, ends: str) -> list[tuple[Any, ...]]:
        return large.drawn(
            f"SELECT x.int_value AS begins, y.int_value AS ends {DRAWN} "
            f"JOIN args x ON x.arg_set_id = a.arg_set_id AND x.key = 'debug.{key}' "
            f"JOIN args y ON y.arg_set_id = b.arg_set_id AND y.key = 'debug.{other}' "
            f"WHERE b.category IN ({ends})"
        )

    of_samples = both_ends("trajectory", "trajectory", "'sample reward', 'use'")
    of_versions = both_ends("version", "version", "'weight update'")
    for pairs in (of_samples, of_versions):
        assert pairs
        assert all(begin == end for begin, end in pairs)
    made_of = "SELECT trajectory, version + 1 FROM raw_uses WHERE fate = 0 AND version >= 0 AND "
    made_of += f"version + 1 IN (SELECT version FROM ({VERSIONS}))"
    drawn = both_ends("trajectory", "version", "'policy version'")
    assert sorted(drawn) == sorted(large.stored(made_of))


def test_a_whole_run_adds_up_stage_by_stage(large: Loaded) -> None:
    drawn = large.drawn(
        f"SELECT category, count(*), sum(dur) FROM slice WHERE category IN ({STAGES}, 'step') "
        "GROUP BY 1 ORDER BY 1"
    )
    lasting = "sum(end_ns - start_ns)::BIGINT"
    stored = f"SELECT stage, count(*), {lasting} FROM spans GROUP BY 1 ORDER BY 1"
    assert drawn == large.stored(stored)
    versions = "SELECT count(*), sum(dur) FROM slice WHERE category = 'policy version'"
    stored = f"SELECT count(*), {lasting} FROM ({VERSIONS})"
    assert large.drawn(versions) == large.stored(stored)
    path = "SELECT count(*), max(ts + dur) - min(ts) - sum(dur) FROM slice"
    count, gaps = large.drawn(f"{path} WHERE category = 'critical path'")[0]
    assert count == large.counts.path_stretches > 0
    assert gaps == 0, "the path has no gaps"


def test_readings_are_the_recorded_ones_with_their_unit(small: Loaded, large: Loaded) -> None:
    read = "SELECT t.name, t.unit, c.value FROM counter c JOIN counter_track t ON c.track_id = t.id"
    assert small.drawn(f"{read} WHERE t.name = 'memory_bytes 0' ORDER BY c.ts") == [
        ("memory_bytes 0", "bytes", 0.1 * i) for i in range(3)
    ]
    of_samples = (counters.IN_FLIGHT, counters.OF_PROCESS, counters.WAITING)
    of_versions = (counters.LARGEST_LAG, counters.MEAN_LAG)
    derived = ", ".join(f"'{name}'" for name in (*of_samples, *of_versions))
    drawn = large.drawn(f"SELECT value FROM ({read}) WHERE name NOT IN ({derived})")
    stored = large.stored("SELECT value FROM raw_samples WHERE NOT isnan(value)")
    assert len(drawn) == large.counts.samples
    assert math.fsum(v for (v,) in drawn) == math.fsum(v for (v,) in stored)
    assert sorted(drawn) == sorted(stored)


LEVEL = """
    SELECT ns, sum(sum(n)) OVER (ORDER BY ns)::DOUBLE FROM ({}) GROUP BY ns ORDER BY ns
"""
OF_RUN = """
    SELECT to_realtime(c.ts) AS at, c.value FROM counter c JOIN track t ON c.track_id = t.id
    WHERE t.name = '{}' AND c.track_id NOT IN (SELECT id FROM process_counter_track)
    ORDER BY c.ts
"""


def test_derived_counters_follow_from_the_samples(large: Loaded) -> None:
    flying = large.drawn(OF_RUN.format(counters.IN_FLIGHT))
    changes = "SELECT start_ns AS ns, 1 AS n FROM raw_trajectories UNION ALL "
    changes += "SELECT end_ns, -1 FROM raw_trajectories WHERE end_ns <> -1"
    assert flying == large.stored(LEVEL.format(changes))
    waiting = large.drawn(OF_RUN.format(counters.WAITING))
    met = "(SELECT max(t.end_ns) AS a, min(time_ns) AS b FROM raw_uses JOIN raw_trajectories t "
    met += "USING (trajectory) WHERE trajectory <> -1 GROUP BY trajectory HAVING b >= a)"
    changes = f"SELECT a AS ns, 1 AS n FROM {met} UNION ALL SELECT b, -1 FROM {met}"
    assert waiting == large.stored(LEVEL.format(changes))
    lags = large.drawn(OF_RUN.format(counters.LARGEST_LAG))
    trained = "SELECT u.time_ns, u.step, l.lag FROM raw_uses u JOIN lags l USING (trajectory, step)"
    trained += " WHERE l.fate = 'trained' AND l.lag IS NOT NULL"
    expected = f"SELECT min(time_ns), max(lag)::DOUBLE FROM ({trained}) GROUP BY step ORDER BY 1"
    assert lags == large.stored(expected)
