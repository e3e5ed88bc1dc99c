"""The settings of the playbook's moves in verl exist, and are read, in the versions they name.

verl's sources are read, never imported (`make test-verl` unpacks them); Hydra composes its
configurations.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.analysis import frameworks
from rltrace.testing.inside.trace import satisfies
from tests.adapters.record_options import of_yaml
from tests.adapters.settings import (
    Options,
    as_planned,
    as_printed,
    asked,
    name,
    not_taken,
    plain,
    settings_file,
    sources_of,
)
from tests.adapters.sources import VERL

needs_hydra = pytest.mark.elsewhere(find_spec("hydra") is None)
PLUG_INS = {"rltrace": "verl.plugins"}
"""Values that verl has from a plug-in, and how it loads that."""
RECIPES = {"rollout.nnodes=1": ">=0.8"}
"""Since when verl's wheels hold what was a recipe beside the package before."""


@lru_cache
def config(version: str, config_name: str) -> Options:
    """The options of a configuration; a number is of either kind in YAML."""
    verl = Path(VERL.folder, version, "verl")
    files = [verl / f"trainer/config/_generated_{config_name}.yaml"]
    files += (verl / "experimental").glob(f"*/config/{config_name}.yaml")
    found = [of_yaml(file.read_text("utf-8")) for file in files if file.exists()]
    kinds = found[0] if found else {}
    return {option: "float" if kind == "int" else kind for option, kind in kinds.items()}


@lru_cache
def settings(version: str) -> list[dict[str, Any]]:
    """What the file holds, by the names of a version, and the configurations of each."""
    found: list[dict[str, Any]] = []
    for raw, one in zip(settings_file("verl")["setting"], frameworks()["verl"], strict=True):
        made = one.in_version(version)
        needs, config = {**made.needs, **made.only}, made.config or ("ppo_trainer",)
        there = RECIPES.get(name(raw), raw["versions"])
        named = {"option": made.option, "needs": needs, "config": config, "versions": there}
        found.append({**raw, **named})
    return found


def known(version: str, setting: dict[str, Any]) -> Options:
    """Those of the configuration of a setting; what a setting adds is of any kind."""
    found = config(version, setting["config"][0])
    option = setting["option"]
    return {**found, plain(option): "any"} if option.startswith("+") else found


def is_there(version: str, setting: dict[str, Any]) -> bool:
    """Whether a version knows an option, reads it, and takes the word that it is set to."""
    option = setting["option"]
    value = asked(setting)[option]
    found = config(version, setting["config"][0])
    is_known = plain(option) in found
    if option.startswith("+"):  # only there can be added what is not there
        parent = plain(option).rpartition(".")[0]
        is_known = not is_known and any(other.startswith(f"{parent}.") for other in found)
    read = sources_of(Path(VERL.folder, version, "verl"), setting)
    if value in PLUG_INS:
        value, read = PLUG_INS[value], read + option
    taken = not isinstance(value, str) or f'"{value}"' in read or f"'{value}'" in read
    return is_known and option.rpartition(".")[2] in read and taken


@VERL.each_version
def test_a_setting_is_there_in_the_versions_that_it_names_and_in_no_other(version: str) -> None:
    known = settings(version)
    wrong = [s for s in known if is_there(version, s) != satisfies(version, s["versions"])]
    assert [name(setting) for setting in wrong] == []


@VERL.each_version
def test_options_take_the_values_that_settings_give_them(version: str) -> None:
    assert not_taken(settings(version), version, lambda setting: known(version, setting)) == []


def composed(version: str, config_name: str, words: list[str]) -> Any:
    """What Hydra makes of a configuration of verl and the words of a command line."""
    from hydra import compose, initialize_config_dir

    verl = Path(VERL.folder, version, "verl").resolve()
    places = [verl / "trainer/config", *verl.glob("experimental/*/config")]
    (folder,) = [place for place in places if (place / f"{config_name}.yaml").exists()]
    # Those of the experiments look for verl's own where their scripts are started.
    found_there = [f"hydra.searchpath=[file://{places[0]}]"]
    with initialize_config_dir(str(folder), version_base=None):
        return compose(config_name, overrides=[*words, *found_there])


def together(made: list[tuple[Any, dict[str, Any], list[str]]]) -> list[list[Any]]:
    """Settings in as few groups as there can be without two that set one option otherwise."""
    groups: list[list[Any]] = []
    for one in made:
        for group in groups:
            if not any(other[1].keys() & one[1].keys() for other in group):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def configs(version: str) -> list[str]:
    """All that settings name, as far as a version has them."""
    named = {config for one in frameworks()["verl"] for config in one.config}
    verl = Path(VERL.folder, version, "verl")
    return sorted(one for one in named if any(verl.glob(f"**/config/{one}.yaml")))


def differ(known: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """What is not read back as it was meant."""
    from omegaconf import OmegaConf

    read = {option: OmegaConf.select(known, plain(option)) for option in settings}
    return {option: value for option, value in read.items() if value != settings[option]}


@needs_hydra
@pytest.mark.slow
@VERL.each_version
def test_hydra_reads_what_is_printed_into_each_configuration_that_has_it(version: str) -> None:
    for config_name in configs(version):
        made = [one for one in as_printed("verl", version) if one[0].is_in(config_name)]
        for group in together(made):
            known = composed(version, config_name, [word for one in group for word in one[2]])
            for setting, settings, _ in group:
                assert differ(known, settings) == {}, (config_name, setting.option)


@needs_hydra
@VERL.each_version
def test_the_default_program_refuses_what_is_of_others(version: str) -> None:
    from hydra.errors import ConfigCompositionException

    for setting, _, words in as_printed("verl", version):
        if not setting.is_in("ppo_trainer"):
            with pytest.raises(ConfigCompositionException):
                composed(version, "ppo_trainer", words)


@needs_hydra
@pytest.mark.slow
def test_hydra_reads_what_is_planned() -> None:
    version = VERL.versions[-1]
    plans = list(as_planned("verl"))
    assert any("trainer.v1.trainer_mode" in settings for settings, _ in plans)
    for settings, words in plans:
        assert differ(composed(version, "ppo_trainer", words), settings) == {}
