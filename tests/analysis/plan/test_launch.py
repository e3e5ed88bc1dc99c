"""The options to launch a plan with: each framework's own, the plan's figures in them, and nothing
that another placement needs."""

from __future__ import annotations

from typing import Any

import pytest

from rltrace.analysis.plan.launch import Launch, figures, launch
from rltrace.testing.inside.analysis import Framework, Plan, catalogue, frameworks, plan
from tests.analysis.plan.made import spec

NAMED = {entry.name: entry for entry in catalogue()}
WITH_SETTINGS = [one.name for one in catalogue() if one.adapter in frameworks() and not one.custom]


@pytest.fixture(scope="module")
def apart() -> Plan:
    """Two pools of 8 GPUs, a lag bound, verdicts."""
    return plan(
        spec(
            top={"staleness": 8},
            lengths={"mean_tokens": 6000, "cap_tokens": 30000},
            gpus={"split": "8:8"},
            reward={"latency_s": 2, "workers": 32},
        )
    )


@pytest.fixture(scope="module")
def shared() -> Plan:
    return plan(spec(top={"staleness": "strict"}, model={"name": "Qwen2.5-32B"}))


def options(found: Plan, name: str) -> dict[str, Any]:
    told = list(launch(found, NAMED[name]))
    assert len({one.option for one in told}) == len(told), "an option is told twice"
    return {one.option: one.value for one in told}


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


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("verl", "trainer.v1.sampler.max_off_policy_threshold"),
        ("TRL", "--max_staleness"),
        ("OpenRLHF", "--train.async_queue_size"),
        ("NeMo-RL", "grpo.async_grpo.max_trajectory_age_steps"),
        ("AReaL", "rollout.max_head_offpolicyness"),
        ("ROLL", "async_generation_ratio"),
        ("Relax", "--max-staleness"),
        ("torchforge", "off_by_n"),
        ("prime-rl", "orchestrator.max_off_policy_steps"),
    ],
)
def test_the_lag_bound_is_the_planned_one_and_not_the_one_allowed(
    apart: Plan, name: str, option: str
) -> None:
    assert apart.parts.lag_bound < 8
    assert options(apart, name)[option] == apart.parts.lag_bound


def test_pools_are_given_by_their_devices(apart: Plan) -> None:
    assert options(apart, "AReaL")["rollout.backend"] == "sglang:d8p1t1"
    assert options(apart, "ROLL")["actor_infer.device_mapping"] == "list(range(8,16))"
    assert options(apart, "prime-rl")["deployment.num_infer_gpus"] == 8
    nemo = options(apart, "NeMo-RL")
    assert nemo["cluster.num_nodes"] == 2  # of both pools
    assert nemo["policy.generation.colocated.resources.num_nodes"] == 1
    assert nemo["policy.generation.colocated.resources.gpus_per_node"] == 8  # it has no default


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_nothing_is_set_that_the_other_kind_of_placement_needs(
    apart: Plan, shared: Plan, name: str
) -> None:
    for found, options_of_other in (
        (apart, ("--vllm_mode", "--colocate", "--train.colocate_all")),
        (shared, ("--train.async_enable", "--fully-async", "trainer.v1.trainer_mode")),
    ):
        assert not set(options(found, name)) & set(options_of_other)


def test_trls_asynchronous_trainer_has_options_of_its_own(apart: Plan) -> None:
    found = options(apart, "TRL")
    assert "--max_staleness" in found
    assert "--num_iterations" not in found


def test_what_the_plan_cannot_tell_is_an_example(apart: Plan) -> None:
    told = {one.option: one for one in launch(apart, NAMED["slime"])}
    assert told["--max-tokens-per-gpu"].example
    assert told["--rm-url"].example
    assert not told["--rollout-num-gpus"].example
    assert not told["--use-tis"].example


def test_a_value_that_is_a_multiple_of_what_a_run_has_is_no_option(apart: Plan) -> None:
    told: list[Launch] = [one for entry in catalogue() for one in launch(apart, entry)]
    assert not [one for one in told if str(one.value).startswith("x")]
