"""The settings of the playbook's moves in OpenRLHF exist, and are read, in the versions they name.

OpenRLHF's sources are read, never imported (`make test-openrlhf` unpacks them).
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from rltrace.testing.inside.analysis import WRAP_SYNC
from rltrace.testing.inside.plugins import VERSIONS as WITH_SYNC
from rltrace.testing.inside.trace import satisfies
from tests.adapters.record_options import of_parser
from tests.adapters.settings import Options, name, not_taken, settings_file, sources_of, takes
from tests.adapters.sources import OPENRLHF

SETTINGS: list[dict[str, Any]] = settings_file("openrlhf")["setting"]
BEFORE: dict[str, str] = settings_file("openrlhf")["before_0_10_2"]


def sources(version: str) -> Path:
    return Path(OPENRLHF.folder, version, "openrlhf")


@lru_cache
def options(version: str) -> Options:
    """The options of train_ppo_ray, by the newer ones of their names too, and the one of `rltrace
    wrap`."""
    text = (sources(version) / "cli/train_ppo_ray.py").read_text("utf-8")
    known = {WRAP_SYNC: "flag", **of_parser(text)}
    return known | {new: known[old] for new, old in BEFORE.items() if old in known}


def is_read(option: str, text: str) -> bool:
    """Whether a text takes the option from the parsed arguments: `args.a.b`, or `getattr(args.a,
    "b", ...)`, and is more than where its default is put in."""
    *groups, last = option.removeprefix("--").split(".")
    held = r"\.".join(["args", *groups])
    taken = re.findall(rf'\b{held}\.{last}\b(?! = )|getattr\([\w.]*{held}, "{last}"', text)
    return bool(taken)


def is_there(version: str, setting: dict[str, Any]) -> bool:
    """Whether a version has an option, reads it where it is said to, and takes its value."""
    option, text = setting["option"], sources_of(sources(version), setting)
    if option == WRAP_SYNC:
        return satisfies(version, WITH_SYNC) and "def broadcast_to_vllm(" in text
    kind = options(version).get(option)
    spelled = BEFORE.get(option, option) if satisfies(version, "<0.10.2") else option
    if kind is None or not is_read(spelled, text) or setting.get("where", "") not in text:
        return False
    return not kind.startswith("[") or takes(kind, setting["value"])


def test_an_older_name_is_of_an_option_that_a_setting_has_or_needs() -> None:
    used = {setting["option"] for setting in SETTINGS}
    used |= {option for setting in SETTINGS for option in setting.get("needs", {})}
    assert set(BEFORE) <= used


@OPENRLHF.each_version
def test_a_setting_is_there_in_the_versions_that_it_names_and_in_no_other(version: str) -> None:
    """Where it is told twice, because it needs other options then, in the versions of either."""
    named = {name(s) for s in SETTINGS if satisfies(version, s["versions"])}
    assert {name(s) for s in SETTINGS if is_there(version, s)} == named


@OPENRLHF.each_version
def test_an_option_has_the_older_name_before_and_the_newer_one_since(version: str) -> None:
    known = of_parser((sources(version) / "cli/train_ppo_ray.py").read_text("utf-8"))
    others = BEFORE.keys() if satisfies(version, "<0.10.2") else BEFORE.values()
    assert known.keys().isdisjoint(others)


@OPENRLHF.each_version
def test_options_take_the_values_that_settings_give_them(version: str) -> None:
    assert not_taken(SETTINGS, version, lambda setting: options(version)) == []
