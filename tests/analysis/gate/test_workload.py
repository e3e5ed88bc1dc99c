"""What makes runs comparable: work, not where its results go."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.analysis.gate.workload import (
    facts_that_differ,
    framework_facts,
    hardware_of,
    settings_of,
)
from rltrace.testing.inside.trace import Run
from rltrace.testing.made import process, run_of, turns


def run_with(path: Path, **settings: object) -> Run:
    """A run whose controller states these settings."""
    made = run_of(path, process("controller", *turns(6.0)), process("rollout"))
    made.processes[0].facts["settings"] = settings
    return made


@pytest.mark.parametrize(
    ("name", "is_work"),
    [
        ("max_response", True),
        ("trainer.max_output_len", True),
        ("algorithm", True),
        ("gradient_accumulation_steps", True),
        ("steps", False),
        ("trainer.total_epochs", False),
        ("data.seed", False),
        ("output_dir", False),
        ("trainer.experiment_name", False),
        ("--save-path", False),
        ("joined_cluster", False),
        ("checkpoint", False),
    ],
)
def test_settings_of_the_work_count(tmp_path: Path, name: str, is_work: bool) -> None:
    runs = [run_with(tmp_path / text, **{name: text}) for text in ("a", "b")]
    differ = facts_that_differ(*(settings_of(run) for run in runs))
    assert bool(differ) == is_work


def test_the_shape_of_a_job_counts(tmp_path: Path) -> None:
    one = run_of(tmp_path / "a", process("learner", *turns(6.0)), process("rollout"))
    two = run_of(
        tmp_path / "b", process("learner", *turns(6.0)), process("rollout"), process("rollout")
    )
    (differ,) = facts_that_differ(settings_of(one), settings_of(two))
    assert (differ.name, differ.before, differ.after) == ("rollout processes", 1, 2)


def test_what_one_run_does_not_state_is_no_difference(tmp_path: Path) -> None:
    stated, silent = run_with(tmp_path / "a", clip=0.2), run_with(tmp_path / "b")
    assert facts_that_differ(settings_of(stated), settings_of(silent)) == ()
    assert facts_that_differ({"cpu": None}, {"cpu": "EPYC"}) == ()


def test_processors_are_hardware(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("learner", *turns(6.0)), process("agent"))
    next(p for p in run.processes if p.role == "agent").facts.update(cpu="EPYC", cores=4)
    assert hardware_of(run)["cpu"] == "EPYC"
    assert hardware_of(run)["cores"] == 4
    assert framework_facts(run).keys() >= {"framework", "python"}
