"""What each framework's configuration says of its objective, its updates and its stale samples."""

from __future__ import annotations

import json
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.adapters.trl import loop as trl
from rltrace.testing.inside.adapters import objective as verl
from rltrace.testing.inside.adapters import openrlhf_controller as openrlhf
from rltrace.testing.inside.analysis import prior_for
from rltrace.testing.inside.trace import REDACTED, redacted_facts

PRIORS = {
    "ppo": "plain PPO", "decoupled": "decoupled PPO", "tis": "truncated importance sampling",
}  # fmt: skip


def plain(flat: dict[str, Any]) -> dict[str, Any]:
    """A configuration from its dotted paths, later ones over earlier ones, as plain dicts."""
    whole: dict[str, Any] = {}
    for path, value in flat.items():
        *folders, name = path.split(".")
        place = whole
        for folder in folders:
            place[folder] = place.get(folder) or {}
            place = place[folder]
        place[name] = value
    return whole


def nested(flat: dict[str, Any]) -> Any:
    """The same as objects."""
    return json.loads(json.dumps(plain(flat)), object_hook=lambda found: SimpleNamespace(**found))


# --- verl

_ACTOR = "actor_rollout_ref.actor"
DEFAULTS = {
    "data.train_batch_size": 64,
    f"{_ACTOR}.ppo_mini_batch_size": 16,
    f"{_ACTOR}.ppo_epochs": 2,
    f"{_ACTOR}.policy_loss.loss_mode": "vanilla",
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "algorithm.rollout_correction": None,
}
"""verl's, as far as they matter here."""

_CORRECTS = "algorithm.rollout_correction"
WEIGHS = {f"{_CORRECTS}.rollout_is": "token"}
BYPASS = {f"{_CORRECTS}.bypass_mode": True}
REINFORCE = {f"{_CORRECTS}.loss_type": "reinforce"}
CLIP = {f"{_CORRECTS}.loss_type": "ppo_clip", f"{_CORRECTS}.rollout_is": None}
BEFORE_0_7 = {f"{_CORRECTS}.use_policy_gradient": True}
NOTHING_TO_WEIGH_BY = {"actor_rollout_ref.rollout.calculate_log_probs": False}


def of_verl(settings: dict[str, Any], **attributes: Any) -> dict[str, Any]:
    return verl.stated(SimpleNamespace(config=nested(DEFAULTS | settings), **attributes))


@pytest.mark.parametrize(
    ("settings", "objective"),
    [
        ({}, "ppo"),
        (WEIGHS, "decoupled"),
        (WEIGHS | NOTHING_TO_WEIGH_BY, "ppo"),
        (BYPASS | CLIP, "ppo"),
        (BYPASS | REINFORCE | WEIGHS, "tis"),
        (BYPASS | BEFORE_0_7 | WEIGHS, "tis"),
    ],
)
def test_verls_corrections_are_known_by_what_they_tolerate(
    settings: dict[str, Any], objective: str
) -> None:
    assert of_verl(settings)["objective"] == objective
    prior = prior_for(objective)
    assert (prior.objective, prior.assumed) == (PRIORS[objective], False)


def test_a_loss_of_which_nothing_is_published_is_named_and_its_prior_assumed() -> None:
    assert of_verl({f"{_ACTOR}.policy_loss.loss_mode": "gspo"})["objective"] == "gspo"
    assert prior_for("gspo").assumed


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            plain(DEFAULTS | WEIGHS | {"algorithm.adv_estimator": "remax", "data.seed": None}),
            {"objective": "decoupled", "advantage": "remax", "updates_per_version": 8},
        ),
        ({"data": {}, "optim": {}}, {}),  # of supervised fine-tuning
        (None, {}),
    ],
)
def test_a_trainer_that_no_hook_reaches_tells_it_to_verls_logger(
    config: Any, told: dict[str, Any]
) -> None:
    """Which is given plain dicts, and so all settings, those without a value too."""
    facts: dict[str, Any] = {}
    recorder = SimpleNamespace(describe=facts.update)
    call: Any = SimpleNamespace(argument={"config": config}.get, recorder=recorder)
    verl.tracked(call)
    settings = facts.pop("settings", {})
    assert facts == told
    assert plain(settings) == (config if told else {})
    assert settings.get("data.seed", 0) is (None if told else 0)


FULLY_ASYNC = {"require_batches": 3, "trigger_parameter_sync_step": 4}


@pytest.mark.parametrize(
    ("settings", "updates"),
    [
        ({}, 8),  # four mini-batches, twice
        ({"data.train_batch_size": 65}, 10),
        ({f"async_training.{name}": value for name, value in FULLY_ASYNC.items()}, 24),
        ({"data.train_batch_size": None}, None),
    ],
)
def test_verls_updates_between_two_versions(settings: dict[str, Any], updates: int | None) -> None:
    assert of_verl(settings).get("updates_per_version") == updates


@pytest.mark.parametrize(
    ("said", "drops"),
    [
        ((8, "drop", None), True),
        ((8, "wait", None), False),
        ((None, "drop", None), False),
        ((8, "drop", "my.py"), None),
    ],
)
def test_only_verls_v1_says_what_it_does_with_stale_samples(
    said: tuple[Any, ...], drops: bool | None
) -> None:
    names = ("max_off_policy_threshold", "max_off_policy_strategy", "custom_sampler.path")
    settings = {f"trainer.v1.sampler.{n}": value for n, value in zip(names, said, strict=True)}
    assert of_verl(settings, parameter_sync_step=1).get("drops_stale") is drops
    assert "drops_stale" not in of_verl(settings)  # the legacy trainer, with the same file


