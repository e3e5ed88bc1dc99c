"""The probe's section says what is known, what is not, and what would tell."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from rltrace.testing.inside.analysis import Interval, Probe, ProbedStage
from rltrace.testing.inside.analysis import confidence_interval_UNKNOWN as UNKNOWN
from rltrace.testing.inside.report import probe_section
from rltrace.testing.inside.trace import Stage


def estimate(value: float, half_width: float) -> Interval:
    return Interval(value, value - half_width, value + half_width)


KNOWN = ProbedStage(
    stage=Stage.TRAIN, name="train", symbol="τ_T", steps=40, dosed_steps=9, dose_s=0.2,
    given_share=1.0, on_path_s=estimate(0.5, 0.05), stage_exposed_share=estimate(0.9, 0.1),
    share=estimate(0.5, 0.05),
    computed_stage_exposed_share=0.95, computed_share=0.53, because="",
)  # fmt: skip


def stage(**given: Any) -> ProbedStage:
    return dataclasses.replace(KNOWN, **given)


def shown(*stages: ProbedStage, **more: Any) -> tuple[list[tuple[str, ...]], str]:
    """The table's rows, and all that is said."""
    probe = Probe(stages, 0.2, 0.05, estimate(0.04, 0.01), 7, 40, 0, 0, 0, 1.0, ())
    section = probe_section(dataclasses.replace(probe, **more))
    rows = [] if section.grid is None else list(section.grid.rows)
    return rows, "\n".join([*section.lines, *section.notes])


def test_measured_and_computed_stand_side_by_side() -> None:
    rows, said = shown(stage())
    assert rows == [("train", "9", "200 ms", "0.90 ± 0.10", "0.95", "0.50 ± 0.05", "0.53")]
    assert "by 20 % of its own time in a quarter of 40 steps" in said
    assert "4.0 % ± 1.0 % longer (budget 5.0 %)" in said
    for word in ("contradicts", "More steps", "of its delays", "No delay in"):
        assert word not in said


def test_what_is_odd_is_said() -> None:
    odd = stage(computed_share=0.4, stage_exposed_share=estimate(0.9, 0.3), given_share=0.5)
    _, said = shown(odd, refused_steps=3)
    for says in (
        "of the exposed part: train 120.", "only 50 % of its delays", "No delay in 3 steps",
    ):  # fmt: skip
        assert says in said
    _, said = shown(stage(computed_share=0.4))
    assert "train (τ_T): the probe contradicts" in said


def test_a_stage_that_cannot_matter_needs_no_sharper_answer() -> None:
    small = stage(stage_exposed_share=estimate(0.5, 3.0), share=estimate(0.01, 0.02))
    rows, said = shown(small)
    assert rows[0][3] == "unclear"
    assert "More steps" not in said


def test_what_is_unknown_has_a_reason_and_no_figure() -> None:
    unknown = stage(
        **dict.fromkeys(("on_path_s", "stage_exposed_share", "share"), UNKNOWN),
        dose_s=math.nan,
        because="its work is too short to be delayed",
    )
    rows, said = shown(unknown, spent_share=UNKNOWN, not_seen=("env", "value"))
    assert rows[0][2:4] == ("–", "–")
    assert "train: unknown, its work is too short to be delayed." in said
    assert "never seen: env and value." in said
    assert "contradicts" not in said
