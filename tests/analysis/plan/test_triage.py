"""Triage: the published widgets' defaults, corrected where they are wrong; designs from words."""

from __future__ import annotations

import math

import pytest

from rltrace.analysis.plan.selector import OUTPUTS, select
from rltrace.analysis.plan.triage import Stages, composed, first_fix, triage
from rltrace.testing.inside.analysis import ENV_REWARD, LEARNER, ROLLOUT, STALENESS, TAIL, WEIGHTS
from rltrace.testing.inside.trace import RltraceError

WIDGET = Stages(rollout=360, reward=80, train=120, sync=35)
"""The defaults of the published triage widget."""


def test_the_widgets_defaults_give_its_figures() -> None:
    found = triage(WIDGET)
    by_name = {step.placement: step.step_s for step in found.steps}
    assert by_name["colocated"] == 595
    assert by_name["async"] == pytest.approx(455.75)
    assert found.gain == pytest.approx(1.31, abs=0.005)
    assert [wall.wall for wall in found.binding] == [ROLLOUT]
    assert found.walls[0].share == pytest.approx(0.61, abs=0.005)
    fix = first_fix(found)
    assert fix is not None
    assert fix.wall == ROLLOUT


def test_where_chains_overlap_the_longer_chain_binds_and_not_the_largest_stage() -> None:
    """The widget takes the largest single stage, training, though the actors take longer."""
    found = triage(Stages(rollout=100, reward=100, train=150), "async")
    assert {wall.wall for wall in found.binding} == {ROLLOUT, ENV_REWARD}
    assert next(wall.share for wall in found.walls if wall.wall == LEARNER) == 0


def test_in_a_sum_every_stage_counts_and_balance_is_an_answer() -> None:
    sums = triage(Stages(rollout=100, train=100))
    assert {wall.wall for wall in sums.binding} == {ROLLOUT, LEARNER}
    even = triage(Stages(rollout=100, train=100), "async")
    assert even.binding == ()
    assert first_fix(even) is None


@pytest.mark.parametrize(
    ("stages", "placement", "step_s"),
    [
        (Stages(rollout=30, reward=1, reference=3, train=8, sync=1), "colocated", 43),
        (Stages(rollout=30, reward=1, reference=3, train=8, sync=1, overlap=0), "async", 32),
        (Stages(rollout=30, reference=3, train=8, sync=1, overlap=0, reference_side="actor"),
         "async", 34),
    ],
    ids=["sum", "reference with the learner", "reference with the actors"],
)  # fmt: skip
def test_the_published_example_composes_in_each_of_its_readings(
    stages: Stages, placement: str, step_s: float
) -> None:
    assert composed(stages, placement).step_s == step_s


def test_two_stages_overlapped_gain_at_most_a_factor_of_two() -> None:
    assert triage(Stages(rollout=80, train=10)).gain == pytest.approx(90 / 80)
    assert triage(Stages(rollout=50, train=50)).gain == pytest.approx(2)


def test_a_tail_is_a_wall_of_its_own_and_async_has_none() -> None:
    stages = Stages(rollout=600, throughput=240, env=90, train=120)
    barrier = triage(stages)
    assert barrier.walls[0].wall == TAIL
    assert barrier.walls[0].share == pytest.approx(360 / 810)
    streams = triage(stages, "async")
    assert TAIL not in {wall.wall for wall in streams.walls}
    # The published planner says 368 s, with constants that have no source.
    assert composed(stages, "async").step_s == pytest.approx(368, rel=0.15)


@pytest.mark.parametrize(
    "stages",
    [Stages(rollout=-1), Stages(rollout=0), Stages(rollout=1, overlap=2),
     Stages(rollout=1, throughput=2), Stages(rollout=math.inf), Stages(rollout=math.nan),
     Stages(rollout=1, train=math.nan)],
)  # fmt: skip
def test_seconds_without_sense_are_refused(stages: Stages) -> None:
    with pytest.raises(RltraceError):
        triage(stages)


def test_a_giant_with_agents_keeps_both_of_its_walls() -> None:
    """The published selector's last rule wins and forgets the environments."""
    design = select(405e9, "agent", "high", "bounded")
    assert [aspect.wall for aspect in design.aspects] == [ENV_REWARD, WEIGHTS]


def test_strictly_on_policy_has_no_stale_weights() -> None:
    """The published selector warns of them even where staleness is strict."""
    design = select(405e9, "short", "low", "strict")
    assert "stale" not in " ".join(aspect.risk for aspect in design.aspects)
    assert design.placement == "colocated"


@pytest.mark.parametrize(
    ("size", "output", "environment", "staleness", "framework"),
    [
        (7e9, "short", "low", "strict", {"TRL", "OpenRLHF", "verl"}),
        (32e9, "cot", "low", "loose", {"AReaL", "verl", "slime"}),
        (405e9, "cot", "low", "loose", {"verl", "slime", "NeMo-RL"}),
        (32e9, "agent", "high", "bounded", {"verl", "slime", "ROLL", "AReaL"}),
    ],
)
def test_frameworks_are_those_that_fit(
    size: float, output: str, environment: str, staleness: str, framework: set[str]
) -> None:
    assert select(size, output, environment, staleness).choice.framework.name in framework


@pytest.mark.parametrize("stack", ["hf", "fsdp", "megatron", "nvidia"])
def test_the_stack_counts_and_no_paper_is_chosen(stack: str) -> None:
    for output in OUTPUTS:
        for staleness in STALENESS:
            choice = select(32e9, output, "low", staleness, stack).choice
            assert not choice.framework.paper
            assert choice.reasons


def test_papers_come_with_what_to_use_instead() -> None:
    papers = select(70e9, "cot", "low", "bounded").choice.papers
    assert any("Laminar" in line and "partial rollout" in line for line in papers)


@pytest.mark.parametrize(
    "words", [("x", "low", "loose"), ("cot", "x", "loose"), ("cot", "low", "x")]
)
def test_unknown_words_are_refused(words: tuple[str, str, str]) -> None:
    with pytest.raises(RltraceError, match="must be one of"):
        select(7e9, *words)
