"""The catalogue of frameworks is whole, and options to launch a plan with are each one's own.
Triage: the published widgets' defaults, corrected where they are wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.plan.frameworks import catalogue, choose, figures, launch
from rltrace.analysis.plan.triage import triage
from rltrace.testing.inside.analysis import (
    ENV_REWARD,
    LEARNER,
    PLACEMENTS,
    ROLLOUT,
    TAIL,
    Plan,
    advise,
    frameworks,
    packaged,
    plan,
    read_workload,
    spec_of,
    wall_names,
)
from rltrace.testing.inside.trace import RltraceError, packaged_toml
from tests.analysis.plan.made import spec

WORKLOADS = Path(__file__).parents[3] / "examples" / "workloads"
STACKS = packaged("workload")["prefers"]["stack"]


def test_every_entry_is_whole() -> None:
    for one in catalogue():
        assert one.against in {"", *wall_names()}, one.name
        assert set(one.modes) <= {"sync", "one-step-off", "async"}, one.name
        assert set(one.stacks) <= set(STACKS), one.name
        assert one.sizes[0] < one.sizes[1], one.name
        assert one.says, one.name
        assert one.source, one.name
        known = frameworks()[next(e.adapter for e in catalogue() if e.launch == one.launch)]
        options = {option for s in known for option in (s.option, *s.needs, *s.exactly)}
        assert set(one.figures) <= options, one.name


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
    assert advice.launch
    assert name != "one-node-7b" or found.best.name == "colocated"


NAMED = {entry.name: entry for entry in catalogue()}


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


def options(found: Plan, name: str) -> dict[str, Any]:
    told = launch(found, NAMED[name])
    assert len({one.option for one in told}) == len(told), "an option is told twice"
    return {one.option: one.value for one in told}


OF_OTHERS = {
    True: ("--vllm_mode", "--colocate", "--train.colocate_all"),
    False: ("--train.async_enable", "--fully-async", "trainer.v1.trainer_mode"),
}
"""What shared devices need, and what two pools need."""


@pytest.mark.parametrize("name", NAMED)
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


def test_figures_are_the_plans(apart: Plan) -> None:
    known = figures(apart)
    assert apart.best.devices == {"rollout": 8, "train": 8}
    assert (known["rollout_gpus"], known["train_gpus"], known["gpus"]) == (8, 8, 16)
    assert known["engines"] * known["engine_gpus"] == 8
    assert (known["all_nodes"], known["nodes"], known["rollout_nodes"]) == (2, 1, 1)


LAGS = [
    (entry.name, option)
    for entry in catalogue()
    for option, figure in entry.figures.items()
    if figure == "{lag_bound}" and option in {one.option for one in frameworks()[entry.adapter]}
]


@pytest.mark.parametrize(("name", "option"), LAGS)
def test_the_lag_bound_is_the_planned_one_and_not_the_one_allowed(
    apart: Plan, name: str, option: str
) -> None:
    assert len(LAGS) >= 8
    assert apart.parts.lag_bound < 8
    assert options(apart, name)[option] == apart.parts.lag_bound


def test_pools_are_given_by_their_devices(apart: Plan) -> None:
    assert options(apart, "AReaL")["rollout.backend"] == "sglang:d4p1t2"
    assert options(apart, "ROLL")["actor_infer.device_mapping"] == "list(range(8,16))"
    assert options(apart, "prime-rl")["deployment.num_infer_gpus"] == 8
    assert "--num_iterations" not in options(apart, "TRL")  # its asynchronous trainer's are others
    nemo = options(apart, "NeMo-RL")
    assert nemo["cluster.num_nodes"] == 2  # of both pools
    assert nemo["policy.generation.colocated.resources.num_nodes"] == 1
    assert nemo["policy.generation.colocated.resources.gpus_per_node"] == 8  # it has no default


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": {"name": "Qwen2.5-7B"}}, {"TRL", "verl"}),
        ({"model": {"name": "Llama-3.1-405B"}, "gpus": {"kind": "512xH100"}},
         {"verl", "slime", "NeMo-RL"}),
        ({"environment": {"latency_s": 30, "calls": 10}, "model": {"name": "Qwen2.5-32B"}},
         {"verl", "slime", "ROLL", "AReaL"}),
    ],
)  # fmt: skip
def test_the_framework_runs_what_is_planned(changes: dict[str, Any], expected: set[str]) -> None:
    found = choose(plan(spec(top={"staleness": "strict"}, **changes)))
    assert found.framework.name in expected
    assert not [reason for reason in found.reasons if reason.startswith("but not")]


@pytest.mark.parametrize("stack", STACKS)
def test_the_stack_counts(stack: str) -> None:
    found = choose(plan(spec(prefers={"stack": stack})))
    assert stack in found.framework.stacks
    assert f"it is near your stack ({stack})" in found.reasons


WIDGET = {"stages": {"rollout": 360, "reward": 80, "train": 120, "sync": 35},
          "sync": {"overlap": 0.55}}  # fmt: skip
"""The defaults of the published triage widget."""


def test_the_widgets_defaults_give_its_figures() -> None:
    found = triage(WIDGET)
    by_name = {step.placement: step.step_s for step in found.steps}
    assert by_name["colocated"] == pytest.approx(595)
    assert set(by_name) == set(PLACEMENTS)
    # The widget's 455.75 s has no lag bound, verdicts that wait for the batch and no tail.
    assert by_name["async"] < by_name["one-step-off"] < 455.75 < by_name["colocated"]
    assert found.binding == (ROLLOUT,)
    assert found.walls[0].share == pytest.approx(0.61, abs=0.005)
    fix = found.first_fix
    assert fix is not None
    assert fix.wall == ROLLOUT


@pytest.mark.parametrize(
    ("stages", "placement", "binding"),
    [
        # The published widget takes the largest single stage, training, though actors take longer.
        ({"rollout": 100, "reward": 100, "train": 150}, "one-step-off", {ROLLOUT, ENV_REWARD}),
        # Without a barrier rewards are given while others are generated, and training is longer.
        ({"rollout": 100, "reward": 100, "train": 150}, "async", {LEARNER}),
        ({"rollout": 100, "train": 100}, "colocated", {ROLLOUT, LEARNER}),
        ({"rollout": 100, "train": 100}, "async", set()),  # balance is an answer
        ({"rollout": 80, "train": 10}, "async", {ROLLOUT}),
    ],
)
def test_where_chains_overlap_the_longer_chain_binds_and_not_the_largest_stage(
    stages: dict[str, float], placement: str, binding: set[str]
) -> None:
    found = triage({"stages": stages, "placement": placement})
    assert set(found.binding) == binding
    assert (found.first_fix is None) == (not binding)
    if placement == "async" and LEARNER not in binding:
        assert next(wall.share for wall in found.walls if wall.name == LEARNER) == 0


@pytest.mark.parametrize(("placement", "step_s"), [("colocated", 43), ("one-step-off", 32)])
def test_the_published_example_composes(placement: str, step_s: float) -> None:
    stages = {"rollout": 30, "reward": 1, "reference": 3, "train": 8, "sync": 1}
    found = triage({"stages": stages, "placement": placement})
    own = next(step for step in found.steps if step.placement == placement)
    assert (own.step_s, own.goodput_gain) == (pytest.approx(step_s), None)


def test_a_tail_is_a_wall_of_its_own_and_async_has_none() -> None:
    tables = {"stages": {"rollout": 600, "env": 90, "train": 120}, "rollout": {"throughput_s": 240}}
    barrier = triage(tables)
    assert barrier.walls[0].name == TAIL
    assert barrier.walls[0].share == pytest.approx(360 / 810, rel=0.2)
    assert triage({**tables, "rollout": {"tail_s": 360}}).walls == barrier.walls
    # Of a tail that nobody states nobody can tell: it counts as decoding.
    untold = {wall.name: wall.share for wall in triage({"stages": tables["stages"]}).walls}
    assert untold[ROLLOUT] == pytest.approx(600 / 810, rel=0.01)
    assert math.isnan(untold[TAIL])
    streams = triage({**tables, "placement": "async"})
    assert next(wall.share for wall in streams.walls if wall.name == TAIL) == 0


@pytest.mark.parametrize(
    "tables",
    [{"stages": {"rollout": -1}}, {"stages": {"rollout": 0}}, {"stages": {"rollout": math.inf}},
     {"stages": {"rollout": 1, "train": math.nan}},
     {"stages": {"rollout": 1}, "sync": {"overlap": 2}},
     {"stages": {"rollout": 1}, "rollout": {"throughput_s": 2}}],
)  # fmt: skip
def test_seconds_without_sense_are_refused(tables: dict[str, Any]) -> None:
    with pytest.raises(RltraceError):
        triage(tables)


def test_one_device_is_not_split_and_a_pool_of_unknown_size_is() -> None:
    stages = {"stages": {"rollout": 60, "train": 30}}
    one = triage({**stages, "devices": {"shared": 1}})
    assert {step.placement: step.goodput_gain for step in one.steps} == dict.fromkeys(PLACEMENTS)
    assert all(step.goodput_gain for step in triage(stages).steps if step.placement != "colocated")


def test_each_frameworks_staleness_is_documented_as_a_lag_bound() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "levers.md").read_text()
    rows = packaged_toml("analysis/data/staleness_options.toml")["option"]
    assert len(rows) >= 7
    for row in rows:
        assert f"| {row['framework']} | `{row['option']}` | {row['bound']} |" in page
        assert row["source"]
