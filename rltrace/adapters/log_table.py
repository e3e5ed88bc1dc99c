"""What the log of a framework is made of, and the tables that say it.

A framework's table is `log.toml` in its folder; what no table can say are functions of `log.py`:
`records` (of a log, as its table names them), `tell` (what else they tell) and `spans` (of the JSON
objects of its own trace). They read plain values, and none of them opens a file.

In a table:

  framework  what `rltrace import` calls it; name: in prose, where that is another
  marks      what one of its metrics, and none of another's, begins with
  like       the framework whose names it has kept
  console    how its console prints a step (`importers/formats/console.py` has the shapes)
  labels     what its console calls a metric -> the metric, with the framework's own prefix
  step       metrics with a step's length, in seconds; none: a step is as long as its parts
  previous   (of a trainer) that length is of the step before
  numbers    metrics that state the step's number, where the log's own counts something else
  cut        what stands before its names in some loggers
  rest       stage of what is left of a step beside generation, where only some steps generate
  prefix     what the names of its timers begin with; spans and consoles do without
  complete   it logs each step's length, and a timer where it ran: one that is missing says nothing
  inside     timer -> stage within the step, in the order in which the loop runs them
  after      ... between two steps
  aside      ... of what other processes had done before
  waits_for  timer -> the stage of another process that it waits for
  holds      timer -> those that run within it: what is left of it is its
  unknown    stage -> why no log has it
  figures    metric -> what it does not say by its name
  known      reward, truncated, response_tokens, entropy, lag, longest_generation_s or
             mean_generation_s -> metrics; the first counts
  settings   what to look for in the configuration that a console shows: name -> pattern
  only_rl    what begins one of its metrics where it does more than train, as it then logs alike
  epochs     its console counts steps within each epoch
  beside     what the names of an evaluation's figures begin with, which is no step
  sums       metrics of a record that sums the training up, and is left out
  history    a file that holds the records in an array
  spans      name -> stage, for all that a trace of it is imported of
  objects    JSON objects of its own: `mark` is in the first lines of a file, `files` are names in a
             folder, `what` it is in words, and what is told of the run that is made of them

Of `trainers` the first counts of whose metrics in `with` one is there, none of those in
`without`, and the first of `longer` takes longer than the second. What it has goes before what the
framework's own table has.
"""

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
    """Times are Unix ns, `step` is -1 where it is not known, `more` are other columns."""

    process: LoggedProcess
    lane: int
    name: str
    stage: Stage
    start_ns: int
    end_ns: int
    step: int = -1
    more: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PlacedRow:
    """A row of another table of a process; a text is a name."""

    process: LoggedProcess
    table: str
    columns: Mapping[str, float | str]


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


def times_of(records: Iterable[LogRecord], name: str) -> list[float]:
    """A timer's usable readings, in seconds."""
    found = [record.metrics[name] for record in records if name in record.metrics]
    return [value for value in found if is_time(value)]
