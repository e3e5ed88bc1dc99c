"""The benchmark of the probe judges what a run says; the jobs themselves take minutes each."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click
import pytest

from benchmarks.probing import STAGE_OF, STEPS, Probed, probed
from benchmarks.walls import FILES, Wall
from rltrace.testing.inside.analysis import RESOURCE_OF, Probe, ProbedStage, summarize
from rltrace.testing.inside.analysis import regression_Estimate as Estimate
from rltrace.testing.inside.analysis import regression_UNKNOWN as UNKNOWN
from rltrace.testing.inside.trace import Stage
from rltrace.testing.made import process, run_of, turns

PART = Estimate(0.9, 0.8, 1.0)
STAGE = ProbedStage(
    Stage.TRAIN, "train", "τ_T", 40, 9, 0.2, 1.0, PART, PART, PART, 0.95, 0.95, ""
)  # fmt: skip


def test_every_wall_that_is_a_stage_has_a_job_and_its_stage_stands_for_it() -> None:
    for name, stage in STAGE_OF.items():
        wall = Wall.of(FILES / f"{name}.toml").wall
        resource = RESOURCE_OF[Stage[stage.upper()]]
        assert wall in (resource, "long-tail skew")  # which is a wall of rollout
        assert STEPS[name] >= 28


@pytest.mark.parametrize(
    ("part", "share", "computed", "holds"),
    [
        (PART, PART, 0.95, True),
        (PART, PART, 0.7, False),
        (Estimate(0.9, 0.7, 1.1), PART, 0.95, False),
        (UNKNOWN, UNKNOWN, 0.95, False),
    ],
)
def test_a_probe_holds_that_is_sharp_and_agrees(
    tmp_path: Path, part: Estimate, share: Estimate, computed: float, holds: bool
) -> None:
    summary = summarize(run_of(tmp_path, process("driver", *turns(4, 5, 4, 5))))
    stage = dataclasses.replace(STAGE, exposed_part=part, share=share, computed_share=computed)
    probe = Probe((stage,), 0.2, 0.05, PART, 7, 40, 0, 0, 0, 1.0, ())
    assert Probed("learner", summary, probe, stage).holds is holds


def test_a_run_whose_stage_was_not_delayed_is_no_proof(tmp_path: Path) -> None:
    run_of(tmp_path, process("driver", *turns(4, 5, 4, 5)))
    with pytest.raises(click.ClickException, match="train was not delayed"):
        probed("learner", tmp_path / "run")
