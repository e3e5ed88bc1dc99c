"""The benchmark of the probe judges what a run says; the jobs themselves take minutes each."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.probing import Probed
from rltrace.testing.handmade_runs import process, run_of, turns
from rltrace.testing.inside.analysis import Interval, Probe, ProbedStage, summarize
from rltrace.testing.inside.analysis import confidence_interval_UNKNOWN as UNKNOWN
from rltrace.testing.inside.trace import Stage

PART = Interval(0.9, 0.8, 1.0)
STAGE = ProbedStage(
    Stage.TRAIN, "train", "τ_T", 40, 9, 0.2, 1.0, PART, PART, PART, 0.95, 0.95, ""
)  # fmt: skip


@pytest.mark.parametrize(
    ("part", "share", "computed", "holds"),
    [
        (PART, PART, 0.95, True),
        (PART, PART, 0.7, False),
        (Interval(0.9, 0.7, 1.1), PART, 0.95, False),
        (UNKNOWN, UNKNOWN, 0.95, False),
    ],
)
def test_a_probe_holds_that_is_sharp_and_agrees(
    tmp_path: Path, part: Interval, share: Interval, computed: float, holds: bool
) -> None:
    summary = summarize(run_of(tmp_path, process("driver", *turns(4, 5, 4, 5))))
    stage = dataclasses.replace(
        STAGE, stage_exposed_share=part, share=share, computed_share=computed
    )
    probe = Probe((stage,), 0.2, 0.05, PART, 7, 40, 0, 0, 0, 1.0, ())
    assert Probed("learner", summary, probe, stage).holds is holds
