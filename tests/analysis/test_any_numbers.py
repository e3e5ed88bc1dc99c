"""Made runs: whatever numbers a trace holds, it has a summary and every form of report, and no
traceback; the generator of synthetic runs is deterministic, with stock files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from rich.console import Console

import rltrace
from benchmarks.make_trace import Workload, main, make
from rltrace.testing import at, process, run_of
from rltrace.testing.inside.analysis import RunAnalysis, summarize
from rltrace.testing.inside.report import html, markdown, terminal, to_json
from rltrace.testing.inside.trace import TABLES, Column
from rltrace.testing.inside.trace import OpenedRun as Run


def random_column(rng: np.random.Generator, column: Column, n: int) -> Any:
    """Plausible, unknown and impossible values."""
    if column.is_name:
        return np.array(["a", "b", "c"])[rng.integers(0, 3, n)]
    if column.is_time:
        values = at(0) + rng.integers(0, 10 ** int(rng.integers(1, 17)), n)
    elif column.kind == "b":
        values = rng.integers(-1, 20, n)  # codes that nobody defined among them
    else:
        values = rng.integers(-1, 2 ** int(rng.integers(2, 31 if column.kind == "i" else 60)), n)
    return np.where(rng.random(n) < 0.2, -1, values)


def random_run(folder: Path, seed: int) -> Run:
    """Three workers with rows in every table."""
    rng = np.random.default_rng(seed)
    made = [process("worker", rank=rank) for rank in range(3)]
    for one in made:
        for table in TABLES.values():
            n = int(rng.integers(0, 60))
            columns = {column.name: random_column(rng, column, n) for column in table.columns}
            marker = table.columns[0].name
            columns[marker] = np.maximum(columns[marker], at(0))
            if table.name == "spans":
                one.spans += list(zip(*(c.tolist() for c in columns.values()), strict=True))
            else:
                one.rows(table.name, **columns)
    return run_of(folder, *made)


@pytest.mark.parametrize("seed", range(12))
def test_there_is_a_summary_and_a_report(tmp_path: Path, seed: int) -> None:
    run = random_run(tmp_path, seed)
    found = summarize(run)
    for step in found.steps.times:
        charged = sum(step.exposed_s.values()) + step.untraced_s
        assert charged == pytest.approx(step.step_s, rel=1e-6, abs=1e-6)
    terminal.render(found, Console(file=io.StringIO(), width=80))
    assert markdown.render(found)
    assert json.dumps(to_json.render(found), allow_nan=False)
    assert html.render(RunAnalysis(run), found)


SMALL: dict[str, Any] = {"steps": 4, "prompts": 4, "group": 4}


def tables(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in sorted(path.glob("*/*.arrows"))}


def test_equal_workloads_give_equal_files(tmp_path: Path) -> None:
    load = Workload(placement="async", nodes=2, mixed=0.3, kill_step=2, spans=5_000, **SMALL)
    first, second = make(tmp_path / "a", load), make(tmp_path / "b", load)
    assert first == second
    assert tables(tmp_path / "a") == tables(tmp_path / "b")
    other = Workload(seed=1, placement="async", nodes=2, mixed=0.3, kill_step=2, **SMALL)
    assert make(tmp_path / "c", other).steps != first.steps


def test_files_are_stock_arrow_with_space_that_was_never_used(tmp_path: Path) -> None:
    truth = make(tmp_path / "run", Workload(spans=40_000, **SMALL))
    assert truth.spans == pytest.approx(40_000, rel=0.01)
    assert rltrace.open_run(tmp_path / "run").rows("spans") == truth.spans
    path = next((tmp_path / "run" / "spans").glob("*.arrows"))
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    table.validate(full=True)
    start = table.column("start_ns").to_numpy()
    assert (start[-100:] == 0).all()
    assert (table.column("end_ns").to_numpy()[-100:] == -1).all()
    assert (np.diff(start[start > 0]) >= 0).all()


def test_nodes_have_clocks_of_their_own_that_the_exchanges_align(tmp_path: Path) -> None:
    truth = make(tmp_path / "run", Workload(nodes=3, **SMALL))
    run = rltrace.open_run(tmp_path / "run")
    first = run.sql("select min(start_ns), max(end_ns) from raw_spans").fetchall()[0]
    assert first == (truth.steps[0].start_ns, truth.steps[-1].end_ns)
    starts = {p.node: p.facts["start_ns"] for p in run.processes}
    assert len(set(starts.values())) == 3
    assert {p.clock_bound_ns for p in run.processes} == {0, 40_000}


def test_the_command_writes_the_run_and_its_truth(tmp_path: Path) -> None:
    def truth_of(*options: str) -> Any:
        out = tmp_path / options[0]
        done = CliRunner().invoke(main, [str(out), *options, "--set", "steps=3"])
        assert done.exit_code == 0, done.output
        return json.loads((out / "truth.json").read_text())

    load = truth_of("--placement", "async", "--set", "prompts=2")
    assert (load["placement"], len(load["steps"])) == ("async", 3)
    job = truth_of("--job", "--set", "groups=2", "--set", "scored_by=group")
    assert len(job["steps_s"]) == 3
    length_s = (job["end_ns"] - job["start_ns"]) / 1e9
    assert sum(job["total_s"].values()) == pytest.approx(length_s)


def test_impossible_workloads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="placement"):
        Workload(placement="nowhere")
    with pytest.raises(ValueError, match="second rollout worker"):
        Workload(kill_step=1, rollout_workers=1)
    done = CliRunner().invoke(main, [str(tmp_path / "run"), "--set", "stepps=3"])
    assert done.exit_code == 2
    assert "stepps" in done.output
