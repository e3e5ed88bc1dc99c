"""The pytest plugin in real sessions: jobs are traced, and marked tests are held to a gate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest_plugins = ["pytester"]

JOB = """
import sys, rltrace
for n in range(12):
    with rltrace.step(n):
        with rltrace.span("rollout"):
            with rltrace.trajectory(f"{n}", version=max(0, n - 1)) as t:
                t.finish(response_tokens=5, version=max(0, n - 1))
        with rltrace.span("train"):
            rltrace.use(f"{n}", version=n, tokens=5)
sys.exit(int(sys.argv[1]))
"""

TESTS = """
import sys
import pytest

def job(rltrace_run, *arguments, **options):
    return rltrace_run(sys.executable, "job.py", *(arguments or ("0",)), **options)

def test_is_traced(rltrace_run):
    first, second = job(rltrace_run), job(rltrace_run)
    assert first.path != second.path
    assert first.sql("SELECT count(*) FROM steps").fetchall() == [(12,)]

def test_command_fails(rltrace_run):
    job(rltrace_run, "7")

def test_takes_too_long(rltrace_run):
    rltrace_run(sys.executable, "-c", "import time; time.sleep(600)", timeout_s=1)

@pytest.mark.goodput(max={"lag.max": 1})
def test_holds(rltrace_run):
    job(rltrace_run)

@pytest.mark.goodput(max={"lag.p99": 0, "lag.max": 3})
def test_regressed(rltrace_run):
    job(rltrace_run)

@pytest.mark.goodput
def test_held_to_the_file(rltrace_run):
    job(rltrace_run)

@pytest.mark.goodput(max={"lag.max": 0})
def test_fails_itself(rltrace_run):
    job(rltrace_run)
    assert False, "its own reason"

@pytest.mark.goodput(min={"reward": 0.5}, max={"lag.max": 3})
def test_unknown_figure(rltrace_run):
    job(rltrace_run)

@pytest.mark.goodput(min={"reward": 0.5}, max={"lag.max": 3}, cannot_tell="skip")
def test_unknown_figure_may_be(rltrace_run):
    job(rltrace_run)

@pytest.mark.goodput(max={"lag.max": 0})
def test_ran_nothing():
    pass

@pytest.mark.goodput(most={"lag.max": 0})
def test_wrong_mark(rltrace_run):
    job(rltrace_run)

@pytest.mark.goodput(baseline="none.json")
def test_no_baseline(rltrace_run):
    job(rltrace_run)
"""

PASS = ("test_is_traced", "test_holds")
SKIPPED = {"test_unknown_figure_may_be": "cannot tell: min reward=0.5"}
FAILED = {
    "test_command_fails": "ended with exit code 7",
    "test_takes_too_long": "took longer than 1 s",
    "test_regressed": "regression: lag.p99 is 1",
    "test_held_to_the_file": "regression: lag.max is 1",
    "test_fails_itself": "its own reason",
    "test_unknown_figure": "cannot tell: min reward=0.5",
    "test_ran_nothing": "ran no job with rltrace_run",
    "test_wrong_mark": "there is no table [most]; known are",
    "test_no_baseline": "none.json cannot be read",
}


def test_jobs_are_traced_and_held_to_what_their_mark_says(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(job=JOB, test_job=TESTS)
    pytester.path.joinpath("rltrace.toml").write_text('[gate]\nmax = { "lag.max" = 0 }\n')
    pytester.runpytest_subprocess("--strict-markers", "--junitxml=report.xml", timeout=600)
    found = outcomes(pytester.path / "report.xml")
    assert {name for name, said in found.items() if not said} == set(PASS)
    assert found.keys() == {*PASS, *FAILED, *SKIPPED}
    for name, says in {**FAILED, **SKIPPED}.items():
        assert found[name].startswith("failure" if name in FAILED else "skipped"), name
        assert says in found[name], name


def outcomes(report: Path) -> dict[str, str]:
    """What became of each test and what was said; nothing of one that passed."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        parts = [part for part in case if part.tag in ("failure", "error", "skipped")]
        said = [f"{part.tag} {part.get('message')} {part.text}" for part in parts]
        found[str(case.get("name"))] = " ".join(said)
    return found


def test_a_session_that_does_not_use_it_pays_for_little() -> None:
    """It is loaded in every pytest session of an environment that has rltrace."""
    heavy = ("numpy", "pyarrow", "duckdb", "rich", "click", "torch", "ray", "rltrace.analysis")
    program = f"import sys, rltrace.pytest_plugin; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
