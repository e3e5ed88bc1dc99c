"""The settings of a job: stated, differing, or changed in its command.

How a framework takes them is data: the table `command` of its `settings.toml`.
An option that stands already is replaced, else it goes to the end, where every framework takes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from rltrace.analysis.fixes.playbook import WRAP_SYNC, frameworks
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage, did_you_mean
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_tables

PAIRS = "option=value"


@dataclass(frozen=True)
class CommandForm:
    """How a framework's command line takes settings. `form` is `--option value` or `option=value`;
    `dashes`: options are flags with dashes for underscores, and booleans have a `--no-` flag;
    `names` are options that the command line calls otherwise. `outputs` are options that name what
    a job writes, "if given" or "always". `states_all`: the job writes all of its settings down."""

    form: str
    dashes: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    states_all: bool = False

    def word(self, option: str) -> str:
        if not self.dashes:
            return option
        return "--" + self.names.get(option, option).replace("_", "-")


@cache
def forms() -> Mapping[str, CommandForm]:
    told = [data for data in packaged_tables("adapters/*/settings.toml") if "command" in data]
    return {data["framework"]: CommandForm(**data["command"]) for data in told}


def form_of(framework: str) -> CommandForm:
    """The form of a framework. Errors: `RltraceError` where its command line takes none."""
    if framework not in forms():
        known = ", ".join(sorted(forms()))
        name = framework or "a job of an unknown framework"
        raise RltraceError(
            f"how {name} takes settings on its command line is not known (known: {known}): run it "
            "under `rltrace wrap --out DIR` with the change and without, and ask `rltrace compare "
            "BEFORE AFTER`",
            CANNOT_TELL,
        )
    return forms()[framework]


def with_settings(
    command: Sequence[str], form: CommandForm, settings: Mapping[str, Any]
) -> list[str]:
    words, change = list(command), _pair if form.form == PAIRS else _flag
    for option, value in settings.items():
        words = change(words, form, option, value)
    return words


def given(command: Sequence[str], form: CommandForm, option: str) -> str | None:
    """What the command sets an option to, as text; None where it does not, "" for a bare flag."""
    name = form.word(option)
    if form.form == PAIRS:
        found = [w.partition("=")[2] for w in command if _key(w) == option.lstrip("+")]
        return found[-1] if found else None
    for place in range(len(command) - 1, -1, -1):
        word, equals, value = command[place].partition("=")
        if word == name:
            if equals:
                return value
            after = command[place + 1 : place + 2]
            return after[0] if after and not after[0].startswith("--") else ""
    return None


def refuse_unknown(
    settings: Mapping[str, Any], form: CommandForm, stated: Mapping[str, Any]
) -> None:
    """Errors: `RltraceError` for an option that is not among those that the job wrote down."""
    if not form.states_all or not stated:
        return
    known = stated.keys() | form.outputs.keys()
    shorter = {short: name for name, short in form.names.items()}
    for option in settings:
        if option not in known:
            said = shorter.get(option, option.replace("-", "_"))
            near = did_you_mean(said, *sorted(known))
            raise WrongUsage(f"the job has no setting {option!r}{near}")


def elsewhere(form: CommandForm, command: Sequence[str], folder: str) -> dict[str, str]:
    """Settings that let the job write into `folder` what it would write where it did before."""
    moved = {}
    for option, when in form.outputs.items():
        named = given(command, form, option)
        if named or when == "always":
            last = option.lstrip("-").split(".")[-1]
            moved[option] = f"{folder}/{last}{PurePosixPath(named or '').suffix}"
    return moved


def _key(word: str) -> str:
    """The key of a Hydra override: `++a.b=1` has `a.b`; none where it is no override."""
    key, equals, _ = word.partition("=")
    return key.lstrip("+") if equals and not key.startswith("-") else ""


def _pair(words: list[str], form: CommandForm, option: str, value: Any) -> list[str]:
    key = option.lstrip("+")
    before = [word for word in words if _key(word) == key]
    named = before[-1].partition("=")[0] if before else option
    kept = [word for word in words if word not in before]
    return [*kept, f"{named}={_text(value)}"]


def _flag(words: list[str], form: CommandForm, option: str, value: Any) -> list[str]:
    name = form.word(option)
    opposite = f"--no-{name[2:]}"
    kept: list[str] = []
    skipping = False
    for word in words:
        if word in (name, opposite) or word.startswith(f"{name}="):
            skipping = word == name and not isinstance(value, bool)
        elif skipping and not word.startswith("--"):
            skipping = isinstance(value, list)
        else:
            skipping = False
            kept.append(word)
    if value is True:
        return [*kept, name]
    if value is False:
        return [*kept, opposite] if form.dashes else kept
    return [*kept, name, *map(_text, value if isinstance(value, list) else [value])]


def _text(value: Any) -> str:
    return f"[{','.join(map(_text, value))}]" if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Difference:
    """A setting, or a fact about device or program; None: not stated."""

    name: str
    before: Any
    after: Any


def settings_that_differ(first: OpenedRun, second: OpenedRun) -> tuple[Difference, ...]:
    """What the job states of itself, and else the words of its command that only one run has."""
    stated = [stated_settings(run) for run in (first, second)]
    if all(stated):
        return differing(*stated)
    words = [[str(w) for w in run.meta.get("command") or ()] for run in (first, second)]
    only = [[w for w in mine if w not in other] for mine, other in (words, words[::-1])]
    return (Difference("command", *map(" ".join, only)),) if any(only) else ()


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Difference, ...]:
    """What the two state differently, or only one of them."""
    both = (Difference(name, before.get(name), after.get(name)) for name in {**before, **after})
    return tuple(one for one in both if one.before != one.after)


# --- the settings that a run has already: as its processes state them, else as its command gives
# them. That may be a script which adds options of its own, so the command line of the framework's
# own program comes before it.


def current_settings(run: OpenedRun, framework: str, version: str) -> Mapping[str, Any]:
    """The values of all that processes state, of those options of the playbook that a command line
    gives, and of how the job was wrapped. An option that is not in it has an unknown value: a
    default, or one of a file."""
    found: dict[str, Any] = {}
    if (run.meta.get("settings") or {}).get("sync"):
        found[WRAP_SYNC] = True
    imported = run.meta.get("imported")
    if isinstance(imported, dict) and isinstance(shown := imported.get("settings"), dict):
        found |= shown
    for words in _command_lines(run, framework):
        found |= settings_shown(framework, version, words, {})
    return {**found, **stated_settings(run)}


def settings_shown(
    framework: str, version: str, words: Sequence[str], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Those options of the playbook that the words of a command line give, else that are among the
    values of a configuration."""
    if (form := forms().get(framework)) is None:
        return {}
    settings = [one.in_version(version) for one in frameworks()[framework]]
    found: dict[str, Any] = {}
    for option in sorted({option for one in settings for option in (one.option, *one.needs)}):
        if (text := given(words, form, option)) is not None:
            found[option] = _value(text)
        elif option.lstrip("+") in values:
            found[option] = values[option.lstrip("+")]
    return found


def stated_settings(run: OpenedRun) -> Mapping[str, Any]:
    """All settings with a value, as the first process states them that does."""
    stated = (process.facts.get("settings") for process in run.processes)
    return next((settings for settings in stated if isinstance(settings, dict)), {})


def _command_lines(run: OpenedRun, framework: str) -> list[list[str]]:
    """The later override the earlier ones."""
    own = [p for p in run.processes if p.adapter == framework and not p.role and not p.child_of]
    lines = [run.meta.get("command"), *(process.facts.get("argv") for process in own)]
    return [[str(word) for word in line] for line in lines if isinstance(line, list)]


def _value(text: str) -> Any:
    """A word of a command line as the value that it stands for; a bare flag is true."""
    plain = text.strip("'\"")
    if plain.lower() in ("", "true", "false"):
        return plain.lower() != "false"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return plain
