"""A file of the job's that was cut is told before any figure that rests on it."""

from __future__ import annotations

import os
from io import StringIO
from pathlib import Path

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


def cut(run: Path) -> None:
    """Every process loses the end of its spans."""
    for segment in (run / "spans").iterdir():
        os.truncate(segment, segment.stat().st_size // 2)


def test_a_cut_file_is_told_before_the_figures(run_path: Path, record: Record) -> None:
    record(LOOP)
    summary = summarize(rltrace.open_run(run_path))
    assert summary.coverage.damaged == ()
    assert not any("damaged" in line for line in run_lines.warnings(summary))
    cut(run_path)
    out = StringIO()
    terminal.render(summarize(rltrace.open_run(run_path)), Console(file=out, width=100))
    first, _, rest = out.getvalue().partition("The eight walls")
    said = " ".join(first.split())
    assert "! what controller (pid " in said
    assert "recorded is cut or damaged (spans)" in said
    assert "torn-file" in rest  # with the name of the file
    assert any(line.startswith("torn file: spans/") for line in examine(run_path).problems)


def test_of_many_a_few_are_named(run_path: Path, record: Record) -> None:
    for _ in range(5):
        record(LOOP)
    cut(run_path)
    summary = summarize(rltrace.open_run(run_path))
    lines = [line for line in run_lines.warnings(summary) if "damaged" in line]
    assert len(lines) == 4
    assert lines[-1].startswith("what 2 more processes recorded")
