"""A setting that cannot work is refused in one sentence that says what would."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any

import pytest

from rltrace.trainer import TrainerConfig, TrainerError, train

SETTINGS = dataclasses.fields(TrainerConfig)

AT_LEAST_ONE = (
    "steps", "shortest", "max_response", "prompts", "max_running", "layers", "heads",
    "minibatches", "rollout_workers", "reward_workers", "checkpoint_every", "mean_length",
    "oversample", "truncate",
)  # fmt: skip
NOT_NEGATIVE = (
    "learning_rate", "kl_coefficient", "length_tail", "merges", "warm_start", "max_lag", "timeout",
    "reward_latency", "env_latency", "env_tail", "link_gbps", "decode_floor", "update_floor",
)  # fmt: skip
FLOATS = [field.name for field in SETTINGS if isinstance(field.default, float)]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        *(({name: 0}, f"{name} must be at least 1, not 0") for name in AT_LEAST_ONE),
        *(({name: -1}, f"{name} must not be negative, not -1") for name in NOT_NEGATIVE),
        (
            {"placement": "everywhere"},
            "placement must be one of colocated, disaggregated, one-step-off, async,"
            " not 'everywhere'",
        ),
        (
            {"task": "chess"},
            "task must be one of sort, reverse, copy, repeat, expression, lookup, not 'chess'",
        ),
        ({"objective": "ppo"}, "objective must be one of grpo, decoupled, tis, not 'ppo'"),
        ({"reference_side": "both"}, "reference_side must be one of actor, learner, not 'both'"),
        ({"symbols": 1}, "symbols must be 2 to 26, not 1"),
        ({"symbols": 27}, "symbols must be 2 to 26, not 27"),
        ({"samples": 1}, "samples must be at least 2: GRPO compares them, not 1"),
        ({"shortest": 4, "longest": 3}, "longest must be at least 4, not 3"),
        ({"clip": 0.0}, "clip must lie between 0 and 1, not 0.0"),
        ({"clip": 1.0}, "clip must lie between 0 and 1, not 1.0"),
        ({"model_size": 0.0}, "model_size must be positive, not 0.0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be positive, not 0.0"),
        ({"pass_mark": 1.5}, "pass_mark must lie between 0 and 1, not 1.5"),
        ({"env_failure_rate": -0.1}, "env_failure_rate must lie between 0 and 1, not -0.1"),
        ({"symbols": 3, "merges": 3}, "merges must be fewer than symbols, not 3"),
        ({"resume": True}, "resume needs a checkpoint, not ''"),
        ({"seed": 2**64}, f"seed must fit into 64 bits, not {2**64}"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrainerError, match=f"^{re.escape(sentence)}$"):
        TrainerConfig(**settings)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused_by_the_name_of_their_setting(
    name: str, value: float
) -> None:
    with pytest.raises(TrainerError, match=f"^{name} must "):
        TrainerConfig(**{name: value})


def test_settings_come_by_name_with_dashes_or_underscores_and_whole_numbers_may_be_floats() -> None:
    config = TrainerConfig.of({"max-lag": 2, "model_size": 1, "retokenize": True})
    assert (config.max_lag, config.model_size, config.retokenize) == (2, 1, True)
    assert TrainerConfig.of({}) == TrainerConfig()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"velocity": 1}, "there is no setting 'velocity'"),
        ({"step": 1}, "there is no setting 'step': did you mean steps?"),
        ({"steps": 1.0}, "steps must be of type int, not 1.0"),
        ({"steps": True}, "steps must be of type int, not True"),
        ({"steps": "3"}, "steps must be of type int, not '3'"),
        ({"learning-rate": True}, "learning-rate must be of type float, not True"),
        ({"retokenize": 1}, "retokenize must be of type bool, not 1"),
        ({"task": ["sort"]}, "task must be of type str, not ['sort']"),
        ({"checkpoint": None}, "checkpoint must be of type str, not None"),
    ],
)
def test_a_name_or_a_type_that_does_not_exist_is_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TrainerError, match=f"^{re.escape(sentence)}$"):
        TrainerConfig.of(settings)


def test_every_setting_says_what_it_is_and_what_a_number_of_seconds_or_tokens_counts() -> None:
    for field in SETTINGS:
        assert field.metadata["help"].endswith("."), field.name
        assert set(field.metadata) == {"help", "unit"}
    unit = {field.name: field.metadata["unit"] for field in SETTINGS}
    assert {unit[name] for name in unit if "latency" in name or "floor" in name} == {"SECONDS"}
    assert unit["timeout"] == "SECONDS"
    assert unit["max_response"] == unit["mean_length"] == "TOKENS"
    assert unit["max_lag"] == "VERSIONS"
    assert unit["link_gbps"] == "GBIT/S"
    assert unit["model_size"] == "MILLIONS"


@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("layers", [1, 6])
@pytest.mark.parametrize("model_size", [1e-6, 0.05, 3.0])
def test_a_width_that_the_heads_can_share_has_about_the_parameters_asked_for(
    model_size: float, layers: int, heads: int
) -> None:
    width = TrainerConfig(model_size=model_size, layers=layers, heads=heads).width
    assert width % heads == 0
    assert width > 0
    if model_size > 1e-3:
        wanted = (model_size * 1e6 / (12 * layers)) ** 0.5
        assert abs(width - wanted) <= heads / 2


def test_without_torch_or_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("rltrace.trainer.run")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "ray", None)
    needed = re.escape("the trainer needs ray: pip install 'rltrace-toolkit[trainer]'")
    with pytest.raises(TrainerError, match=f"^{needed}$"):
        train(TrainerConfig())
