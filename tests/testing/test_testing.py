"""`rltrace.testing`: runs from arrays, a recorder in a scratch run, jobs of known truth, clocks."""

from __future__ import annotations

import pydoc
from pathlib import Path
from typing import Any

import pytest

import rltrace
import rltrace.testing
from benchmarks.synthetic.truth import known_job
from rltrace.testing import (
    FakeClock,
    process,
    recording,
    report_of,
    rows,
    run_from_arrays,
    run_of,
    turns,
)
from rltrace.testing.inside.trace import RltraceError


def test_a_run_from_arrays_holds_them(tmp_path: Path) -> None:
    spans = {"stage": ["step", "train"], "start_s": [0, 4.5], "end_s": [4, -1], "step": [0, 0]}
    uses = {"trajectory": [7], "time_s": [3.5], "step": 0, "fate": "trained", "tokens": 9}
    run = run_from_arrays(tmp_path, {"spans": spans, "uses": uses}, framework="trl")
    found = "SELECT name, step, (end_ns - start_ns) / 1e9 FROM spans ORDER BY start_ns"
    assert run.sql(found).fetchall() == [("step", 0, 4.0), ("train", 0, None)]
    used = "SELECT trajectory, tokens, version, fate FROM uses"
    assert run.sql(used).fetchall() == [(7, 9, None, "trained")]
    assert run.meta["framework"] == "trl"


@pytest.mark.parametrize(
    "tables",
    [
        {"spams": {}},
        {"uses": {"stage": [1]}},
        {"uses": {"step": [1], "tokens": [1, 2]}},
        {"spans": {"stage": [6]}},
        {"spans": {"stage": ["trian"], "start_s": [0], "end_s": [1]}},
        {"uses": {"time_s": [1], "fate": ["kept"]}},
        {"trajectories": {"end_s": [1]}},
    ],
)
def test_what_no_run_has_is_refused(tmp_path: Path, tables: dict[str, Any]) -> None:
    with pytest.raises(RltraceError):
        run_from_arrays(tmp_path, tables)


def test_rows_are_of_a_table_and_its_columns() -> None:
    with pytest.raises(RltraceError):
        rows(process("trainer"), "uses", stage=[1])


@pytest.mark.parametrize("span", [("step", 0, 10), (("train", 1), 0, 1), ("train", 9), "train", 9])
def test_a_span_that_cannot_be_is_refused(span: Any) -> None:
    with pytest.raises(RltraceError):
        process("trainer", span)


def test_help_shows_what_there_is() -> None:
    assert "run_of(" in pydoc.plain(pydoc.render_doc(rltrace.testing))


def test_a_made_up_run_has_the_wall_that_it_was_given(tmp_path: Path) -> None:
    for wall, rollout_s in (("rollout", 9), ("training", 1)):
        run = run_of(
            tmp_path / wall.partition(" ")[0], process("trainer", *turns(*[rollout_s] * 6))
        )
        assert report_of(run)["verdict"]["first"] == wall


def test_a_known_job_says_what_an_analysis_must_find(tmp_path: Path) -> None:
    run, truth = known_job(tmp_path / "run", steps=4, prompts=4, group=4)
    assert report_of(run)["goodput"]["trained"]["tokens"] > truth.steady_useful_tokens > 0
    assert run.rows("spans") == truth.spans


def test_the_fake_clock_alone_decides_how_long_things_took(tmp_path: Path) -> None:
    with recording(tmp_path / "run", role="learner") as recorder:
        with FakeClock(recorder) as clock, rltrace.step(0):
            with rltrace.span("train"):
                clock.advance(2.5)
            with rltrace.trajectory("a", version=0) as sample:
                clock.advance(90)
                sample.finish("stop", response_tokens=3)
            with pytest.raises(ValueError, match="back"):
                clock.advance(-1)
        with pytest.raises(ValueError, match="recorder"):
            FakeClock()
        with pytest.raises(RltraceError), recording(tmp_path / "other"):
            pass
    run = rltrace.open_run(tmp_path / "run")
    took = "SELECT stage, (end_ns - start_ns) / 1e9 FROM spans ORDER BY 2"
    assert run.sql(took).fetchall() == [("train", 2.5), ("step", 92.5)]
    assert run.sql("SELECT (end_ns - start_ns) / 1e9, role FROM trajectories").fetchall() == [
        (90.0, "learner")
    ]
    with recording(tmp_path / "after"), rltrace.span("train"):
        pass
    run = rltrace.open_run(tmp_path / "after")
    assert run.sql("SELECT end_ns > start_ns FROM spans").fetchall() == [(True,)]
