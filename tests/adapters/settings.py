"""What a file of settings holds, and how its options are held to the framework's own."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rltrace
from rltrace.testing.inside.trace import satisfies

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Setting = dict[str, Any]
Options = dict[str, str]
"""Those that a version of a framework knows, with their kinds."""


FOLDER = Path(rltrace.__file__).parent / "adapters"


def settings_files() -> list[str]:
    """The folders of all frameworks that have settings."""
    return sorted(file.parent.name for file in FOLDER.glob("*/settings.toml"))


def settings_file(stem: str) -> dict[str, Any]:
    """What a file of settings holds: a list of them under `setting`, with what holds for all."""
    found = tomllib.loads((FOLDER / stem / "settings.toml").read_text("utf-8"))
    for setting in found["setting"]:
        setting.setdefault("versions", "")
        setting.setdefault("source", found.get("source"))
    return found


def plain(option: str) -> str:
    """An option without the signs by which Hydra takes a key that a configuration lacks."""
    return option.lstrip("+")


def name(setting: Setting) -> str:
    return f"{setting['option']}={setting['value']}"


def takes(kind: str, value: Any) -> bool:
    """Whether an option of a kind takes a value."""
    if kind == "any":
        return True
    if kind.startswith("["):
        return value in ast.literal_eval(kind)
    if kind == "floats":
        return isinstance(value, list) and all(isinstance(one, float) for one in value)
    kinds: dict[str, tuple[type, ...]] = {
        "flag": (bool,), "bool": (bool,), "int": (int,), "float": (int, float), "str": (str,),
    }  # fmt: skip
    is_bool = kind in ("flag", "bool")
    return isinstance(value, kinds.get(kind, ())) and isinstance(value, bool) == is_bool


def not_taken(
    settings: Sequence[Setting], version: str, known: Callable[[Setting], Options]
) -> list[str]:
    """The values of settings, and of what they need, that a version's options do not take, or
    that it has no option for; `known` are the options of a setting's configuration."""
    return [
        f"{name(setting)}: {option}={value}"
        for setting in settings
        if satisfies(version, setting["versions"])
        for option, value in (
            (setting["option"], setting["value"]),
            *setting.get("needs", {}).items(),
        )
        if not takes(known(setting).get(plain(option), "none"), value)
    ]


def sources_of(folder: Path, setting: Setting) -> str:
    """The text of the files that read an option, as far as the version in `folder` has them."""
    files = [file for source in setting["source"] for file in folder.rglob(source)]
    return "\n".join(file.read_text("utf-8") for file in files)
