"""Silent faults in the built-in trainer are named, and a job without one has none: in short."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import prove_silent
from benchmarks.silent_faults.sitecustomize import ALL
from rltrace.testing.inside.trainer import PLACEMENTS
from rltrace.trainer import TrainerConfig, load_job


def test_there_are_twelve_faults_and_a_clean_job_in_each_placement_and_example() -> None:
    assert len(set(ALL)) == 12
    clean = dict(prove_silent.clean_jobs())
    for placement in PLACEMENTS:
        assert sum(name.startswith(f"{placement},") for name in clean) == len(PLACEMENTS)
    examples = [options[1] for options in clean.values() if options[0] == "--config"]
    assert all(TrainerConfig.of(load_job(path)).steps for path in examples)
    assert len(examples) == len(list(prove_silent.FILES.iterdir()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sync skipped for one engine", "cast through float8", "top-p"])
def test_a_silent_fault_is_named(tmp_path: Path, name: str) -> None:
    row = prove_silent.fault(name, tmp_path / "run")
    assert row.holds, row.said


@pytest.mark.slow
def test_a_job_without_a_fault_has_no_alarm(tmp_path: Path) -> None:
    job = ("--steps", "12", "--lr", "3e-3", "--seed", "5", "--placement", "disaggregated")
    row = prove_silent.clean("a job", job, tmp_path / "run")
    assert row.holds, row.said
