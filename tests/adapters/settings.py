"""What the settings of every framework have to be, told from their file alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rltrace
from rltrace.testing.inside.analysis import NAMES, OBSERVABILITY
from rltrace.testing.inside.hooks import satisfies

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Setting = dict[str, Any]

WALLS = set(NAMES)
TEXTS = {"wall", "move", "option", "effect", "versions"}


def settings_file(stem: str, framework: str = "") -> dict[str, Any]:
    """What a file of settings holds: a list of them under `setting`. `framework` is the name that
    it has to be of."""
    file = Path(rltrace.__file__).parent / f"adapters/settings/{stem}.toml"
    found = tomllib.loads(file.read_text("utf-8"))
    assert found["framework"] == (framework or found["framework"])
    return found


def plain(option: str) -> str:
    """An option without the signs by which Hydra takes a key that a configuration lacks."""
    return option.lstrip("+")


def name(setting: Setting) -> str:
    return f"{setting['option']}={setting['value']}"


def check_whole(settings: Sequence[Setting], optional: set[str], versions: Sequence[str]) -> None:
    """Each says what it has to, about a wall that there is, and of some version in `versions`."""
    for setting in settings:
        assert setting.keys() - optional == TEXTS | {"value", "source"}, name(setting)
        assert all(isinstance(setting[key], str) for key in TEXTS), name(setting)
        assert setting["wall"] in WALLS, name(setting)
        assert setting["effect"].endswith("."), name(setting)
        assert setting["source"], name(setting)
        assert any(satisfies(version, setting["versions"]) for version in versions), name(setting)


def check_every_wall_has_a_move(settings: Sequence[Setting], without: Sequence[str] = ()) -> None:
    """But those that a framework is said to have no option against, and observability: what it does
    not keep, no option brings back."""
    walls = {setting["wall"] for setting in settings}
    assert walls | {OBSERVABILITY, *without} == WALLS
    assert walls.isdisjoint(without)


def sources_of(folder: Path, setting: Setting) -> str:
    """The text of the files that read an option, as far as the version in `folder` has them."""
    files = [folder / source for source in setting["source"]]
    return "\n".join(file.read_text("utf-8") for file in files if file.exists())
