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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pytest

import rltrace
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.report import run_description as run_lines
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import compaction_compact as compact
from rltrace.testing.inside.trace import manifest
from tests.cli.conftest import invoke

FIXTURES = Path(__file__).parents[1] / "fixtures"


def answers_of(run: Run, queries: Iterable[str]) -> dict[str, Any]:
    return {query: [list(row) for row in run.sql(query).fetchall()] for query in queries}


def expected(name: str) -> dict[str, Any]:
    return dict(json.loads((FIXTURES / f"{name}.json").read_text()))


@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.parametrize("name", ["run-schema-1", "run-schema-1-wrapped", "run-schema-1-compacted"])
def test_a_run_of_the_first_version(
    name: str, schema: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this version and the next."""
    monkeypatch.setattr(manifest, "SCHEMA_VERSION", schema)
    path = Path(shutil.copytree(FIXTURES / name, tmp_path / "run"))
    answers = expected("run-schema-1" if name == "run-schema-1" else "run-schema-1-wrapped")
    run = rltrace.open_run(path)
    assert answers_of(run, answers) == answers
    if name != "run-schema-1":
        assert [p.role for p in run.processes].count("agent") == 1
        told = {problem["what"] for problem in run.problems}
        assert told == {"no-gpu", "not-recorded", "step-failed"}
        found = summarize(run)
        assert found.steps.complete == 3
        assert any("exit code 3" in alarm.says for alarm in found.health.alarms)
    compact(run)
    assert answers_of(rltrace.open_run(path), answers) == answers


OF_0_1 = ("run-0.1-sampled", "run-0.1-capped", "run-0.1-capped-compacted")
"""Runs of options that 0.1 had: `wrap --sample 10%`; `wrap --max-bytes`, by which segments of the
first twelve of sixteen steps were dropped; and that one, compacted and without segments."""


COMMANDS = {
    "report RUN": {0}, "report RUN --json": {0}, "report RUN --last 2": {0},
    "report RUN --html page.html": {0}, "query RUN FROM.trajectories": {0},
    "query RUN @lag_histogram": {0}, "timeline RUN -o run.pftrace": {0}, "info RUN": {0},
    "ls .": {0}, "gate RUN --min goodput=1": {0, 1, 3}, "compare RUN RUN": {0, 3},
    "whatif RUN": {0, 3}, "compact RUN --delete-segments": {0}, "top RUN --once --json": {0},
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", OF_0_1)
def test_each_command_takes_what_0_1_recorded(
    name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = shutil.copytree(FIXTURES / name, tmp_path / name)
    words = [word.replace("RUN", str(path)).replace("FROM.", "FROM ") for word in command.split()]
    done = invoke(*words)
    assert done.exit_code in COMMANDS[command], done.output


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
        unseen = {one.name: one.reason for one in found.coverage.unseen}
        assert unseen["reward"] == why  # only samples told it
        assert (found.verdict.confidence, found.verdict.alarms) == ("cannot tell", ())
        assert found.goodput is found.signal is None
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
