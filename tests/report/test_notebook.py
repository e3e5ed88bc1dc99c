"""A run in a notebook, with what people ask of it first."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rltrace
from benchmarks.make_trace import Workload, make
from rltrace.report.notebook import Run
from rltrace.testing.inside.analysis import RunAnalysis
from rltrace.testing.inside.report import html


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("made") / "run"
    make(path, Workload(steps=4, prompts=4, group=2))
    return rltrace.open_run(path)


def test_a_run_answers_named_queries_and_is_summed_up_once(run: Run) -> None:
    assert run.query("@lag_histogram").columns[0] == "lag"
    assert run.query("lag_histogram").fetchall()
    assert run.summary is run.summary
    assert run.summary.steps.complete == 4


def test_a_notebook_shows_the_first_screen_of_the_page(run: Run) -> None:
    shown = run._repr_html_()
    first_screen = shown[shown.index("<section") : shown.rindex("</div>")]
    assert "<svg" in first_screen
    assert first_screen in html.render(RunAnalysis(run), run.summary)
    assert "<script" not in shown


def test_opening_a_run_loads_neither_the_analysis_nor_matplotlib(run: Run) -> None:
    program = f"""
import sys, rltrace
rltrace.open_run({str(run.path)!r})
heavy = ("rltrace.analysis", "rltrace.report.", "matplotlib")
print([name for name in sys.modules if name.startswith(heavy)])
"""
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert said.strip() == "['rltrace.report.notebook']"
