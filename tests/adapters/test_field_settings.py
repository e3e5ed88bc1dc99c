"""The settings of the playbook's moves in frameworks whose options are recorded exist there.

`record_options` makes the records from a version's sources.
"""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from rltrace.importers import IMPORTERS
from rltrace.testing.inside.analysis import frameworks
from rltrace.testing.inside.hooks import satisfies
from tests.adapters.record_options import FOLDER, named
from tests.adapters.settings import (
    check_every_wall_has_a_move,
    check_whole,
    name,
    plain,
    settings_file,
)

FRAMEWORKS = {
    "slime": "slime",
    "nemo_rl": "nemo_rl",
    "areal": "areal",
    "roll": "roll.pipeline",
    "rlinf": "rlinf",
    "agentlightning": "agentlightning",
    "torchforge": "forge.observability",
    "prime_rl": "prime_rl",
    "rlyx": "rlyx",
    "relax": "relax.engine",
}
"""By their files of settings."""
RECORDED: dict[str, dict[str, dict[str, str]]] = {
    framework: json.loads((FOLDER / f"{framework}.json").read_text("utf-8"))
    for framework in FRAMEWORKS
}
each_framework = pytest.mark.parametrize("framework", FRAMEWORKS)
each_version = pytest.mark.parametrize(
    ("framework", "version"), [(f, v) for f in FRAMEWORKS for v in RECORDED[f]]
)


def settings(framework: str) -> list[dict[str, Any]]:
    """The settings of a framework."""
    found: list[dict[str, Any]] = settings_file(framework, FRAMEWORKS[framework])["setting"]
    return found


def takes(kind: str, value: Any) -> bool:
    """Whether an option of a kind takes a value."""
    if kind == "any":
        return True
    if kind.startswith("["):
        return value in ast.literal_eval(kind)
    kinds: dict[str, tuple[type, ...]] = {
        "flag": (bool,), "bool": (bool,), "int": (int,), "float": (int, float), "str": (str,),
    }  # fmt: skip
    return isinstance(value, kinds[kind]) and isinstance(value, bool) == (kind in ("flag", "bool"))


@each_framework
def test_every_setting_is_whole(framework: str) -> None:
    check_whole(settings(framework), {"needs"}, list(RECORDED[framework]))


@each_framework
def test_no_setting_is_told_twice(framework: str) -> None:
    told = [(s["wall"], s["option"], str(s["value"])) for s in settings(framework)]
    assert len(told) == len(set(told))


@each_framework
def test_every_wall_has_a_move(framework: str) -> None:
    without = settings_file(framework).get("without", [])
    check_every_wall_has_a_move(settings(framework), without)


@pytest.mark.parametrize(("framework", "name"), FRAMEWORKS.items())
def test_runs_of_the_framework_and_runs_made_of_its_logs_find_them(
    framework: str, name: str
) -> None:
    imported = framework.replace("_", "-")
    names = {name, imported} if imported in IMPORTERS else {name}
    assert {len(frameworks()[each]) for each in names} == {len(settings(framework))}


@each_version
def test_an_option_is_there_in_the_versions_that_it_names_and_in_no_other(
    framework: str, version: str
) -> None:
    known = RECORDED[framework][version]
    wrong = [
        name(setting)
        for setting in settings(framework)
        if (plain(setting["option"]) in known) != satisfies(version, setting["versions"])
    ]
    assert wrong == []


@each_version
def test_options_take_the_values_that_settings_give_them(framework: str, version: str) -> None:
    known = RECORDED[framework][version]
    for setting in settings(framework):
        if satisfies(version, setting["versions"]):
            given = {setting["option"]: setting["value"], **setting.get("needs", {})}
            for option, value in given.items():
                assert plain(option) in known, f"{name(setting)} needs {option}"
                assert takes(known[plain(option)], value), f"{option}={value}"


@each_framework
def test_only_options_that_settings_name_are_recorded(framework: str) -> None:
    assert {option for known in RECORDED[framework].values() for option in known} == named(
        framework
    )
