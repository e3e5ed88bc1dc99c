"""`rltrace baseline` and `rltrace gate`: made runs, their answers, exit codes and forms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import Result

from benchmarks.make_trace import Workload, make
from rltrace.testing.inside.trace import update_run_json
from tests.cli.conftest import invoke

# Steps that are all but alike: what is at stake here is the answer and not the statistics.
JOB = Workload(
    gpus=0, steps=30, prompts=4, group=4, jitter=0.01, sigma=0.02, reward_sigma=0.02, zero_groups=0
)
RUNS = {
    **{f"base-{n}": replace(JOB, seed=n) for n in range(4)},
    "unchanged": replace(JOB, seed=7),
    "slow": replace(JOB, seed=8, seconds_per_token=1.5 * JOB.seconds_per_token),
    "short": replace(JOB, seed=9, steps=2, warmup_steps=0),
    "again": replace(JOB, seed=10),
    "other": replace(JOB, seed=11, gpus=8),
    "crashed": replace(JOB, seed=12),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs and a baseline of the first four."""
    folder = tmp_path_factory.mktemp("runs")
    for name, load in RUNS.items():
        make(folder / name, load)
    update_run_json(str(folder / "crashed"), exit_code=1)
    kept = [folder / f"base-{n}" for n in range(4)]
    result = invoke("baseline", *kept, "-o", folder / "baseline.json")
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of a project lie here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def gate(runs: Path, name: str, *options: object) -> Result:
    return invoke("gate", runs / name, "--baseline", runs / "baseline.json", *options)


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("unchanged", (), 0),
        ("slow", (), 1),
        ("short", (), 3),
        ("slow", ("--max-regression", "goodput=90%"), 0),
        ("slow", ("--max-regression", "stage.rollout=10%"), 1),
        ("unchanged", ("--max", "step=0.001"), 1),
        ("unchanged", ("--min", "goodput=0.001"), 0),
        ("unchanged", ("--max-regression", "goodput=5"), 2),
        ("unchanged", ("--max", "nonsense=5"), 2),
        ("unchanged", ("--wall", "nonsense"), 2),
        ("unchanged", ("--json", "--markdown"), 2),
        ("other", (), 4),
        ("nowhere", (), 4),
    ],
)
def test_the_exit_code_is_the_answer(
    runs: Path, name: str, options: tuple[str, ...], code: int
) -> None:
    result = gate(runs, name, *options)
    assert result.exit_code == code, result.output
    if code in (2, 4):
        assert len(result.output.strip().splitlines()) == 1


def test_a_slower_stage_is_named_with_how_much_it_made(runs: Path) -> None:
    found = json.loads(gate(runs, "slow", "--json").output)
    (finding,) = found["findings"]
    assert (found["outcome"], finding["stage"]["name"]) == ("regression", "rollout")
    assert finding["worse_share"]["low"] > 0


FAILED = "the job failed (exit code 1) after 30 complete steps"


def test_a_run_that_failed_is_a_regression_in_every_form(runs: Path, tmp_path: Path) -> None:
    xml = tmp_path / "gate.xml"
    shown = gate(runs, "crashed", "--max-regression", "goodput=90%")
    assert shown.exit_code == 1
    assert f"regression: {FAILED}" in " ".join(shown.output.split())
    told = gate(runs, "crashed", "--json", "--github", "--junit", xml)
    answer = json.loads(told.stdout)
    assert (answer["outcome"], answer["exit_code"]) == ("regression", 1)
    assert answer["alarms"] == [FAILED]
    assert answer["headline"].startswith(f"regression: {FAILED}")
    assert FAILED[1:] in told.stderr.splitlines()[0]
    case = ElementTree.parse(xml).getroot()[0][0]
    assert FAILED[1:] in str(case.find("failure").get("message"))  # type: ignore[union-attr]
    both = gate(runs, "unchanged", runs / "crashed")
    assert both.exit_code == 1
    assert f"crashed: {FAILED}" in " ".join(both.output.split())


def test_no_run_is_held_to_one_that_failed(runs: Path, tmp_path: Path) -> None:
    refused = invoke("baseline", runs / "crashed", "-o", tmp_path / "one.json")
    assert refused.exit_code == 4
    assert "the job failed (exit code 1)" in refused.output
    assert not (tmp_path / "one.json").exists()
    kept = invoke("baseline", runs / "crashed", "-o", tmp_path / "one.json", "--anyway")
    assert kept.exit_code == 0


def test_several_runs_are_judged_together(runs: Path) -> None:
    result = gate(runs, "unchanged", runs / "again", "--json")
    assert (result.exit_code, len(json.loads(result.output)["steps"])) == (0, 2)


def test_builders_get_their_files(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    result = gate(runs, "slow", "--github", "--junit", tmp_path / "out/gate.xml")
    assert result.exit_code == 1
    assert [line for line in result.output.splitlines() if line.startswith("::error ")]
    assert summary.read_text().startswith("before\n## Gate: regression")
    suite = ElementTree.parse(tmp_path / "out/gate.xml").getroot()[0]
    assert suite.get("failures") == "1"


def test_the_answer_stands_where_nobody_reads_on(runs: Path, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = ["gate", runs / "slow", "--max", "step=0.001", "--junit", tmp_path / "gate.xml"]
    with os.fdopen(writing, "wb") as nobody:
        command = [sys.executable, "-m", "rltrace", *map(str, words)]
        done = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    assert (tmp_path / "gate.xml").exists()


def test_what_the_project_states_is_asked(runs: Path, tmp_path: Path) -> None:
    limits = 'max-regression = { goodput = "90%", "stage.rollout" = "10%" }'
    baseline = os.path.relpath(runs / "baseline.json", tmp_path)
    (tmp_path / "rltrace.toml").write_text(f'[gate]\nbaseline = "{baseline}"\n{limits}\n')
    assert invoke("gate", runs / "slow").exit_code == 1
    looser = ("--max-regression", "stage.rollout=90%")
    assert invoke("gate", runs / "slow", *looser).exit_code == 0
    (tmp_path / "rltrace.toml").unlink()
    assert invoke("gate", runs / "slow").exit_code == 2  # there is nothing to gate by


def test_a_baseline_says_what_it_holds(runs: Path, tmp_path: Path) -> None:
    shown = invoke("baseline", runs / "base-0", "-o", tmp_path / "one.json", "--json").output
    told: dict[str, Any] = json.loads(shown)
    assert len(told["runs"]) == 1
    assert told["steps"] == [30]
    assert invoke("baseline", runs / "base-0", "-o", tmp_path).exit_code == 2
    assert invoke("baseline", runs / "base-0").exit_code == 2
    assert invoke("baseline", runs / "nowhere", "-o", tmp_path / "x.json").exit_code == 4
