"""rltrace is another one when a run is read than when it was recorded: old runs are read for ever.

In tests/fixtures are runs as they were written by the first version: `run-schema-1` by two
processes of which one was killed, `run-schema-1-wrapped` by a job under `wrap` (with an agent, a
fork, a killed worker, a failed step and values that could not be recorded), and
`run-schema-1-compacted`, which is that one as Parquet. They are never made anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.trace import UNREADABLE, manifest
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import compaction_compact as compact
from tests.cli.conftest import invoke, typed

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


COMMANDS = (
    "report RUN", "report RUN --json", "report RUN --html page.html", "query RUN @lag_histogram",
    "timeline RUN -o run.pftrace", "info RUN", "gate RUN --min goodput=1", "compare RUN RUN",
    "whatif RUN", "compact RUN", "ship RUN store", "top RUN --once --json",
)  # fmt: skip


@pytest.mark.parametrize("setting", [{"sampled": 0.1}, {"max_bytes": 1_000_000}])
@pytest.mark.parametrize("name", ["run-schema-1-wrapped", "run-schema-1-compacted"])
def test_a_run_that_was_recorded_in_part_is_refused(
    name: str, setting: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreleased version could leave samples out, and drop the oldest rows."""
    monkeypatch.chdir(tmp_path)
    path = Path(shutil.copytree(FIXTURES / name, tmp_path / "run"))
    meta = json.loads((path / "run.json").read_text())
    meta["settings"] |= setting
    (path / "run.json").write_text(json.dumps(meta))
    before = sorted(tmp_path.rglob("*"))
    for command in COMMANDS:
        done = typed(command, RUN=path)
        assert done.exit_code == UNREADABLE, (command, done.output)
        assert "does not read it" in done.stderr
        assert done.stderr.count("\n") == 1
    (listed,) = json.loads(invoke("ls", tmp_path, "--json").stdout)
    assert "unreadable" in listed["problem"]
    assert sorted(tmp_path.rglob("*")) == before
