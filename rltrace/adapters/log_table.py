"""What a framework's log is made of, and the tables that say it (docs/reference/adapters.md)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

from rltrace.trace.untrusted_files import packaged_tables
from rltrace.trace.vocabulary import Stage

_MOST = 1 << 31
_MOST_NS = 1 << 62  # so that two of them can be added
_MOST_LANES = 1 << 63
_NUMBER = re.compile(r"[0-9]{1,9}")
_NUMBERED = re.compile(r"#([0-9]{1,9})$")
ELAPSED_S = "progress/elapsed_s"  # by the bar beside a record, where that tells its step


@dataclass
class LogRecord:
    """Numbers that were logged for one step. `real_ns` is when (Unix ns), None where the log does
    not say. `metrics` are finite; NaN and infinity stand apart. `steps` is over how many steps, up
    to this one, the numbers are means."""

    step: int
    metrics: dict[str, float]
    real_ns: int | None = None
    not_finite: dict[str, float] = field(default_factory=dict, compare=False)
    steps: int = 1

    @property
    def readings(self) -> dict[str, float]:
        return {**self.metrics, **self.not_finite}


@dataclass(frozen=True)
class Told:
    """What a log tells: its trainer's name, placement and version ("" for unknown), the timers of a
    step, metric -> stage, and what the log or a metric does not say. `previous`: it logs the length
    of the step before."""

    trainer: str = ""
    placement: str = ""
    version: str = ""
    inside: Mapping[str, str] = field(default_factory=dict)
    aside: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)
    holds: Mapping[str, list[str]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)
    previous: bool = False

    @property
    def timers(self) -> Mapping[str, Stage]:
        every = {**self.inside, **self.aside, **self.after}
        return {name: Stage[stage.upper()] for name, stage in every.items()}


@dataclass(frozen=True)
class LoggedProcess:
    """A process of the job, as far as the log tells; `rank` is None where it does not."""

    name: str
    role: str = ""
    host: str = ""
    rank: int | None = None


@dataclass(frozen=True)
class PlacedSpan:
    """Times are Unix ns, `step` is -1 where it is not known."""

    process: LoggedProcess
    lane: int
    name: str
    stage: Stage
    start_ns: int
    end_ns: int
    step: int = -1


@dataclass(frozen=True)
class PlacedRow:
    """A row of another table of a process."""

    process: LoggedProcess
    table: str
    columns: Mapping[str, int]


@dataclass(frozen=True)
class SpanNames:
    """What the spans of a log are: name -> stage (`"step"`: a learner step), where `*` and `?`
    stand for anything. `steps` are the attributes that may hold a step's number, `roles` the roles
    of processes by name."""

    stages: Mapping[str, str]
    framework: str = "trace"
    placement: str = ""
    steps: tuple[str, ...] = ("step", "global_step")
    roles: Mapping[str, str] = field(default_factory=dict)

    def stage_of(self, name: str) -> Stage | None:
        """The stage of a span, None for one that is left out."""
        found = self.stages.get(name) or _matching(self.stages, name)
        return Stage[found.upper()] if found else None

    def role_of(self, process: str) -> str:
        return self.roles.get(process) or _matching(self.roles, process) or ""

    def step_of(self, attributes: Mapping[str, object], name: str = "") -> int:
        """The step that a span's attributes state, or, after `#`, its name; -1 for none."""
        for key in self.steps:
            value = attributes.get(key)
            if isinstance(value, str) and _NUMBER.fullmatch(value):
                value = int(value)
            number = whole(value)
            if number is not None:
                return number
        numbered = _NUMBERED.search(name)
        return int(numbered[1]) if numbered else -1


def _matching(patterns: Mapping[str, str], name: str) -> str | None:
    return next((v for pattern, v in patterns.items() if fnmatchcase(name, pattern)), None)


# --- the tables


@cache
def log_tables() -> dict[str, dict[str, Any]]:
    """Framework -> its table, of those whose logs can be read."""
    return {table["framework"]: table for table in packaged_tables("adapters/*/log.toml")}


def table_of(framework: str) -> dict[str, Any]:
    """The table by whose names a framework logs: its own, or that of the one that it is like."""
    own = log_tables()[framework]
    return log_tables()[own["like"]] if "like" in own else own


def name_of(framework: str) -> str:
    """A framework's name in prose."""
    return str(log_tables().get(framework, {}).get("name", framework))


@cache
def code_of(framework: str, function: str) -> Any:
    """A function of the framework's `log.py`, or of the one's that it is like; None for none."""
    for one in (framework, log_tables()[framework].get("like")):
        folder = str(one).replace("-", "_")
        if files("rltrace").joinpath(f"adapters/{folder}/log.py").is_file():
            module = import_module(f"rltrace.adapters.{folder}.log")
            if (found := getattr(module, function, None)) is not None:
                return found
    return None


# --- numbers of a log as columns of a trace can hold them


def whole(value: object) -> int | None:
    """A step's or a rank's number: a whole one, not negative, of 31 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    fits = 0 <= value < _MOST and value == int(value)
    return int(value) if fits else None


def ns(value: object, unit_ns: float = 1e9) -> int | None:
    """A time or a length, in units of so many ns, as ns."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -_MOST_NS < value < _MOST_NS or not -_MOST_NS < value * unit_ns < _MOST_NS:
        return None  # NaN, too
    return round(value * unit_ns)


def is_real_ns(time_ns: int) -> bool:
    """Whether it is a Unix time that a trace can hold."""
    return 0 < time_ns < _MOST_NS


def is_time(value: float) -> bool:
    """Whether a clock can have shown so many seconds."""
    return 0 <= value < 1e8


def lane_of(thread: object) -> int:
    """A lane for whatever a log calls its threads."""
    if isinstance(thread, int) and not isinstance(thread, bool) and abs(thread) < _MOST_LANES:
        return thread
    return zlib.crc32(str(thread).encode("utf-8", "backslashreplace"))


def has(records: Iterable[LogRecord], *names: str) -> bool:
    """Whether there is one of the metrics; in their names `*` stands for anything."""
    every = {name for record in records for name in record.metrics}
    return any(fnmatchcase(metric, name) for name in names for metric in every)


def is_beside(names: Iterable[str], table: Mapping[str, Any]) -> bool:
    """Whether all of these are an evaluation's, which is no step (`beside` of a log table)."""
    beside = tuple(table.get("beside", ()))
    return bool(beside) and all(name.startswith(beside) for name in names)


def times_of(records: Iterable[LogRecord], name: str) -> list[float]:
    """A timer's usable readings, in seconds."""
    found = [record.metrics[name] for record in records if name in record.metrics]
    return [value for value in found if is_time(value)]
