"""The settings of the playbook's moves in verl exist, and are read, in the versions they name.

verl's sources are read, never imported (`make test-verl` unpacks them).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from rltrace.testing.inside.trace import satisfies
from tests.adapters.record_options import of_yaml
from tests.adapters.settings import Options, name, not_taken, plain, settings_file, sources_of
from tests.adapters.sources import VERL

SETTINGS: list[dict[str, Any]] = settings_file("verl")["setting"]
PLUG_INS = {"rltrace": "verl.plugins"}
"""Values that verl has from a plug-in, and how it loads that."""


@lru_cache
def config(version: str, config_name: str) -> Options:
    """The options of a configuration; a number is of either kind in YAML."""
    verl = Path(VERL.folder, version, "verl")
    files = [verl / f"trainer/config/_generated_{config_name}.yaml"]
    files += (verl / "experimental").glob(f"*/config/{config_name}.yaml")
    found = [of_yaml(file.read_text("utf-8")) for file in files if file.exists()]
    kinds = found[0] if found else {}
    return {option: "float" if kind == "int" else kind for option, kind in kinds.items()}


def known(version: str, setting: dict[str, Any]) -> Options:
    """Those of the configuration of a setting; what a setting adds is of any kind."""
    found = config(version, setting.get("config", "ppo_trainer"))
    option = setting["option"]
    return {**found, plain(option): "any"} if option.startswith("+") else found


def is_there(version: str, setting: dict[str, Any]) -> bool:
    """Whether a version knows an option, reads it, and takes the word that it is set to."""
    option, value = setting["option"], setting["value"]
    found = config(version, setting.get("config", "ppo_trainer"))
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
    wrong = [s for s in SETTINGS if is_there(version, s) != satisfies(version, s["versions"])]
    assert [name(setting) for setting in wrong] == []


@VERL.each_version
def test_options_take_the_values_that_settings_give_them(version: str) -> None:
    assert not_taken(SETTINGS, version, lambda setting: known(version, setting)) == []
