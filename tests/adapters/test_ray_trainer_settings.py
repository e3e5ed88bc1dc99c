"""The settings of the playbook's moves in the built-in trainer exist there and are read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.trainer import TrainerConfig
from tests.adapters.settings import asked, name, settings_file, sources_of

DEFAULTS = {field.name: field.default for field in dataclasses.fields(TrainerConfig)}


@pytest.mark.parametrize("setting", settings_file("ray_trainer")["setting"], ids=name)
def test_the_trainer_takes_it_and_reads_it(setting: dict[str, Any]) -> None:
    option = setting["option"]
    assert option in DEFAULTS
    assert f".{option}" in sources_of(Path(rltrace.__file__).parent / "trainer", setting)
    settings = asked(setting)
    read = TrainerConfig.of(settings)
    assert {name: getattr(read, name) for name in settings} == settings
