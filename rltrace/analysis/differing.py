"""What a run was told to do and on what, and where two runs differ in that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rltrace.analysis.command_form import forms, given
from rltrace.analysis.playbook import WRAP_SYNC, frameworks
from rltrace.trace.run import Run


@dataclass(frozen=True)
class Difference:
    """A setting, or a fact about device or program; None: not stated."""

    name: str
    before: Any
    after: Any


def settings_that_differ(first: Run, second: Run) -> tuple[Difference, ...]:
    """What the job states of itself, and else the words of its command that only one run has."""
    stated = [stated_settings(run) for run in (first, second)]
    if all(stated):
        return differing(*stated)
    words = [[str(w) for w in run.meta.get("command") or ()] for run in (first, second)]
    only = [[w for w in mine if w not in other] for mine, other in (words, words[::-1])]
    if only[0] or only[1]:
        return (Difference("command", " ".join(only[0]), " ".join(only[1])),)
    return ()


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Difference, ...]:
    """What the two state differently, or only one of them."""
    names = dict.fromkeys([*before, *after])
    return tuple(
        Difference(name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    )


# --- the settings that a run has already: as its processes state them, else as its command gives
# them. The command that was traced may be a script which adds options of its own, so the command
# line of the framework's own program comes before it.


def current_settings(run: Run, framework: str, version: str) -> Mapping[str, Any]:
    """The values of all that processes state, of those options of the playbook that a command line
    gives, and of how the job was wrapped. An option that is not in it has an unknown value: a
    default, or one of a file."""
    found: dict[str, Any] = {}
    if (run.meta.get("settings") or {}).get("sync"):
        found[WRAP_SYNC] = True
    form = forms().get(framework)
    if form is not None:
        settings = [one.in_version(version) for one in frameworks()[framework]]
        options = {option for one in settings for option in (one.option, *one.needs)}
        for words in _command_lines(run, framework):
            for option in options:
                text = given(words, form, option)
                if text is not None:
                    found[option] = _value(text)
    return {**found, **stated_settings(run)}


def stated_settings(run: Run) -> Mapping[str, Any]:
    """All settings with a value, as the first process states them that does; empty where none
    does."""
    stated = (process.facts.get("settings") for process in run.processes)
    return next((settings for settings in stated if isinstance(settings, dict)), {})


def _command_lines(run: Run, framework: str) -> list[list[str]]:
    """The later override the earlier ones."""
    programs = [
        process.facts.get("argv")
        for process in run.processes
        if process.adapter == framework and not process.role and not process.child_of
    ]
    lines = [run.meta.get("command"), *programs]
    return [[str(word) for word in line] for line in lines if isinstance(line, list)]


def _value(text: str) -> Any:
    """A word of a command line as the value that it stands for; a bare flag is true."""
    plain = text.strip("'\"").lower()
    if plain in ("", "true", "false"):
        return plain != "false"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")
