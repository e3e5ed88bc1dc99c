"""The settings that a run has already: as its processes state them, else as its command gives them.

The command that was traced may be a script which adds options of its own, so the command line of
the framework's own program comes before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rltrace.analysis.command_form import forms, given
from rltrace.analysis.playbook import WRAP_SYNC, frameworks

if TYPE_CHECKING:
    from rltrace.trace.run import Run


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
