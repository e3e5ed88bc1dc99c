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
from tests.adapters.settings import (
    as_planned,
    as_printed,
    asked,
    name,
    settings_file,
    sources_of,
)
from tests.adapters.sources import TRL

SETTINGS: list[dict[str, Any]] = settings_file("trl")["setting"]
GRPO, ASYNC = "GRPOConfig", "AsyncGRPOConfig"
MODULES = {GRPO: "trl.trainer.grpo_config", ASYNC: "trl.experimental.async_grpo"}

INHERITED = {
    "per_device_train_batch_size", "use_liger_kernel", "torch_compile", "gradient_checkpointing",
    "deepspeed", "gradient_accumulation_steps",
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
    found = asked(setting) | setting.get("only", {})
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
def test_a_job_states_each_option(setting: dict[str, Any], tmp_path: Path) -> None:
    """One without a value, too."""
    config = getattr(import_module(MODULES[config_of(setting)]), config_of(setting))
    stated = vars(config(output_dir=str(tmp_path), use_cpu=True, bf16=False))
    assert field(setting["option"]) in stated


def read(config_name: str, words: list[str], folder: Path) -> dict[str, Any]:
    """What transformers' parser makes of a command line, as it is for a script of TRL."""
    from transformers import HfArgumentParser

    config = getattr(import_module(MODULES[config_name]), config_name)
    plain = ["--output_dir", str(folder), "--use_cpu", "--bf16", "false"]
    parser = HfArgumentParser(config)
    return {f"--{key}": value for key, value in vars(parser.parse_args([*plain, *words])).items()}


@needs_trl
def test_its_own_parser_reads_what_is_printed(tmp_path: Path) -> None:
    for setting, settings, words in as_printed("trl", TRL.versions[-1]):
        for config in setting.config:
            known = read(config, words, tmp_path)
            assert {option: known[option] for option in settings} == settings, setting.option


@needs_trl
def test_its_own_parser_reads_what_is_planned(tmp_path: Path) -> None:
    plans = list(as_planned("trl"))
    assert any("--max_staleness" in settings for settings, _ in plans)
    for settings, words in plans:
        config = ASYNC if "--max_staleness" in settings else GRPO
        known = read(config, words, tmp_path)
        assert {option: known[option] for option in settings} == settings


@needs_trl
def test_twice_the_samples_of_a_prompt_fit_into_twice_the_batch(tmp_path: Path) -> None:
    """TRL refuses groups that do not divide the batch of a generation."""
    config = getattr(import_module(MODULES[GRPO]), GRPO)
    (setting,) = [s for s in SETTINGS if s["option"] == "--num_generations"]
    plain = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    given_before = {**plain, "per_device_train_batch_size": 2, "num_generations": 4}
    before = config(**given_before, gradient_accumulation_steps=4)
    after = config(**given_before | given(setting))
    assert after.num_generations == 2 * before.num_generations
    assert after.generation_batch_size == 2 * before.generation_batch_size
