"""The settings of the playbook's moves in TRL exist, and are read, in the versions they name.

TRL's sources are read, never imported: `RLTRACE_TRL_SOURCES` names a folder with one folder of
unpacked wheel a version (`make test-trl` makes it). Fields that TRL's configurations inherit from
transformers, and the values of all, are held to the dataclasses of what is installed.
"""

from __future__ import annotations

import ast
import dataclasses
import os
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from rltrace.testing.inside.hooks import satisfies
from tests.adapters.settings import (
    check_every_wall_has_a_move,
    check_whole,
    name,
    settings_file,
    sources_of,
)

VERSIONS = ("0.28.0", "1.0.0", "1.6.0", "1.9.0", "1.16.0")
SOURCES = os.environ.get("RLTRACE_TRL_SOURCES", "")
FOUND = settings_file("trl")
SETTINGS: list[dict[str, Any]] = FOUND["setting"]
GRPO, ASYNC = "GRPOConfig", "AsyncGRPOConfig"
FILES = {
    GRPO: "trainer/grpo_config.py",
    ASYNC: "experimental/async_grpo/async_grpo_config.py",
}
MODULES = {GRPO: "trl.trainer.grpo_config", ASYNC: "trl.experimental.async_grpo"}

INHERITED = {
    "per_device_train_batch_size", "use_liger_kernel", "torch_compile", "gradient_checkpointing",
    "deepspeed",
}  # fmt: skip
"""Fields of transformers' own."""

needs_sources = pytest.mark.elsewhere(not SOURCES)
needs_trl = pytest.mark.elsewhere(find_spec("trl") is None)
each_version = pytest.mark.parametrize("version", VERSIONS)


def sources(version: str) -> Path:
    return Path(SOURCES, version, "trl")


@lru_cache
def fields(version: str, config: str) -> set[str]:
    """The fields that a configuration itself has in a version; none where it is not there."""
    file = sources(version) / FILES[config]
    if not file.exists():
        return set()
    [found] = [
        node
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and node.name == config
    ]
    lines = [node for node in found.body if isinstance(node, ast.AnnAssign)]
    return {node.target.id for node in lines if isinstance(node.target, ast.Name)}


def field(option: str) -> str:
    return option.removeprefix("--")


def config_of(setting: dict[str, Any]) -> str:
    return str(setting.get("config", GRPO))


def beside(setting: dict[str, Any]) -> dict[str, Any]:
    """The other options that a setting has to do with, and their values."""
    return {k: v for key in ("needs", "exactly", "only") for k, v in setting.get(key, {}).items()}


def is_there(version: str, setting: dict[str, Any]) -> bool:
    option = field(setting["option"])
    return option in INHERITED or option in fields(version, config_of(setting))


def test_every_setting_is_whole() -> None:
    check_whole(SETTINGS, {"needs", "exactly", "only", "beside", "config"}, VERSIONS)


def test_no_setting_is_told_twice() -> None:
    told = [(s["wall"], s["move"], s["option"], str(s["value"]), s["versions"]) for s in SETTINGS]
    assert len(told) == len(set(told))


def test_every_wall_has_a_move() -> None:
    check_every_wall_has_a_move(SETTINGS)


@needs_sources
@each_version
def test_a_setting_is_there_in_the_versions_that_it_names_and_in_no_other(version: str) -> None:
    named = {name(s) for s in SETTINGS if satisfies(version, s["versions"])}
    assert {name(s) for s in SETTINGS if is_there(version, s)} == named


@needs_sources
@each_version
def test_a_setting_is_read_where_it_is_said_to_be(version: str) -> None:
    for setting in SETTINGS:
        if satisfies(version, setting["versions"]) and field(setting["option"]) not in INHERITED:
            text = sources_of(sources(version), setting)
            assert f"args.{field(setting['option'])}" in text, name(setting)


@needs_sources
@each_version
def test_what_a_setting_needs_is_there_too(version: str) -> None:
    for setting in SETTINGS:
        if satisfies(version, setting["versions"]):
            known = fields(version, config_of(setting)) | INHERITED
            others = {field(option) for option in beside(setting)}
            assert others <= known, name(setting)


@needs_trl
@pytest.mark.parametrize("setting", SETTINGS, ids=name)
def test_the_dataclass_takes_the_value(setting: dict[str, Any]) -> None:
    config = getattr(import_module(MODULES[config_of(setting)]), config_of(setting))
    hints = get_type_hints(config)
    known = {each.name for each in dataclasses.fields(config)}
    for option, value in {setting["option"]: setting["value"], **beside(setting)}.items():
        assert field(option) in known
        kinds = str(hints[field(option)])
        assert {bool: "bool", int: "int", float: "float", str: "str"}[type(value)] in kinds


@needs_trl
@pytest.mark.parametrize("setting", SETTINGS, ids=name)
def test_a_job_states_each_option_or_the_one_beside_it(
    setting: dict[str, Any], tmp_path: Path
) -> None:
    """Options that are unset are not among the settings that a job states."""
    config = getattr(import_module(MODULES[config_of(setting)]), config_of(setting))
    values = vars(config(output_dir=str(tmp_path), use_cpu=True, bf16=False))
    stated = {option for option, value in values.items() if value is not None}
    assert stated & {field(setting["option"]), field(setting.get("beside", ""))}
