"""The settings of a job: stated, differing, or changed in its command.

How a framework takes them is data: the table `command` of its `settings.toml`.
An option that stands already is replaced, else it goes to the end, where every framework takes it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any

from rltrace.analysis.fixes.playbook import WRAP_SYNC, frameworks
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage, did_you_mean
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_tables

PAIRS, FLAGS, FILE = "option=value", "--option value", "option: value"


@dataclass(frozen=True)
class CommandForm:
    """How a framework takes settings. `form`: `--option value`, `option=value`, or `option: value`
    in a file of the job, where the command takes none. `dashes`: options are flags with dashes for
    underscores. `off` is how a flag is switched off: a prefix for its dashes, or a word behind it
    (empty: it is left out). `names` are options that the command line calls otherwise; `outputs`
    name what a job writes, "if given" or "always". `states_all`: the job writes all of its settings
    down. `programs`: a configuration -> the program that reads it, the default one first;
    `trainers`: a trainer, as its log table calls it -> the configuration that it has."""

    form: str
    dashes: bool = False
    off: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    states_all: bool = False
    programs: Mapping[str, str] = field(default_factory=dict)
    trainers: Mapping[str, str] = field(default_factory=dict)

    def word(self, option: str) -> str:
        if not self.dashes:
            return option if self.form != FLAGS or option.startswith("-") else f"--{option}"
        return "--" + self.names.get(option, option).replace("_", "-")

    def words(self, option: str, value: Any) -> list[str]:
        """A setting as words of a command line; none for a flag that is left out."""
        name = self.word(option)
        if self.form == PAIRS:
            return [f"{option}={_text(value)}"]
        if value is True:
            return [name]
        if value is False:
            prefixed = self.off.startswith("--")
            return [self.off + name[2:]] if prefixed else [name, self.off] if self.off else []
        return [name, *map(_text, value if isinstance(value, list) else [value])]

    def line(self, settings: Mapping[str, Any]) -> Iterator[str]:
        """Settings as a person types them."""
        for option, value in settings.items():
            if option == WRAP_SYNC:
                yield option
            elif self.form == FILE:
                yield f"{option}: {_text(value)}"
            else:
                yield shlex.join(self.words(option, value)) or f"no {self.word(option)}"


@cache
def forms() -> Mapping[str, CommandForm]:
    """By the name of a framework, and by what runs made of its logs call it."""
    found: dict[str, CommandForm] = {}
    for data in packaged_tables("adapters/*/settings.toml"):
        form = CommandForm(**data.get("command", {"form": FILE}))
        found |= dict.fromkeys((data["framework"], *data.get("also", ())), form)
    return found


def form_of(framework: str) -> CommandForm:
    """The form of a framework. Errors: `RltraceError` where its command line takes none."""
    taken = {name: form for name, form in forms().items() if form.form != FILE}
    if framework not in taken:
        known = ", ".join(sorted(taken))
        name = framework or "a job of an unknown framework"
        raise RltraceError(
            f"how {name} takes settings on its command line is not known (known: {known}): run it "
            "under `rltrace wrap --out DIR` with the change and without, and ask `rltrace compare "
            "BEFORE AFTER`",
            CANNOT_TELL,
        )
    return taken[framework]


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
            after = takewhile(lambda one: not one.startswith("--"), command[place + 1 :])
            return ",".join(after)
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
    return [*(word for word in words if word not in before), *form.words(named, value)]


def _flag(words: list[str], form: CommandForm, option: str, value: Any) -> list[str]:
    name = form.word(option)
    kept: list[str] = []
    skipping = False
    for word in words:
        if word in (name, f"--no-{name[2:]}") or word.startswith(f"{name}="):
            skipping = word == name and (not isinstance(value, bool) or form.off == "false")
        elif skipping and not word.startswith("--"):
            skipping = isinstance(value, list)
        else:
            skipping = False
            kept.append(word)
    return [*kept, *form.words(option, value)]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    stated = stated_settings(run)
    return {**found, **settings_shown(framework, version, (), stated), **stated}


def configuration(run: OpenedRun, framework: str, current: Mapping[str, Any]) -> str:
    """The one that the job's program reads, as its command tells; else one that has the options
    which the job is known to have; else the default one. Empty where a framework has one alone."""
    for words in reversed(_command_lines(run, framework)):
        if told := named_configuration(framework, words):
            return told
    imported = run.meta.get("imported")
    form = forms().get(framework, CommandForm(FILE))
    if isinstance(imported, dict):
        by_trainer = form.trainers.get(str(imported.get("trainer")), "")
        if told := str(imported.get("config") or by_trainer):
            return told
    default, *others = form.programs or [""]
    known = [one.config for one in frameworks().get(framework, ()) if one.option in current]
    apart = [configs for configs in known if configs and default not in configs]
    most = max(others, key=lambda name: sum(name in configs for configs in apart), default="")
    return most if any(most in configs for configs in apart) else default


def named_configuration(framework: str, words: Sequence[str]) -> str:
    """The configuration that a command line names, where its options are known, or that its program
    reads; empty: neither."""
    if framework not in forms():
        return ""
    known = {name for one in frameworks()[framework] for name in one.config}
    for place, word in enumerate(words):
        option, _, name = word.partition("=")
        name = name or "".join(words[place + 1 : place + 2])
        if option in ("--config-name", "-cn") and name in known:
            return name
    told = {word.removesuffix(".py").replace("/", ".") for word in words if "." in word}
    for _, older in frameworks()[framework][0].older:
        told |= {new.rpartition(" ")[2] for new, old in older.items() if old.split()[-1] in told}
    programs = forms()[framework].programs.items()
    return next((name for name, program in programs if told & {*program.split()}), "")


def settings_shown(
    framework: str, version: str, words: Sequence[str], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Those options of the playbook that the words of a command line give, else that are among the
    values of a configuration."""
    if (form := forms().get(framework)) is None:
        return {}
    settings = [one.in_version(version) for one in frameworks()[framework]]
    found: dict[str, Any] = {}
    options = {o for s in settings for o in (s.option, *s.needs, *s.exactly, *s.only)}
    for option in sorted(options):
        if (text := given(words, form, option)) is not None:
            found[option] = value_of(text)
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


def value_of(text: str) -> Any:
    """A word of a command line as the value that it stands for: a bare flag is true, numbers with
    commas between them are a list."""
    plain = text.strip("'\"")
    if plain.lower() in ("", "true", "false"):
        return plain.lower() != "false"
    parts = plain.strip("[]").split(",")
    for kind in (int, float):
        with suppress(ValueError):
            numbers = [kind(part) for part in parts]
            return numbers if len(numbers) > 1 or plain[0] == "[" else numbers[0]
    return plain