# --- OpenRLHF

BEFORE = {
    "rollout_batch_size": 16, "n_samples_per_prompt": 4, "train_batch_size": 32, "max_epochs": 3,
}  # fmt: skip
GROUPED = {
    "rollout.batch_size": 16, "rollout.n_samples_per_prompt": 4, "train.batch_size": 32,
    "train.max_epochs": 3,
}  # fmt: skip
ENABLED, LEVEL = "algo.advantage.is_correction_enable", "algo.advantage.is_correction_level"


@pytest.mark.parametrize(
    ("flags", "objective"),
    [
        (BEFORE | {"enable_vllm_is_correction": False, "policy_loss_type": "ppo"}, "ppo"),
        (BEFORE | {"enable_vllm_is_correction": True, "policy_loss_type": "ppo"}, "decoupled"),
        (BEFORE | {"enable_vllm_is_correction": True, "policy_loss_type": "gspo"}, "gspo"),
        (GROUPED | {ENABLED: True}, "decoupled"),
        (GROUPED | {LEVEL: "off"}, "ppo"),
        (GROUPED | {LEVEL: "seq"}, "decoupled"),
        (GROUPED | {LEVEL: "token", "actor.policy_loss_type": "gspo"}, "gspo"),
    ],
)
def test_openrlhfs_flags_of_every_version(flags: dict[str, Any], objective: str) -> None:
    facts = {"objective": objective, "drops_stale": False, "ratios_before_updates": True}
    assert openrlhf.stated(nested(flags)) == {**facts, "updates_per_version": 6}


def test_flags_that_nobody_set_leave_updates_unknown() -> None:
    assert "updates_per_version" not in openrlhf.stated(SimpleNamespace())


# --- TRL, whose arguments state the placement, and what rewards weigh

CORRECTION = "vllm_importance_sampling_correction"


@pytest.mark.parametrize(
    ("settings", "objective", "placement", "prior"),
    [
        ({"use_vllm": False}, "ppo", "colocated", "ppo"),
        ({"use_vllm": True, "vllm_mode": "colocate"}, "ppo", "colocated", "ppo"),
        ({"use_vllm": True, CORRECTION: True}, "decoupled", "disaggregated", "decoupled"),
        ({"use_vllm": False, "loss_type": "cispo"}, "cispo", "colocated", "ppo"),
    ],
)
def test_trls_objective_and_placement_are_those_of_its_arguments(
    settings: dict[str, Any], objective: str, placement: str, prior: str
) -> None:
    args = SimpleNamespace(**{"vllm_mode": "server", "loss_type": "dapo"} | settings)
    facts = trl.stated(SimpleNamespace(args=args))
    assert (facts["objective"], facts["placement"]) == (objective, placement)
    assert prior_for(facts["objective"]).objective == PRIORS[prior]
    assert facts["settings"]["--use_vllm"] == settings["use_vllm"]
    assert facts["updates_per_version"] == 1


def test_a_trainer_of_another_kind_states_its_arguments_only() -> None:
    secrets = dict.fromkeys(("hub_token", "judge_api_key", "password"), "secret")
    args = SimpleNamespace(max_steps=3, _private=1, **secrets)
    facts = redacted_facts(trl.stated(SimpleNamespace(args=args)))  # as a process keeps them
    assert facts == {"settings": {"--max_steps": 3, **{f"--{s}": REDACTED for s in secrets}}}


BY_NAME = {"format": 0.0, "math": 2.0}


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("GRPOTrainer", {}, BY_NAME),
        ("RLOOTrainer", {}, BY_NAME),
        ("GRPOTrainer", {"multi_objective_aggregation": "sum_then_normalize"}, BY_NAME),
        # Two functions of a name have a weight each, as their verdicts have a name each.
        ("GRPOTrainer", {"reward_func_names": ["math", "math"]}, {"math": 0.0, "math#2": 2.0}),
        # Where verdicts are not summed none are stated.
        ("GRPOTrainer", {"multi_objective_aggregation": "normalize_then_sum"}, None),
        ("OnlineDPOTrainer", {}, None),
    ],
)
def test_weights_are_by_the_names_that_verdicts_have(
    kind: str, more: dict[str, Any], expected: dict[str, float] | None
) -> None:
    weights = array("d", [0.0, 2.0])  # as a tensor's, for what is asked of it
    made = {"reward_func_names": ["format", "math"], "reward_weights": weights, **more}
    trainer = type(kind, (SimpleNamespace,), {})(args=SimpleNamespace(use_vllm=False), **made)
    assert trl.stated(trainer).get("reward_weights") == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["format", "math"], {"reward_weights": {"format": 1.0, "math": 1.0}}),
        ([], {}),
        (["math", "math"], {}),  # its samples have one figure of both
    ],
)
def test_what_generates_apart_adds_its_rewards_up(names: list[str], expected: Any) -> None:
    assert trl.reward_weights(SimpleNamespace(reward_func_names=names)) == expected
    assert trl.reward_weights(SimpleNamespace()) == {}
