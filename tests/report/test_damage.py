"""A file of the job's that was cut is told before any figure that rests on it."""

from __future__ import annotations

import os
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import rltrace
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.report import run_lines, terminal
from rltrace.testing.inside.run import examine
from tests.conftest import Record

LOOP = """
recorder.active().describe(role="controller")
for n in range(4):
    with rltrace.step(n):
        with rltrace.span("rollout"): pass
"""


@pytest.fixture
def cut(run_path: Path, record: Record) -> Path:
    """A run whose only process has lost the end of its spans."""
    record(LOOP)
    (segment,) = (run_path / "spans").iterdir()
    os.truncate(segment, segment.stat().st_size // 2)
    return run_path


def test_a_cut_file_is_told_before_the_figures(cut: Path) -> None:
    out = StringIO()
    terminal.render(summarize(rltrace.open_run(cut)), Console(file=out, width=100))
    first, _, rest = out.getvalue().partition("The eight walls")
    said = " ".join(first.split())
    assert "! what controller (pid " in said
    assert "recorded is cut or damaged (spans): figures are of the rows before that" in said
    assert "torn-file" in rest  # with the name of the file


def test_a_whole_run_has_no_such_line(run_path: Path, record: Record) -> None:
    record(LOOP)
    summary = summarize(rltrace.open_run(run_path))
    assert summary.coverage.damaged == ()
    assert not any("damaged" in line for line in run_lines.warnings(summary))


def test_of_many_a_few_are_named(run_path: Path, record: Record) -> None:
    for _ in range(5):
        record(LOOP)
    for segment in (run_path / "spans").iterdir():
        os.truncate(segment, segment.stat().st_size // 2)
    lines = [
        line
        for line in run_lines.warnings(summarize(rltrace.open_run(run_path)))
        if "damaged" in line
    ]
    assert len(lines) == 4
    assert lines[-1].startswith("what 2 more processes recorded")


def test_doctor_says_so_too(cut: Path) -> None:
    assert any(line.startswith("torn file: spans/") for line in examine(cut).problems)
