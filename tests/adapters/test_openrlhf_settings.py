"""The settings of the playbook's moves in OpenRLHF exist, and are read, in the versions they name.

OpenRLHF's sources are read, never imported (`make test-openrlhf` unpacks them).
"""

from __future__ import annotations

import argparse
import ast
import re
import runpy
import sys
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from rltrace.testing.inside.analysis import WRAP_SYNC, frameworks
from rltrace.testing.inside.plugins import VERSIONS as WITH_SYNC
from rltrace.testing.inside.trace import satisfies
from tests.adapters.record_options import of_parser
from tests.adapters.settings import (
    Options,
    as_planned,
    as_printed,
    name,
    not_taken,
    settings_file,
    sources_of,
    takes,
)
from tests.adapters.sources import OPENRLHF

SETTINGS: list[dict[str, Any]] = settings_file("openrlhf")["setting"]
OLDER = frameworks()["openrlhf"][0].older
NEW_NAMES = {option for _, names in OLDER for option in names}


def spelled(version: str, option: str) -> str:
    """The name of an option in a version."""
    one = replace(frameworks()["openrlhf"][0], option=option)
    return one.in_version(version).option


def sources(version: str) -> Path:
    return Path(OPENRLHF.folder, version, "openrlhf")


@lru_cache
def options(version: str) -> Options:
    """The options of train_ppo_ray, by the newer ones of their names too, and the one of `rltrace
    wrap`."""
    text = (sources(version) / "cli/train_ppo_ray.py").read_text("utf-8")
    known = {WRAP_SYNC: "flag", **of_parser(text)}
    older = {new: spelled(version, new) for new in NEW_NAMES}
    return known | {new: known[old] for new, old in older.items() if old in known}


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
    is_taken = is_read(spelled(version, option), text)
    if kind is None or not is_taken or setting.get("where", "") not in text:
        return False
    return not kind.startswith("[") or takes(kind, setting["value"])


def test_an_older_name_is_of_an_option_that_a_setting_has_or_needs() -> None:
    used = {setting["option"] for setting in SETTINGS}
    used |= {option for setting in SETTINGS for option in setting.get("needs", {})}
    assert used >= NEW_NAMES


@OPENRLHF.each_version
def test_a_setting_is_there_in_the_versions_that_it_names_and_in_no_other(version: str) -> None:
    """Where it is told twice, because it needs other options then, in the versions of either."""
    named = {name(s) for s in SETTINGS if satisfies(version, s["versions"])}
    assert {name(s) for s in SETTINGS if is_there(version, s)} == named


@OPENRLHF.each_version
def test_an_option_has_the_older_name_before_and_the_newer_one_since(version: str) -> None:
    known = of_parser((sources(version) / "cli/train_ppo_ray.py").read_text("utf-8"))
    for before, names in OLDER:
        others = names.keys() if satisfies(version, f"<{before}") else names.values()
        assert known.keys().isdisjoint(others)


@OPENRLHF.each_version
def test_options_take_the_values_that_settings_give_them(version: str) -> None:
    assert not_taken(SETTINGS, version, lambda setting: options(version)) == []


@lru_cache
def program(version: str) -> CodeType:
    """What train_ppo_ray does before it trains: it parses, and refuses what does not fit, without
    its one import (of `hierarchize`)."""
    tree = ast.parse((sources(version) / "cli/train_ppo_ray.py").read_text("utf-8"))
    main = next(node for node in tree.body if isinstance(node, ast.If))
    body = [node for node in main.body if not isinstance(node, ast.ImportFrom)]
    return compile(ast.Module(body, []), "train_ppo_ray", "exec")


def read(version: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What OpenRLHF reads of a command line with engines and a reward function, as options."""
    config = sources(version) / "utils/config.py"
    named = runpy.run_path(str(config)) if "hierarchize" in program(version).co_names else {}
    names = ("--reward.remote_url", "--vllm.num_engines")
    reward, engines = (spelled(version, one) for one in names)
    words = [reward, "reward.py", engines, "1", *words]
    trained: list[object] = []
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *words])
    found = {**named, "argparse": argparse, "datetime": datetime, "train": trained.append}
    exec(program(version), found)
    assert len(trained) == 1
    return {f"--{key}": value for key, value in vars(found["parser"].parse_args(words)).items()}


@OPENRLHF.each_version
def test_its_own_parser_reads_what_is_printed(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting, settings, words in as_printed("openrlhf", version):
        known = read(version, words, monkeypatch)
        assert {option: known[option] for option in settings} == settings, setting.option


@OPENRLHF.needed
def test_its_own_parser_reads_what_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    version = OPENRLHF.versions[-1]
    plans = list(as_planned("openrlhf"))
    assert any("--train.async_enable" in settings for settings, _ in plans)
    for settings, words in plans:
        known = read(version, words, monkeypatch)
        assert {option: known[option] for option in settings} == settings
