"""The settings of the playbook's moves are whole in every framework, and in those whose options are
recorded they exist; those of others are held to their sources.

`record_options` makes the records from a version's sources.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from rltrace.adapters import find_adapters
from rltrace.testing.inside.analysis import OBSERVABILITY, frameworks, wall_names
from rltrace.testing.inside.importers import importers
from rltrace.testing.inside.trace import satisfies
from tests.adapters.record_options import FOLDER, named
from tests.adapters.settings import name, not_taken, plain, settings_file, settings_files
from tests.adapters.sources import OPENRLHF, TRL, VERL

RECORDED: dict[str, dict[str, dict[str, str]]] = {
    file.stem: json.loads(file.read_text("utf-8")) for file in FOLDER.glob("*.json")
}
FRAMEWORKS = {stem: settings_file(stem)["framework"] for stem in settings_files()}
"""By their files of settings."""
VERSIONS = {
    "ray_trainer": ("0.2.0",),
    **{sources.package: sources.versions for sources in (OPENRLHF, TRL, VERL)},
    **RECORDED,
}
MORE_KEYS = {"span", "less", "follows", "needs", "where", "exactly", "only", "config"}
"""What a setting may say besides."""
TOLD_AGAIN = {"openrlhf": ["versions"], "trl": ["versions", "move"]}
"""What tells two settings of one option and value from each other."""

each_framework = pytest.mark.parametrize("framework", FRAMEWORKS)
each_version = pytest.mark.parametrize(
    ("framework", "version"), [(f, v) for f in RECORDED for v in RECORDED[f]]
)


def settings(framework: str) -> list[dict[str, Any]]:
    """The settings of a framework."""
    found: list[dict[str, Any]] = settings_file(framework)["setting"]
    return found


@each_framework
def test_every_setting_is_whole_and_about_a_wall_that_there_is(framework: str) -> None:
    texts = {"wall", "move", "option", "effect", "versions"}
    assert FRAMEWORKS[framework] in find_adapters()
    for setting in settings(framework):
        assert setting.keys() - MORE_KEYS == texts | {"value", "source"}, name(setting)
        assert all(isinstance(setting[key], str) for key in texts), name(setting)
        assert setting["wall"] in wall_names(), name(setting)
        assert setting["source"], name(setting)
        assert any(satisfies(v, setting["versions"]) for v in VERSIONS[framework]), name(setting)


@each_framework
def test_no_setting_is_told_twice(framework: str) -> None:
    keys = ["wall", "option", "value", "config", *TOLD_AGAIN.get(framework, [])]
    told = [tuple(str(setting.get(key)) for key in keys) for setting in settings(framework)]
    assert len(told) == len(set(told))


@pytest.mark.parametrize("framework", [f for f in FRAMEWORKS if f != "ray_trainer"])
def test_every_wall_has_a_move(framework: str) -> None:
    """Of those that any framework has one against, but those that this is said to have no option
    against, and observability: what it does not keep, no option brings back."""
    without = settings_file(framework).get("without", [])
    walls = {setting["wall"] for setting in settings(framework)}
    known = {setting["wall"] for one in FRAMEWORKS for setting in settings(one)}
    assert walls | {*without} >= known - {OBSERVABILITY}
    assert walls.isdisjoint(without)


@pytest.mark.parametrize(("framework", "name"), FRAMEWORKS.items())
def test_runs_of_the_framework_and_runs_made_of_its_logs_find_them(
    framework: str, name: str
) -> None:
    imported = framework.replace("_", "-")
    names = {name, imported} if imported in importers() else {name}
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
    assert not_taken(settings(framework), version, lambda setting: known) == []


@pytest.mark.parametrize("framework", RECORDED)
def test_only_options_that_settings_name_are_recorded(framework: str) -> None:
    recorded = {option for known in RECORDED[framework].values() for option in known}
    assert recorded == named(framework)
