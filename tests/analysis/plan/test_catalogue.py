"""The catalogue of frameworks is whole, and options to launch a plan with are each one's own.
Triage: the published widgets' defaults, corrected where they are wrong; designs from words."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.plan.frameworks import catalogue, figures, launch
from rltrace.analysis.plan.triage import OUTPUTS, Stages, composed, first_fix, select, triage
from rltrace.testing.inside.analysis import (
    ENV_REWARD,
    LEARNER,
    NAMES,
    ROLLOUT,
    STACKS,
    STALENESS,
    TAIL,
    WEIGHTS,
    Framework,
    Plan,
    advise,
    frameworks,
    packaged,
    plan,
    read_workload,
    spec_of,
)
from rltrace.testing.inside.trace import RltraceError
from tests.analysis.plan.made import spec

WORKLOADS = Path(__file__).parents[3] / "examples" / "workloads"


def test_every_entry_is_whole() -> None:
    for one in catalogue():
        assert set(one.bet) <= set(NAMES), one.name
        assert set(one.modes) <= {"sync", "one-step-off", "async", "trajectory"}, one.name
        assert set(one.stacks) <= set(STACKS), one.name
        assert one.sizes[0] < one.sizes[1], one.name
        assert one.says, one.name
        assert one.watch, one.name
        assert one.source, one.name
        assert one.paper == bool(one.instead), one.name
        assert one.paper or one.effort, one.name
    assert packaged("frameworks")["opinions"]


def test_settings_on_file_belong_to_frameworks_of_the_catalogue() -> None:
    known = {one.adapter for one in catalogue()} | {one.name.lower() for one in catalogue()}
    assert {name for name in frameworks() if name != "ray_trainer"} <= known


@pytest.mark.parametrize(
    "name",
    ["one-node-7b", "rlvr-32b", "reasoning-70b", "giant-405b", "long-cot", "agentic-coding",
     "multimodal"],
)  # fmt: skip
def test_every_workload_file_can_be_planned(name: str) -> None:
    path = WORKLOADS / f"{name}.toml"
    found = plan(spec_of(read_workload(path), str(path)))
    advice = advise(found)
    assert not found.best.refused
    assert found.best.allowed
    assert advice.choice.framework.name
    assert advice.move_on
    assert name != "one-node-7b" or found.best.name == "colocated"


NAMED = {entry.name: entry for entry in catalogue()}
WITH_SETTINGS = [one.name for one in catalogue() if one.adapter in frameworks() and not one.custom]


@pytest.fixture(scope="module")
def apart() -> Plan:
    """Two pools of 8 GPUs, a lag bound, verdicts."""
    return plan(spec(
        top={"staleness": 8}, lengths={"mean_tokens": 6000, "cap_tokens": 30000},
        gpus={"split": "8:8"}, reward={"latency_s": 2, "workers": 32},
    ))  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Plan:
    return plan(spec(top={"staleness": "strict"}, model={"name": "Qwen2.5-32B"}))


def test_a_framework_without_settings_on_file_has_no_options(shared: Plan) -> None:
    unknown = [
        one for one in catalogue() if not {one.adapter, one.name.lower()} & set(frameworks())
    ]
    assert unknown
    assert not [told for one in unknown for told in launch(shared, one)]


def options(found: Plan, name: str) -> dict[str, Any]:
    told = list(launch(found, NAMED[name]))
    assert len({one.option for one in told}) == len(told), "an option is told twice"
    return {one.option: one.value for one in told}


OF_OTHERS = {
    True: ("--vllm_mode", "--colocate", "--train.colocate_all"),
    False: ("--train.async_enable", "--fully-async", "trainer.v1.trainer_mode"),
}
"""What shared devices need, and what two pools need."""


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_every_framework_with_settings_is_launched_with_the_shape(
    apart: Plan, shared: Plan, name: str
) -> None:
    for found in (apart, shared):
        values = options(found, name).values()
        assert found.spec.group in values
        known = figures(found)
        assert {known["response_tokens"], known["sequence_tokens"]} & set(values)
        assert all("{" not in str(value) for value in values)
        assert not set(options(found, name)) & set(OF_OTHERS[found is apart])
    relative = [one for one in launch(apart, NAMED[name]) if str(one.value).startswith("x")]
    assert not relative  # a multiple of what a run has is no option


@pytest.mark.parametrize("entry", [one for one in catalogue() if one.figures], ids=lambda e: e.name)
def test_figures_are_for_options_of_the_settings(entry: Framework) -> None:
    settings = frameworks()[entry.adapter]
    known = {option for one in settings for option in (one.option, *one.needs, *one.exactly)}
    assert set(entry.figures) <= known


def test_figures_are_the_plans(apart: Plan) -> None:
    known = figures(apart)
    assert apart.best.devices == {"rollout": 8, "train": 8}
    assert (known["rollout_gpus"], known["train_gpus"], known["gpus"]) == (8, 8, 16)
    assert known["engines"] * known["engine_gpus"] == 8
    assert (known["all_nodes"], known["nodes"], known["rollout_nodes"]) == (2, 1, 1)
    assert known["judges"] == 32


LAGS = [
    (entry.name, option)
    for entry in catalogue()
    for option, figure in entry.figures.items()
    if figure == "{lag_bound}" and not entry.custom
]


@pytest.mark.parametrize(("name", "option"), LAGS)
def test_the_lag_bound_is_the_planned_one_and_not_the_one_allowed(
    apart: Plan, name: str, option: str
) -> None:
    assert len(LAGS) >= 9
    assert apart.parts.lag_bound < 8
    assert options(apart, name)[option] == apart.parts.lag_bound


def test_pools_are_given_by_their_devices(apart: Plan) -> None:
    assert options(apart, "AReaL")["rollout.backend"] == "sglang:d8p1t1"
    assert options(apart, "ROLL")["actor_infer.device_mapping"] == "list(range(8,16))"
    assert options(apart, "prime-rl")["deployment.num_infer_gpus"] == 8
    assert "--num_iterations" not in options(apart, "TRL")  # its asynchronous trainer's are others
    nemo = options(apart, "NeMo-RL")
    assert nemo["cluster.num_nodes"] == 2  # of both pools
    assert nemo["policy.generation.colocated.resources.num_nodes"] == 1
    assert nemo["policy.generation.colocated.resources.gpus_per_node"] == 8  # it has no default


def test_what_the_plan_cannot_tell_is_an_example(apart: Plan) -> None:
    told = {one.option: one for one in launch(apart, NAMED["slime"])}
    assert told["--max-tokens-per-gpu"].example
    assert told["--rm-url"].example
    assert not told["--rollout-num-gpus"].example
    assert not told["--use-tis"].example


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


@pytest.mark.parametrize(
    ("stages", "placement", "binding", "gain"),
    [
        # The published widget takes the largest single stage, training, though actors take longer.
        (Stages(rollout=100, reward=100, train=150), "async", {ROLLOUT, ENV_REWARD}, 350 / 200),
        (Stages(rollout=100, train=100), "colocated", {ROLLOUT, LEARNER}, 2),
        (Stages(rollout=100, train=100), "async", set(), 2),  # balance is an answer
        (Stages(rollout=80, train=10), "async", {ROLLOUT}, 90 / 80),
    ],
)
def test_where_chains_overlap_the_longer_chain_binds_and_not_the_largest_stage(
    stages: Stages, placement: str, binding: set[str], gain: float
) -> None:
    found = triage(stages, placement)
    assert {wall.wall for wall in found.binding} == binding
    assert found.gain == pytest.approx(gain)
    assert (first_fix(found) is None) == (not binding)
    if placement == "async":
        assert next(wall.share for wall in found.walls if wall.wall == LEARNER) == 0


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


def test_designs_keep_what_the_published_selector_forgets_and_warn_of_nothing_that_cannot_be() -> (
    None
):
    """Its last rule wins and forgets the environments, and it warns of stale weights even where
    staleness is strict."""
    design = select(405e9, "agent", "high", "bounded")
    assert [aspect.wall for aspect in design.aspects] == [ENV_REWARD, WEIGHTS]
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
    papers = select(70e9, "cot", "low", "bounded", stack).choice.papers
    assert any("Laminar" in line and "partial rollout" in line for line in papers)  # instead


@pytest.mark.parametrize(
    "words", [("x", "low", "loose"), ("cot", "x", "loose"), ("cot", "low", "x")]
)
def test_unknown_words_are_refused(words: tuple[str, str, str]) -> None:
    with pytest.raises(RltraceError, match="must be one of"):
        select(7e9, *words)
