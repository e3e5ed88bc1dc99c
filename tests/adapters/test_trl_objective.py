"""The objective and the placement that the arguments of TRL's trainers state."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.adapters.trl import objective
from rltrace.testing.inside.analysis import prior_for
from rltrace.testing.inside.trace import REDACTED, redacted_facts


@pytest.mark.parametrize(
    ("settings", "expected", "prior"),
    [
        ({"use_vllm": False}, ("ppo", "colocated"), "plain PPO"),
        ({"use_vllm": True, "vllm_mode": "colocate"}, ("ppo", "colocated"), "plain PPO"),
        (
            {
                "use_vllm": True,
                "vllm_mode": "server",
                "vllm_importance_sampling_correction": True,
            },
            ("decoupled", "disaggregated"),
            "decoupled PPO",
        ),
        ({"use_vllm": False, "loss_type": "cispo"}, ("cispo", "colocated"), "plain PPO"),
    ],
)
def test_the_objective_and_the_placement_are_those_of_the_arguments(
    settings: dict[str, Any], expected: tuple[str, str], prior: str
) -> None:
    args = SimpleNamespace(**{"vllm_mode": "server", "loss_type": "dapo"} | settings)
    facts = objective.stated(SimpleNamespace(args=args))
    assert (facts["objective"], facts["placement"]) == expected
    assert prior_for(facts["objective"]).objective == prior
    assert facts["settings"]["--use_vllm"] == settings["use_vllm"]
    assert facts["updates_per_version"] == 1


def test_a_trainer_of_another_kind_states_its_arguments_only() -> None:
    secrets = dict.fromkeys(("hub_token", "judge_api_key", "password"), "secret")
    args = SimpleNamespace(max_steps=3, _private=1, **secrets)
    facts = redacted_facts(objective.stated(SimpleNamespace(args=args)))  # as a process keeps them
    assert facts == {"settings": {"--max_steps": 3, **{f"--{s}": REDACTED for s in secrets}}}


def judge(kind: str = "GRPOTrainer", **more: Any) -> Any:
    """A trainer with two reward functions."""
    args = SimpleNamespace(use_vllm=False)
    weights = array("d", [0.0, 2.0])  # as a tensor's, for what is asked of it
    names = ["format", "math"]
    made = {"args": args, "reward_func_names": names, "reward_weights": weights, **more}
    return type(kind, (SimpleNamespace,), {})(**made)


def test_weights_are_by_the_names_that_verdicts_have() -> None:
    assert objective.stated(judge())["reward_weights"] == {"format": 0.0, "math": 2.0}
    assert objective.stated(judge("RLOOTrainer"))["reward_weights"]["math"] == 2.0
    summed = judge(multi_objective_aggregation="sum_then_normalize")
    assert objective.stated(summed)["reward_weights"]["math"] == 2.0


def test_two_functions_of_a_name_have_a_weight_each() -> None:
    weights = objective.stated(judge(reward_func_names=["math", "math"]))["reward_weights"]
    assert weights == {"math": 0.0, "math#2": 2.0}


def test_what_generates_apart_adds_its_rewards_up() -> None:
    loop = SimpleNamespace(reward_func_names=["format", "math"])
    assert objective.reward_weights(loop) == {"reward_weights": {"format": 1.0, "math": 1.0}}
    assert objective.reward_weights(SimpleNamespace(reward_func_names=[])) == {}
    assert objective.reward_weights(SimpleNamespace()) == {}
    twice = SimpleNamespace(reward_func_names=["math", "math"])
    assert objective.reward_weights(twice) == {}  # its samples have one figure of both


@pytest.mark.parametrize(
    "trainer",
    [
        judge(multi_objective_aggregation="normalize_then_sum"),
        judge("OnlineDPOTrainer"),
    ],
)
def test_where_verdicts_are_not_summed_no_weights_are_stated(trainer: Any) -> None:
    assert "reward_weights" not in objective.stated(trainer)
