"""Which steps get a dose, and how all processes of a job know."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.testing.inside.hooks import BLOCK, DEFAULT_STAGES, STAGES, Design, StepFile
from rltrace.testing.inside.trace import Stage


def dosed_steps(design: Design, stage: str, count: int) -> list[int]:
    return [place for place in range(count) if stage in design.doses(place)]


def test_each_stage_is_dosed_once_in_every_block_after_the_first() -> None:
    design = Design(STAGES, 0.05, seed=3)
    for stage in STAGES:
        places = dosed_steps(design, stage, 100 * BLOCK)
        assert [place // BLOCK for place in places] == list(range(1, 100))
        assert {place % BLOCK for place in places} == set(range(BLOCK))
    given = [dose for place in range(BLOCK, 100 * BLOCK) for dose in design.doses(place).values()]
    assert sum(given) / (99 * BLOCK) / len(STAGES) == pytest.approx(design.budget)


def test_stages_and_seeds_draw_for_themselves() -> None:
    design, other = Design((), 0.05, seed=3), Design((), 0.05, seed=4)
    drawn = {stage: tuple(dosed_steps(design, stage, 400)) for stage in DEFAULT_STAGES}
    assert len(set(drawn.values())) == len(DEFAULT_STAGES)
    assert dosed_steps(other, "train", 400) != dosed_steps(design, "train", 400)
    together = set(drawn["rollout"]) & set(drawn["train"])
    assert 10 < len(together) < 40  # of 99: a quarter


def test_a_design_is_the_same_in_the_process_that_reads_it() -> None:
    design = Design(("train", "rollout"), 0.1, seed=12)
    again = Design.of(design.text())
    assert [again.doses(n) for n in range(400)] == [design.doses(n) for n in range(400)]


@pytest.mark.parametrize(
    ("stages", "budget", "said"),
    [(("wait",), 0.05, "'wait' is none"), ((), 0.2, "at most 12.5 %"), ((), 0.0, "more than 0 %")],
)
def test_a_design_that_cannot_be_is_refused(
    stages: tuple[str, ...], budget: float, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Design(stages, budget, 1)


def test_no_step_no_dose(tmp_path: Path) -> None:
    steps = StepFile(str(tmp_path))
    assert steps.place() == -1
    steps.publish(40)
    steps.publish(42)
    assert StepFile(str(tmp_path)).place() == 2  # another process


def test_a_stage_of_the_vocabulary_can_be_delayed_or_is_no_work() -> None:
    assert {stage.name.lower() for stage in Stage} - set(STAGES) == {"wait", "other", "step"}
