"""The generator of synthetic runs: deterministic, stock files, as many spans as asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import rltrace
from benchmarks.make_trace import Workload, main, make

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
    make(tmp_path / "run", Workload(**SMALL))
    path = next((tmp_path / "run" / "spans").glob("*.arrows"))
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    table.validate(full=True)
    start = table.column("start_ns").to_numpy()
    assert (start[-100:] == 0).all()
    assert (table.column("end_ns").to_numpy()[-100:] == -1).all()
    stored = start[start > 0]
    assert (np.diff(stored) >= 0).all()


def test_the_number_of_spans_is_about_what_was_asked_for(tmp_path: Path) -> None:
    truth = make(tmp_path / "run", Workload(spans=40_000, **SMALL))
    assert truth.spans == pytest.approx(40_000, rel=0.01)
    assert rltrace.open_run(tmp_path / "run").rows("spans") == truth.spans


def test_nodes_have_clocks_of_their_own_that_the_exchanges_align(tmp_path: Path) -> None:
    truth = make(tmp_path / "run", Workload(nodes=3, **SMALL))
    run = rltrace.open_run(tmp_path / "run")
    first = run.sql("select min(start_ns), max(end_ns) from raw_spans").fetchall()[0]
    assert first == (truth.steps[0].start_ns, truth.steps[-1].end_ns)
    starts = {p.node: p.facts["start_ns"] for p in run.processes}
    assert len(set(starts.values())) == 3
    assert {p.clock_bound_ns for p in run.processes} == {0, 40_000}


def test_the_command_writes_the_run_and_its_truth(tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = [str(out), "--placement", "async", "--set", "steps=3", "--set", "prompts=2"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    truth = json.loads((out / "truth.json").read_text())
    assert truth["placement"] == "async"
    assert len(truth["steps"]) == 3


def test_the_command_plays_a_job_and_writes_its_critical_path(tmp_path: Path) -> None:
    out = tmp_path / "run"
    knobs = ["--set", "steps=2", "--set", "groups=2", "--set", "scored_by=group"]
    done = CliRunner().invoke(main, [str(out), "--job", "--placement", "colocated", *knobs])
    assert done.exit_code == 0, done.output
    truth = json.loads((out / "truth.json").read_text())
    assert len(truth["steps_s"]) == 2
    length_s = (truth["end_ns"] - truth["start_ns"]) / 1e9
    assert sum(truth["total_s"].values()) == pytest.approx(length_s)


def test_impossible_workloads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="placement"):
        Workload(placement="nowhere")
    with pytest.raises(ValueError, match="second rollout worker"):
        Workload(kill_step=1, rollout_workers=1)
    done = CliRunner().invoke(main, [str(tmp_path / "run"), "--set", "stepps=3"])
    assert done.exit_code == 2
    assert "stepps is no field of Workload" in done.output
