"""What is done against each wall, and each framework's settings for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from rltrace.trace.read.framework_figure import may_satisfy, satisfies
from rltrace.trace.untrusted_files import packaged_tables


@dataclass(frozen=True)
class Move:
    """One thing to do against a wall, an entry of `rltrace/analysis/data/moves`.

    `stage`: the one that it changes; where that was not seen there is nothing to do (empty: any).
    `lever` predicts it, of `whatif` or "samples" (empty: nothing does, and `no_number` says why);
    `value` is what to try on it, `size` how far that is, in words (empty: its number, if any).
    `effort` 1 is one option, 2 several, or devices, 3 another program, model or service. `saves`,
    of a weight update: "bytes" (fewer travel, or faster) or "pieces" (they travel in fewer).
    `settings_of`: the wall under which frameworks' settings have it (empty: its own). `less`: what
    a number should be is at most that of its setting. `watch`: what to look at after it. Gains that
    `source` publishes are no prediction for this run."""

    wall: str
    move: str
    effort: int
    risk: str
    watch: str
    source: str
    lever: str = ""
    value: str = ""
    stage: str = ""
    size: str = ""
    settings_of: str = ""
    no_number: str = ""
    saves: str = ""
    less: bool = False

    @property
    def is_amount(self) -> bool:
        """Whether its lever is moved by a number, of which an option may be more or less."""
        return self.lever == "lag_bound" or self.value[1:].isdigit()


WRAP_SYNC = "rltrace wrap --sync"
"""The option of a setting that is none of the framework's, but of how its job is wrapped."""

PREDICTED = "as predicted"
"""The value of an option that follows a move's lever: so many times what it is, or its number."""


@dataclass(frozen=True)
class FrameworkSetting:
    """An option of a framework that makes a move: an entry of a `settings.toml`, whose keys verl's
    explains. `older` are names of options and programs before a version. `program`: the one
    that reads it. `if_in`: the versions that have it, where the job's may be another."""

    wall: str
    move: str
    option: str
    value: Any
    effect: str
    config: tuple[str, ...] = ()
    where: str = ""
    needs: Mapping[str, Any] = field(default_factory=dict)
    exactly: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    span: tuple[str, ...] = ()
    less: bool = False
    follows: bool = True
    older: tuple[tuple[str, Mapping[str, str]], ...] = ()
    versions: str = ""
    source: tuple[str, ...] = ()
    program: str = ""
    if_in: str = ""

    def is_of(self, stated: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
        """Whether a run that states all its settings (empty: it does not) has the option, and a run
        is not known to lack what the option needs to do anything. The recorder's own options are
        stated nowhere."""
        if any(current.get(k, None if stated else v) != v for k, v in self.only.items()):
            return False
        if not stated or self.where or self.option == WRAP_SYNC:
            return True
        above = self.option.lstrip("+").rpartition(".")[0]  # there a "+" puts what is not there
        added = self.option[0] == "+" and any(one.startswith(f"{above}.") for one in stated)
        return added or self.option in stated

    def is_reached(self, now: Any) -> bool:
        """Whether what the option is now serves as well as its value, or better."""
        both = now, self.value
        if all(isinstance(one, int | float) and not isinstance(one, bool) for one in both):
            return bool(now <= self.value if self.less else now >= self.value)
        return bool(now == self.value)

    def is_in(self, config: str) -> bool:
        return not self.config or config in self.config

    def in_version(self, version: str) -> FrameworkSetting:
        """The setting by the names that its options have in a version."""
        if not version:
            return self
        option, needs, exactly = self.option, dict(self.needs), dict(self.exactly)
        program, versions = self.program, self.versions
        for before, names in self.older:
            if satisfies(version, f"<{before}"):
                option, program = (names.get(one, one) for one in (option, program))
                needs, exactly = (
                    {names.get(k, k): v for k, v in a.items()} for a in (needs, exactly)
                )
            elif not names.keys().isdisjoint((option, program, *needs, *exactly)):
                versions = f">={before}"
        named = replace(self, option=option, needs=needs, exactly=exactly, program=program)
        return replace(named, versions=versions)


@cache
def moves() -> tuple[Move, ...]:
    files = packaged_tables("analysis/data/moves/*.toml")
    return tuple(Move(wall=data["wall"], **entry) for data in files for entry in data["move"])


@cache
def frameworks() -> Mapping[str, tuple[FrameworkSetting, ...]]:
    """The settings of each framework, by its name and by what runs made of its logs call it."""
    found: dict[str, tuple[FrameworkSetting, ...]] = {}
    for data in packaged_tables("adapters/*/settings.toml"):
        older = tuple(data.get("before", {}).items())
        entries = [_entry(data, entry) for entry in data["setting"]]
        settings = tuple(FrameworkSetting(**one, older=older) for one in entries)
        found |= dict.fromkeys((data["framework"], *data.get("also", ())), settings)
    return found


def _entry(data: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """A setting, with what a job has where it does something unless it says so: `config` and `only`
    by how its option begins, or one that it needs. One name of several is a tuple, too."""
    options = (entry["option"], *entry.get("needs", ()))
    jobs = data.get("job_of", {}).items()
    told = (job for name, job in jobs if any(one.startswith(name) for one in options))
    whole = {"config": data.get("config", ()), **next(told, {}), **entry}
    names = {"source", "config", "span"} & whole.keys()
    programs = data.get("command", {}).get("programs", {})
    whole["program"] = programs.get(next(iter(whole["config"]), ""), "")
    return whole | {n: (whole[n],) if isinstance(whole[n], str) else tuple(whole[n]) for n in names}


def made_by_settings(move: Move) -> bool:
    key = move.settings_of or move.wall, move.move
    return any((s.wall, s.move) == key for known in frameworks().values() for s in known)


def settings_for(framework: str, version: str, move: Move) -> tuple[FrameworkSetting, ...]:
    """Those that make a move in that version of a framework."""
    key = move.settings_of or move.wall, move.move
    known = [one for one in frameworks().get(framework, ()) if (one.wall, one.move) == key]
    made = (one.in_version(version) for one in known if may_satisfy(version, one.versions))

    def as_far(one: FrameworkSetting) -> bool:
        return one.follows and (one.value == PREDICTED or not move.is_amount)

    def in_job(one: FrameworkSetting) -> FrameworkSetting:
        if_in = "" if satisfies(version, one.versions) else one.versions
        return replace(one, less=one.less or move.less, follows=as_far(one), if_in=if_in)

    return tuple(map(in_job, made))
