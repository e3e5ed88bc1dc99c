"""What a file of settings holds, and how its options are held to the framework's own."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rltrace
from rltrace.testing.inside.analysis import (
    WRAP_SYNC,
    FrameworkSetting,
    catalogue,
    form_of,
    frameworks,
    launch,
    plan,
    playbook_moves,
    printed,
    read_workload,
    set_to,
    spec_of,
    with_settings,
)
from rltrace.testing.inside.trace import satisfies

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Setting = dict[str, Any]
Options = dict[str, str]
"""Those that a version of a framework knows, with their kinds."""


WORKLOADS = Path(__file__).parents[2] / "examples" / "workloads"
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


MOVED = {"lag_bound": "3", "tail_cap": "1000"}
"""What levers are moved to where the run tells that: versions, tokens."""
_HAS = 4  # what the job has of all that is set to so many times that


def worked_out(wall: str, move: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What options are set to in a job that has 4 of everything."""
    (made,) = [one for one in playbook_moves() if (one.wall, one.move) == (wall, move)]
    moved = MOVED.get(made.lever, made.value)
    return {o: set_to(o, value, moved, dict.fromkeys(values, _HAS)) for o, value in values.items()}


def asked(setting: Setting) -> dict[str, Any]:
    """All options that a setting sets, and to what."""
    values = {setting["option"]: setting["value"]}
    values |= setting.get("needs", {}) | setting.get("exactly", {})
    return worked_out(setting["wall"], setting["move"], values)


def as_printed(
    framework: str, version: str
) -> Iterator[tuple[FrameworkSetting, dict[str, Any], list[str]]]:
    """Each setting of a version, what it sets, and the words that are printed for that."""
    for one in frameworks()[framework]:
        if satisfies(version, one.versions):
            made = one.in_version(version)
            values = {made.option: made.value, **made.needs, **made.exactly}
            settings = worked_out(made.wall, made.move, values)
            words = shlex.split(printed(framework, settings))
            if made.option != WRAP_SYNC:
                assert words == with_settings([], form_of(framework), settings)
                yield made, settings, words


def as_planned(framework: str) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """What the plans of the example workloads set, and the words that are printed for that."""
    for path in sorted(WORKLOADS.glob("*.toml")):
        made = plan(spec_of(read_workload(path), str(path)))
        for entry in catalogue():
            if entry.adapter == framework:
                settings = {one.option: one.value for one in launch(made, entry)}
                words = [printed(framework, {o: value}) for o, value in settings.items()]
                yield settings, shlex.split(" ".join(words))


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
        for option, value in asked(setting).items()
        if not takes(known(setting).get(plain(option), "none"), value)
    ]


def sources_of(folder: Path, setting: Setting) -> str:
    """The text of the files that read an option, as far as the version in `folder` has them."""
    files = [file for source in setting["source"] for file in folder.rglob(source)]
    return "\n".join(file.read_text("utf-8") for file in files)
