"""What each framework's configuration says of its objective, its updates and its stale samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.adapters.openrlhf import objective as openrlhf
from rltrace.testing.inside.adapters import objective as verl
from rltrace.testing.inside.analysis import prior_for

DEFAULTS = {
    "data.train_batch_size": 64,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 16,
    "actor_rollout_ref.actor.ppo_epochs": 2,
    "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "algorithm.rollout_correction": None,
}
"""verl's, as far as they matter here."""

WEIGHS = "algorithm.rollout_correction.rollout_is"
BYPASS = "algorithm.rollout_correction.bypass_mode"
FLAG_BEFORE = "algorithm.rollout_correction.use_policy_gradient"  # until 0.7
LOSS = "algorithm.rollout_correction.loss_type"
ASYNC = "async_training"
V1 = "trainer.v1.sampler"


def nested(flat: dict[str, Any]) -> SimpleNamespace:
    """A configuration from its dotted paths, later ones over earlier ones."""
    whole = SimpleNamespace()
    for path, value in flat.items():
        *folders, name = path.split(".")
        place = whole
        for folder in folders:
            if not isinstance(getattr(place, folder, None), SimpleNamespace):
                setattr(place, folder, SimpleNamespace())
            place = getattr(place, folder)
        setattr(place, name, value)
    return whole


def of_verl(settings: dict[str, Any], **attributes: Any) -> dict[str, Any]:
    return verl.stated(SimpleNamespace(config=nested(DEFAULTS | settings), **attributes))


@pytest.mark.parametrize(
    ("settings", "objective", "prior"),
    [
        ({}, "ppo", "plain PPO"),
        ({WEIGHS: "token"}, "decoupled", "decoupled PPO"),
        # Nothing to weigh by: the sampler's log-probs are not asked for.
        (
            {WEIGHS: "token", "actor_rollout_ref.rollout.calculate_log_probs": False},
            "ppo",
            "plain PPO",
        ),
        ({BYPASS: True, LOSS: "ppo_clip", WEIGHS: None}, "ppo", "plain PPO"),
        (
            {BYPASS: True, LOSS: "reinforce", WEIGHS: "token"},
            "tis",
            "truncated importance sampling",
        ),
        (
            {
                BYPASS: True,
                "algorithm.rollout_correction.use_policy_gradient": True,
                WEIGHS: "token",
            },
            "tis",
            "truncated importance sampling",
        ),
    ],
)
def test_verls_corrections_are_known_by_what_they_tolerate(
    settings: dict[str, Any], objective: str, prior: str
) -> None:
    assert of_verl(settings)["objective"] == objective
    assert (prior_for(objective).objective, prior_for(objective).assumed) == (prior, False)


class Described:
    """A recorder that keeps what a process says of itself."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    def describe(self, **facts: Any) -> None:
        self.facts.update(facts)


def told_by(config: Any) -> dict[str, Any]:
    """What a trainer tells that begins to log with this configuration, which verl hands over as
    plain dicts."""
    recorder = Described()
    verl.tracked(SimpleNamespace(argument={"config": config}.get, recorder=recorder))  # type: ignore[arg-type]
    return recorder.facts


def plain(config: Any) -> Any:
    if not isinstance(config, SimpleNamespace):
        return config
    return {name: plain(value) for name, value in vars(config).items()}


def test_a_trainer_that_no_hook_reaches_tells_it_to_verls_logger() -> None:
    config = plain(nested(DEFAULTS | {WEIGHS: "token"}))
    assert told_by(config) == {"objective": "decoupled", "updates_per_version": 8}
    assert told_by({"data": {}, "optim": {}}) == {}  # of supervised fine-tuning
    assert told_by(None) == {}


def test_a_loss_of_which_nothing_is_published_is_named_and_its_prior_assumed() -> None:
    found = of_verl({"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo"})
    assert found["objective"] == "gspo"
    assert prior_for("gspo").assumed


@pytest.mark.parametrize(
    ("settings", "updates"),
    [
        ({}, 8),  # four mini-batches, twice
        ({"data.train_batch_size": 65}, 10),
        (
            {"async_training.require_batches": 3, "async_training.trigger_parameter_sync_step": 4},
            24,
        ),
        ({"data.train_batch_size": None}, None),
    ],
)
def test_verls_updates_between_two_versions(settings: dict[str, Any], updates: int | None) -> None:
    assert of_verl(settings).get("updates_per_version") == updates


@pytest.mark.parametrize(
    ("sampler", "drops"),
    [
        ({"max_off_policy_threshold": 8, "max_off_policy_strategy": "drop"}, True),
        ({"max_off_policy_threshold": 8, "max_off_policy_strategy": "wait"}, False),
        ({"max_off_policy_threshold": None, "max_off_policy_strategy": "drop"}, False),
        (
            {
                "max_off_policy_threshold": 8,
                "max_off_policy_strategy": "drop",
                "custom_sampler.path": "my.py",
            },
            None,
        ),
    ],
)
def test_only_verls_v1_says_what_it_does_with_stale_samples(
    sampler: dict[str, Any], drops: bool | None
) -> None:
    settings = {f"{V1}.{name}": value for name, value in sampler.items()}
    assert of_verl(settings, parameter_sync_step=1).get("drops_stale") is drops
    assert "drops_stale" not in of_verl(settings)  # the legacy trainer, with the same file


BEFORE = {
    "rollout_batch_size": 16, "n_samples_per_prompt": 4, "train_batch_size": 32, "max_epochs": 3,
}  # fmt: skip
GROUPED = {
    "rollout.batch_size": 16,
    "rollout.n_samples_per_prompt": 4,
    "train.batch_size": 32,
    "train.max_epochs": 3,
}


@pytest.mark.parametrize(
    ("flags", "objective"),
    [
        (BEFORE | {"enable_vllm_is_correction": False, "policy_loss_type": "ppo"}, "ppo"),
        (BEFORE | {"enable_vllm_is_correction": True, "policy_loss_type": "ppo"}, "decoupled"),
        (BEFORE | {"enable_vllm_is_correction": True, "policy_loss_type": "gspo"}, "gspo"),
        (GROUPED | {"algo.advantage.is_correction_enable": True}, "decoupled"),
        (GROUPED | {"algo.advantage.is_correction_enable": False}, "ppo"),
        (GROUPED | {"algo.advantage.is_correction_level": "off"}, "ppo"),
        (GROUPED | {"algo.advantage.is_correction_level": "seq"}, "decoupled"),
        (
            GROUPED
            | {"algo.advantage.is_correction_level": "token", "actor.policy_loss_type": "gspo"},
            "gspo",
        ),
    ],
)
def test_openrlhfs_flags_of_every_version(flags: dict[str, Any], objective: str) -> None:
    assert openrlhf.stated(nested(flags)) == {
        "objective": objective,
        "drops_stale": False,
        "updates_per_version": 6,
    }


def test_flags_that_nobody_set_leave_updates_unknown() -> None:
    assert "updates_per_version" not in openrlhf.stated(SimpleNamespace())
