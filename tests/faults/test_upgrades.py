"""rltrace is another one when a run is read than when it was recorded: old runs are read for ever.

In tests/fixtures are runs as they were written by the first version: `run-schema-1` by two
processes of which one was killed, `run-schema-1-wrapped` by a job under `wrap` (with an agent, a
fork, a killed worker, a failed step and values that could not be recorded), and
`run-schema-1-compacted`, which is that one as Parquet. They are never made anew.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

import rltrace
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.report import run_lines
from rltrace.testing.inside.trace import RltraceError, Run, compact, manifest, update_run_json
from tests.cli.conftest import invoke
from tests.conftest import recorded

FIXTURES = Path(__file__).parents[1] / "fixtures"
WRAPPED = ("run-schema-1-wrapped", "run-schema-1-compacted")


def answers_of(run: Run, queries: list[str]) -> dict[str, Any]:
    return {query: [list(row) for row in run.sql(query).fetchall()] for query in queries}


def expected(name: str) -> dict[str, Any]:
    loaded = json.loads((FIXTURES / f"{name}.json").read_text())
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_run_of_the_first_version(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(FIXTURES / name, path)
    answers = expected("run-schema-1-wrapped")
    run = rltrace.open_run(path)
    assert answers_of(run, [*answers]) == answers
    assert [p.role for p in run.processes].count("agent") == 1
    assert {problem["what"] for problem in run.problems} == {
        "no-gpu",
        "not-recorded",
        "step-failed",
    }
    found = summarize(run)
    assert found.steps.complete == 3
    assert any("exit code 3" in alarm.says for alarm in found.health.alarms)
    compact(run)
    assert answers_of(rltrace.open_run(path), [*answers]) == answers


def test_an_upgrade_while_a_run_is_recorded(tmp_path: Path) -> None:
    """Processes that begin after it write beside those before it: nobody's rows are touched."""
    path = tmp_path / "run"
    shutil.copytree(FIXTURES / "run-schema-1", path)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    old = expected("run-schema-1")
    recorded(path, "for n in range(200):\n    with rltrace.span('env', version=n): pass")
    assert {file: file.read_bytes() for file in before} == before
    run = rltrace.open_run(path)
    spans = (
        "SELECT count(*), count(DISTINCT version) FROM spans WHERE stage = 'env' AND rank IS NULL"
    )
    assert run.sql(spans).fetchall() == [(200, 200)]
    of_ranks = [query for query in old if "FROM spans" in query and "ORDER BY rank" in query]
    assert of_ranks
    for query in of_ranks:
        ranked = query.replace("FROM spans", "FROM (SELECT * FROM spans WHERE rank IS NOT NULL)")
        assert [list(row) for row in run.sql(ranked).fetchall()] == old[query]


def test_the_compacted_tables_of_the_first_version_are_read_by_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manifest, "SCHEMA_VERSION", 2)
    answers = expected("run-schema-1-wrapped")
    assert answers_of(rltrace.open_run(FIXTURES / "run-schema-1-compacted"), [*answers]) == answers


def test_a_run_of_a_later_version_is_left_to_that(tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(FIXTURES / "run-schema-1-wrapped", path)
    update_run_json(str(path), schema_version=99)
    with pytest.raises(RltraceError, match="schema 99, this rltrace reads up to 1: upgrade"):
        rltrace.open_run(path)


OF_0_1 = ("run-0.1-sampled", "run-0.1-capped", "run-0.1-capped-compacted")
"""Runs of options that 0.1 had: `wrap --sample 10%`; `wrap --max-bytes`, by which segments of the
first twelve of sixteen steps were dropped; and that one, compacted and without segments."""


@pytest.fixture(params=OF_0_1)
def of_0_1(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / request.param, tmp_path / request.param))


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        (("report", "RUN"), (0,)),
        (("report", "RUN", "--json"), (0,)),
        (("report", "RUN", "--last", "2"), (0,)),
        (("report", "RUN", "--html", "page.html"), (0,)),
        (("query", "RUN", "FROM trajectories"), (0,)),
        (("query", "RUN", "@lag_histogram"), (0,)),
        (("timeline", "RUN", "-o", "run.pftrace"), (0,)),
        (("info", "RUN"), (0,)),
        (("ls", "."), (0,)),
        (("gate", "RUN", "--min", "goodput=1"), (0, 1, 3)),
        (("compare", "RUN", "RUN"), (0, 3)),
        (("whatif", "RUN"), (0, 3)),
        (("compact", "RUN", "--delete-segments"), (0,)),
        (("top", "RUN", "--once", "--json"), (0,)),
    ],
)
def test_each_command_takes_what_0_1_recorded(
    of_0_1: Path, words: tuple[str, ...], codes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(of_0_1.parent)
    done = invoke(*(of_0_1 if word == "RUN" else word for word in words))
    assert done.exit_code in codes, done.output


@pytest.mark.parametrize("name", OF_0_1[1:])
def test_of_steps_that_0_1_dropped_nothing_is_shown(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copytree(FIXTURES / name, tmp_path / name))
    shown = "SELECT min(step), count(*) FROM steps"
    rows = {"spans": 138, "trajectories": 128, "rewards": 160, "uses": 160, "syncs": 5}
    for _ in ("as it is", "compacted again"):
        run = rltrace.open_run(path)
        assert run.sql(shown).fetchall() == [(12, 4)]
        assert {table: run.rows(table) for table in rows} == rows
        found = summarize(run)
        assert found.steps.complete == 4
        assert found.goodput is not None
        assert found.goodput.trained.samples == 4 * 32
        assert any("oldest details were dropped" in line for line in run_lines.warnings(found))
        live = json.loads(invoke("top", path, "--once", "--json").stdout)
        assert live["totals"]["trained_samples"] == 160
        invoke("compact", path)


def test_of_a_share_of_the_samples_nothing_is_told(tmp_path: Path) -> None:
    path = Path(shutil.copytree(FIXTURES / "run-0.1-sampled", tmp_path / "run"))
    why = "only 10 % of the samples were recorded (--sample)"
    for _ in ("as it is", "compacted"):
        run = rltrace.open_run(path)
        assert run.sql("SELECT count(*) FROM spans").fetchall() == [(544,)]
        found = summarize(run)
        assert found.steps.complete == 16
        rollout = {row.name: row for row in found.stages}["rollout"]
        assert rollout.tau_s.mean > 0  # its spans are whole
        assert "reward" in found.steps.exposed_unknown  # only samples told it
        assert (found.verdict.because, found.verdict.alarms, found.verdict.fixes) == (why, (), ())
        assert not any(wall.cost.known for wall in found.verdict.walls)
        assert found.goodput is found.signal is None
        told = json.loads(invoke("report", path, "--json").stdout)
        assert (told["goodput"], told["staleness"], told["tail"]) == (None, None, None)
        assert math.isnan(found.own_cost.share)
        assert sum(why in line for line in run_lines.warnings(found)) == 1
        live = json.loads(invoke("top", path, "--once", "--json").stdout)
        assert live["window"]["step_s"] > 0
        of_samples = ("generated_tokens", "trained_tokens", "trained_samples", "lost")
        assert [live["totals"][name] for name in of_samples] == [None] * 4
        judged = invoke("gate", path, "--min", "goodput=1")
        assert judged.exit_code == 3
        assert why in invoke("query", path, "SELECT 1").stderr
        invoke("compact", path, "--delete-segments")
    rows = duckdb.sql(f"FROM '{path}/parquet/trajectories/*.parquet'").fetchall()
    assert len(rows) == 52  # nothing is lost
