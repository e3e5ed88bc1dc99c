"""The probe's section says what is known, what is not, and what would tell."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from rltrace.report.probe_section import probe_section
from rltrace.testing.inside.analysis import Probe, ProbedStage
from rltrace.testing.inside.analysis import regression_Estimate as Estimate
from rltrace.testing.inside.analysis import regression_UNKNOWN as UNKNOWN
from rltrace.testing.inside.trace import Stage


def estimate(value: float, half_width: float) -> Estimate:
    return Estimate(value, value - half_width, value + half_width)


def stage(**given: Any) -> ProbedStage:
    known = ProbedStage(
        stage=Stage.TRAIN,
        name="train",
        symbol="τ_T",
        steps=40,
        dosed_steps=9,
        dose_s=0.2,
        given=1.0,
        on_path_s=estimate(0.5, 0.05),
        exposed_part=estimate(0.9, 0.1),
        share=estimate(0.5, 0.05),
        computed_part=0.95,
        computed_share=0.53,
        because="",
    )
    return dataclasses.replace(known, **given)


def shown(*stages: ProbedStage, **more: Any) -> tuple[list[tuple[str, ...]], str]:
    """The table's rows, and all that is said."""
    probe = Probe(stages, 0.2, 0.05, estimate(0.04, 0.01), 7, 40, 0, 0, 0, 1.0, ())
    section = probe_section(dataclasses.replace(probe, **more))
    rows = [] if section.grid is None else list(section.grid.rows)
    return rows, "\n".join([*section.lines, *section.notes])


def test_measured_and_computed_stand_side_by_side() -> None:
    rows, said = shown(stage())
    assert rows == [("train", "9", "200 ms", "0.90 ± 0.10", "0.95", "0.50 ± 0.05", "0.53")]
    assert "by 20 % of its own work in a quarter of 40 steps, drawn at random (seed 7)" in said
    assert "by 4.0 % ± 1.0 % in the mean, budget 5.0 %" in said
    assert "contradicts" not in said
    assert "more steps" not in said


def test_a_contradiction_is_said() -> None:
    assert "train (τ_T): the probe contradicts" in shown(stage(computed_share=0.4))[1]


def test_it_says_how_many_more_steps_a_sharper_answer_takes() -> None:
    _, said = shown(stage(exposed_part=estimate(0.9, 0.3)))
    assert "± 0.15 for the exposed part takes more steps of this kind: train 120." in said


def test_a_stage_that_cannot_matter_needs_no_sharper_answer() -> None:
    small = stage(exposed_part=estimate(0.5, 3.0), share=estimate(0.01, 0.02))
    rows, said = shown(small)
    assert rows[0][3] == "unclear"
    assert "more steps" not in said


def test_what_is_unknown_has_a_reason_and_no_figure() -> None:
    unknown = stage(
        on_path_s=UNKNOWN,
        exposed_part=UNKNOWN,
        share=UNKNOWN,
        dose_s=math.nan,
        because="its work is too short to be delayed",
    )
    rows, said = shown(unknown, spent=UNKNOWN, not_seen=("env", "value"))
    assert rows[0][2:4] == ("–", "–")
    assert "train: unknown, its work is too short to be delayed." in said
    assert "not seen at work: env and value." in said
    assert "contradicts" not in said


@pytest.mark.parametrize(("given", "is_said"), [(1.0, False), (0.5, True)])
def test_doses_that_were_not_given_are_said(given: float, is_said: bool) -> None:
    assert ("it grew by 50 % of its doses only" in shown(stage(given=given))[1]) is is_said


def test_effects_on_later_steps_are_named() -> None:
    assert "effects 2 steps later count too" in shown(stage(), lags=2)[1]


def test_steps_without_the_doses_that_they_were_to_have_are_left_out() -> None:
    assert "Left out: 3 steps in which the budget" in shown(stage(), refused=3)[1]
