"""The settings of the playbook's moves in verl exist, and are read, in the versions they name.

verl's sources are read, never imported: `RLTRACE_VERL_SOURCES` names a folder with one folder of
unpacked wheel a version (`make test-verl` makes it).
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.hooks import satisfies
from tests.adapters.settings import (
    check_every_wall_has_a_move,
    check_whole,
    name,
    settings_file,
    sources_of,
)

VERSIONS = ("0.6.1", "0.7.1", "0.8.0", "0.9.1")
SOURCES = os.environ.get("RLTRACE_VERL_SOURCES", "")
SETTINGS: list[dict[str, Any]] = settings_file("verl")["setting"]

needs_sources = pytest.mark.elsewhere(not SOURCES)
each_version = pytest.mark.parametrize("version", VERSIONS)
MISSING = object()
PLUG_INS = {"rltrace": "verl.plugins"}
"""Values that verl has from a plug-in, and how it loads that."""


@lru_cache
def config(version: str, config_name: str) -> dict[str, Any] | None:
    """A configuration of verl, composed where verl ships it so; None where it has no such."""
    yaml = pytest.importorskip("yaml")
    verl = Path(SOURCES, version, "verl")
    files = [verl / f"trainer/config/_generated_{config_name}.yaml"]
    files += (verl / "experimental").glob(f"*/config/{config_name}.yaml")
    for file in files:
        if file.exists():
            found: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))
            return found
    return None


def default(version: str, option: str, config_name: str) -> Any:
    """What verl sets an option to; `MISSING` where there is none."""
    node: Any = config(version, config_name)
    for key in option.split("."):
        if not isinstance(node, dict) or key not in node:
            return MISSING
        node = node[key]
    return node


def is_there(version: str, setting: dict[str, Any]) -> bool:
    """Whether a version knows an option, reads it, and takes the word that it is set to."""
    option, config_name = setting["option"], setting.get("config", "ppo_trainer")
    known = default(version, option.removeprefix("+"), config_name) is not MISSING
    if option.startswith("+"):  # only there can be added what is not there
        parent = option[1:].rpartition(".")[0]
        known = not known and default(version, parent, config_name) is not MISSING
    read = sources_of(Path(SOURCES, version, "verl"), setting)
    value = PLUG_INS.get(str(setting["value"]), setting["value"])
    if value != setting["value"]:
        read += option
    taken = not isinstance(value, str) or f'"{value}"' in read or f"'{value}'" in read
    return known and option.rpartition(".")[2] in read and taken


def test_every_setting_is_whole() -> None:
    check_whole(SETTINGS, {"config", "needs"}, VERSIONS)


def test_no_setting_is_told_twice() -> None:
    told = [(s["wall"], s["option"], s["value"], s.get("config")) for s in SETTINGS]
    assert len(told) == len(set(told))


def test_every_wall_has_a_move() -> None:
    check_every_wall_has_a_move(SETTINGS)


@needs_sources
@each_version
def test_a_setting_is_there_in_the_versions_that_it_names_and_in_no_other(version: str) -> None:
    wrong = [s for s in SETTINGS if is_there(version, s) != satisfies(version, s["versions"])]
    assert [name(setting) for setting in wrong] == []


@needs_sources
@each_version
def test_a_value_is_of_the_default_s_type(version: str) -> None:
    for setting in SETTINGS:
        if not satisfies(version, setting["versions"]):
            continue
        value, option = setting["value"], setting["option"]
        usual = default(version, option, setting.get("config", "ppo_trainer"))
        if isinstance(usual, bool) or isinstance(value, bool):
            assert isinstance(value, bool), name(setting)
            assert isinstance(usual, bool), name(setting)
        elif isinstance(usual, int | float):
            assert isinstance(value, int | float), name(setting)


@needs_sources
@each_version
def test_what_a_setting_needs_is_there_too(version: str) -> None:
    for setting in SETTINGS:
        if satisfies(version, setting["versions"]):
            for option in setting.get("needs", {}):
                found = default(version, option, setting.get("config", "ppo_trainer"))
                assert found is not MISSING, f"{name(setting)} needs {option}"
