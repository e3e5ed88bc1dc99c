"""The settings of the playbook's moves in TRL exist, and are read, in the versions they name.

TRL's sources are read, never imported (`make test-trl` unpacks them). Fields that TRL's
configurations inherit from transformers, and the values of all, are held to the dataclasses of what
is installed.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from rltrace.testing.inside.trace import satisfies
from tests.adapters.option_classes import of_classes
from tests.adapters.settings import name, settings_file, sources_of
from tests.adapters.sources import TRL

SETTINGS: list[dict[str, Any]] = settings_file("trl")["setting"]
GRPO, ASYNC = "GRPOConfig", "AsyncGRPOConfig"
MODULES = {GRPO: "trl.trainer.grpo_config", ASYNC: "trl.experimental.async_grpo"}

INHERITED = {
    "per_device_train_batch_size", "use_liger_kernel", "torch_compile", "gradient_checkpointing",
    "deepspeed",
}  # fmt: skip
"""Fields of transformers' own."""

needs_trl = pytest.mark.elsewhere(find_spec("trl") is None)
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=name)


def sources(version: str) -> Path:
    return Path(TRL.folder, version, "trl")


@lru_cache
def fields(version: str, config: str) -> set[str]:
    """The fields that a configuration has in a version; none where it is not there."""
    found = of_classes(TRL.trees[version], f"{MODULES[config]}:{config}")
    return INHERITED | found.keys() if found else set()


def field(option: str) -> str:
    return option.removeprefix("--")


def config_of(setting: dict[str, Any]) -> str:
    return str(setting.get("config", GRPO))


def given(setting: dict[str, Any]) -> dict[str, Any]:
    """The options that a setting has to do with, and their values."""
    found = {setting["option"]: setting["value"]}
    for key in ("needs", "exactly", "only"):
        found |= setting.get(key, {})
    return {field(option): value for option, value in found.items()}


@TRL.each_version
def test_a_setting_is_there_in_the_versions_that_it_names_and_in_no_other(version: str) -> None:
    named = {name(s) for s in SETTINGS if satisfies(version, s["versions"])}
    there = {name(s) for s in SETTINGS if field(s["option"]) in fields(version, config_of(s))}
    assert there == named


@TRL.each_version
def test_a_setting_is_read_where_it_is_said_to_be_and_what_it_needs_is_there(version: str) -> None:
    for setting in SETTINGS:
        if satisfies(version, setting["versions"]):
            assert given(setting).keys() <= fields(version, config_of(setting)), name(setting)
            option, text = field(setting["option"]), sources_of(sources(version), setting)
            assert option in INHERITED or f"args.{option}" in text, name(setting)


@needs_trl
@each_setting
def test_the_dataclass_takes_the_value(setting: dict[str, Any]) -> None:
    config = getattr(import_module(MODULES[config_of(setting)]), config_of(setting))
    hints = get_type_hints(config)
    known = {each.name for each in dataclasses.fields(config)}
    for option, value in given(setting).items():
        assert option in known
        assert type(value).__name__ in str(hints[option])


@needs_trl
@each_setting
def test_a_job_states_each_option_or_the_one_beside_it(
    setting: dict[str, Any], tmp_path: Path
) -> None:
    """Options that are unset are not among the settings that a job states."""
    config = getattr(import_module(MODULES[config_of(setting)]), config_of(setting))
    values = vars(config(output_dir=str(tmp_path), use_cpu=True, bf16=False))
    stated = {option for option, value in values.items() if value is not None}
    assert stated & {field(setting["option"]), field(setting.get("beside", ""))}
