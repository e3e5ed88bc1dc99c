"""The settings of the playbook's moves in OpenRLHF exist, and are read, in the versions they name.

OpenRLHF's sources are read, never imported: `RLTRACE_OPENRLHF_SOURCES` names a folder with one
folder of unpacked wheel a version (`make test-openrlhf` makes it).
"""

from __future__ import annotations

import ast
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.analysis import WRAP_SYNC
from rltrace.testing.inside.hooks import satisfies
from rltrace.testing.inside.plugins import VERSIONS as WITH_SYNC
from tests.adapters.settings import (
    check_every_wall_has_a_move,
    check_whole,
    name,
    settings_file,
    sources_of,
)

VERSIONS = ("0.9.1", "0.9.6", "0.9.9", "0.10.1", "0.10.2", "0.11.2")
SOURCES = os.environ.get("RLTRACE_OPENRLHF_SOURCES", "")
FOUND = settings_file("openrlhf")
SETTINGS: list[dict[str, Any]] = FOUND["setting"]
BEFORE: dict[str, str] = FOUND["before_0_10_2"]

needs_sources = pytest.mark.elsewhere(not SOURCES)
each_version = pytest.mark.parametrize("version", VERSIONS)


def sources(version: str) -> Path:
    return Path(SOURCES, version, "openrlhf")


@lru_cache
def options(version: str) -> dict[str, dict[str, Any]]:
    """The options of train_ppo_ray: what each `add_argument` says of them, as far as it is plain
    (its `type` by name); and the one of `rltrace wrap`."""
    text = (sources(version) / "cli/train_ppo_ray.py").read_text("utf-8")
    found: dict[str, dict[str, Any]] = {WRAP_SYNC: {"action": "store_true"}}
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call) or getattr(call.func, "attr", "") != "add_argument":
            continue
        if isinstance(call.args[0], ast.Constant):
            said = {str(k.arg): k.value for k in call.keywords}
            found[call.args[0].value] = {
                key: value.id if isinstance(value, ast.Name) else ast.literal_eval(value)
                for key, value in said.items()
                if key in ("action", "choices", "nargs", "type")
            }
    return found


def spelled(version: str, option: str) -> str:
    """An option's name in a version."""
    return BEFORE.get(option, option) if satisfies(version, "<0.10.2") else option


def is_read(option: str, text: str) -> bool:
    """Whether a text takes the option from the parsed arguments: `args.a.b`, or `getattr(args.a,
    "b", ...)`, and is more than where its default is put in."""
    *groups, last = option.removeprefix("--").split(".")
    held = r"\.".join(["args", *groups])
    taken = re.findall(rf'\b{held}\.{last}\b(?! = )|getattr\([\w.]*{held}, "{last}"', text)
    return bool(taken)


def is_there(version: str, setting: dict[str, Any]) -> bool:
    """Whether a version has an option, reads it where it is said to, and takes its value."""
    if setting["option"] == WRAP_SYNC:
        text = sources_of(sources(version), setting)
        return satisfies(version, WITH_SYNC) and "def broadcast_to_vllm(" in text
    option = spelled(version, setting["option"])
    known = options(version).get(option)
    text = sources_of(sources(version), setting)
    if known is None or not is_read(option, text) or setting.get("where", "") not in text:
        return False
    return setting["value"] in known.get("choices", [setting["value"]])


def takes(known: dict[str, Any], value: Any) -> bool:
    """Whether a value is of the option's kind."""
    if known.get("action") == "store_true":
        return value is True
    if "nargs" in known:
        return isinstance(value, list) and all(isinstance(one, float) for one in value)
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
    return type(value) in kinds[known["type"]]


def test_every_setting_is_whole() -> None:
    check_whole(SETTINGS, {"needs", "where"}, VERSIONS)


def test_no_setting_is_told_twice() -> None:
    told = [(s["wall"], s["option"], str(s["value"]), s["versions"]) for s in SETTINGS]
    assert len(told) == len(set(told))


def test_every_wall_has_a_move() -> None:
    check_every_wall_has_a_move(SETTINGS)


def test_an_older_name_is_of_an_option_that_a_setting_has_or_needs() -> None:
    used = {setting["option"] for setting in SETTINGS}
    used |= {option for setting in SETTINGS for option in setting.get("needs", {})}
    assert set(BEFORE) <= used


@needs_sources
@each_version
def test_a_setting_is_there_in_the_versions_that_it_names_and_in_no_other(version: str) -> None:
    """Where it is told twice, because it needs other options then, in the versions of either."""
    named = {name(s) for s in SETTINGS if satisfies(version, s["versions"])}
    assert {name(s) for s in SETTINGS if is_there(version, s)} == named


@needs_sources
@each_version
def test_an_option_has_the_older_name_before_and_the_newer_one_since(version: str) -> None:
    old, known = satisfies(version, "<0.10.2"), options(version)
    assert not [new for new in BEFORE if new in known and old]
    assert not [name for name in BEFORE.values() if name in known and not old]


@needs_sources
@each_version
def test_a_value_is_of_the_option_s_kind(version: str) -> None:
    for setting in SETTINGS:
        if satisfies(version, setting["versions"]):
            known = options(version)[spelled(version, setting["option"])]
            assert takes(known, setting["value"]), name(setting)


@needs_sources
@each_version
def test_what_a_setting_needs_is_there_too(version: str) -> None:
    for setting in SETTINGS:
        if satisfies(version, setting["versions"]):
            for option, value in setting.get("needs", {}).items():
                known = options(version).get(spelled(version, option))
                assert known is not None, f"{name(setting)} needs {option}"
                assert takes(known, value), f"{name(setting)} needs {option}={value}"
