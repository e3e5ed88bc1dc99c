"""The settings of the playbook's moves in the built-in trainer exist there and are read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.trainer import TrainerConfig
from tests.adapters.settings import check_whole, name, settings_file, sources_of

SETTINGS: list[dict[str, Any]] = settings_file("ray_trainer", "rltrace.trainer")["setting"]
DEFAULTS = {field.name: field.default for field in dataclasses.fields(TrainerConfig)}
RULES = ("x2", "x4", "p95", "lag bound")


def test_every_setting_is_whole() -> None:
    check_whole(SETTINGS, {"exactly"}, ("0.1.0",))


def test_no_setting_is_told_twice() -> None:
    told = [(one["wall"], one["option"], one["value"]) for one in SETTINGS]
    assert len(told) == len(set(told))


@pytest.mark.parametrize("setting", SETTINGS, ids=name)
def test_the_trainer_takes_it_and_reads_it(setting: dict[str, Any]) -> None:
    option, value = setting["option"], setting["value"]
    assert option in DEFAULTS
    assert f".{option}" in sources_of(Path(rltrace.__file__).parent / "trainer", setting)
    if value in RULES:
        assert isinstance(DEFAULTS[option], int | float)
    else:
        TrainerConfig.of({option: value, **setting.get("exactly", {})})
