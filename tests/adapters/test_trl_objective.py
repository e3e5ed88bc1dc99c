"""The objective and the placement that the arguments of TRL's trainers state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.adapters.trl import objective
from rltrace.analysis.lag_priors import prior_for


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
    facts = objective.stated(SimpleNamespace(args=args))
    assert facts == {"settings": {"--max_steps": 3}}
