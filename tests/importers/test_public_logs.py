"""Logs that people posted, as they posted them (`public/truth.toml` says where, and what they say
by hand): each is read, its sums are the log's own, and no wall is named that it does not show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.adapters import log_tables, table_of
from rltrace.testing.inside.analysis import RunAnalysis, rank
from rltrace.testing.inside.importers import ImportedRun, read_run, write_run
from rltrace.testing.inside.trace import RltraceError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PUBLIC = Path(__file__).parent / "public"
LOGS: list[dict[str, Any]] = tomllib.loads((PUBLIC / "truth.toml").read_text("utf-8"))["log"]

NOT_READ = {
    ("20_slime_ocr_garbled.log", "names"),  # a text program misread them: `perf/wake_up_Lti`
    ("30_rlinf_mojibake_table.log", "step"),  # its `Step Time` is a mean since the start
    ("37_skyrl_started_finished.log", "steps"),  # the second step has begun
    ("38_ms-swift_grpo_all_truncated.jsonl", "steps"),  # the third line is cut before its step
    ("21_slime_pretty_dicts.log", "steps"),  # one dict counts from 0, the others from 1
}
"""What of a log is not read, and why: its notes say so, and no figure of it is wrong."""


def jobs(log: Path) -> list[ImportedRun]:
    """The runs of all jobs that wrote into a log."""
    found = []
    while True:
        try:
            found.append(read_run(log, job=len(found) + 1))
        except RltraceError:
            return found or [read_run(log)]


def summed(runs: list[ImportedRun], name: str) -> float:
    """What a metric adds up to, by the name that the log prints or by the framework's own."""
    framework = runs[0].framework
    tables = [table_of(framework), log_tables()[framework]]
    names = {name, *(table.get("labels", {}).get(name, name) for table in tables)}
    for table in tables:
        names |= {name.replace(old, new, 1) for old, new in table.get("older", {}).items()}
        for form in table.get("console", ()):
            names |= {prefix + name for prefix in form.get("sections", {}).values()}
    found = [step.counters[one] for run in runs for step in run.steps
             for one in names if one in step.counters]  # fmt: skip
    return sum(found)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: str(log["file"]))
def test_a_public_log_is_read_and_its_sums_are_its_own(log: dict[str, Any]) -> None:
    name = log["file"]
    runs = jobs(PUBLIC / name)
    if (name, "names") not in NOT_READ:
        for metric, total in log.get("sums", {}).items():
            assert summed(runs, metric) == pytest.approx(total, rel=0.01, abs=1e-9), metric
    if (name, "steps") not in NOT_READ and "steps" in log:
        assert sum(len({step.number for step in run.steps}) for run in runs) == log["steps"]
    if (name, "step") not in NOT_READ and "step_s" in log:
        lengths = [step.seconds for run in runs for step in run.steps if step.seconds is not None]
        assert sum(lengths) == pytest.approx(log["step_s"], rel=0.01)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: str(log["file"]))
def test_no_wall_is_named_that_the_log_does_not_show(tmp_path: Path, log: dict[str, Any]) -> None:
    """Where several answers can be defended, `also` has the others. To say that it cannot be told
    is never wrong; where the log tells, the next test holds how often it is said."""
    assert wall_of(tmp_path, log) in {log["says"]["wall"], *log["says"]["also"], "cannot tell"}


def wall_of(folder: Path, log: dict[str, Any]) -> str:
    """The wall that is named of a log; "cannot tell" for none."""
    if (file := log["file"]) not in NAMED:
        write_run(folder / file, read_run(PUBLIC / file), "test")
        first = rank(RunAnalysis(rltrace.open_run(folder / file))).first
        NAMED[file] = "cannot tell" if first is None else first.name
    return NAMED[file]


NAMED: dict[str, str] = {}


def test_training_and_tools_are_named_where_a_log_shows_them(tmp_path: Path) -> None:
    shown = [log for log in LOGS if log["says"]["wall"] in ("training", "env/reward")]
    timed = [log for log in shown if log.get("sums") and not log["file"].startswith(("13", "34"))]
    named = [log["file"] for log in timed if wall_of(tmp_path, log) == log["says"]["wall"]]
    assert len(named) >= len(timed) - 2, sorted({log["file"] for log in timed} - {*named})
