"""Spans and rows that a log places in time, and their writer."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from rltrace.importers.log_numbers import counted, whole
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.run_dir import NAMES, PROCESS, append_line, write_json
from rltrace.trace.schema import TABLES
from rltrace.trace.segment import TableWriter
from rltrace.trace.untrusted_files import parsed_toml, text_given
from rltrace.trace.vocabulary import STEP_SPAN, Stage

_NUMBER = re.compile(r"[0-9]{1,9}")
_NUMBERED = re.compile(r"#([0-9]{1,9})$")
_Found = TypeVar("_Found")


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
class PlacedEvents:
    spans: tuple[PlacedSpan, ...]
    rows: tuple[PlacedRow, ...] = ()

    @property
    def began_ns(self) -> int:
        return min(span.start_ns for span in self.spans)

    @property
    def ended_ns(self) -> int:
        return max(span.end_ns for span in self.spans)


@dataclass(frozen=True)
class Names:
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


def read_names(path: Path) -> Names:
    """A mapping file. Errors: `RltraceError` for one that cannot be used."""
    try:
        found = parsed_toml(text_given(path))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise WrongUsage(f"{path} cannot be read: {why}") from None
    except ValueError as error:
        raise WrongUsage(f"{path} is no TOML: {error}") from None
    unknown = found.keys() - {"framework", "placement", "steps", "stages", "roles"}
    stages = found.get("stages")
    if unknown or not isinstance(stages, dict) or not stages:
        odd = ", ".join(sorted(unknown))
        what = f"has no {odd}" if unknown else "needs a table [stages]"
        raise WrongUsage(f"{path} is no mapping: a mapping {what}")
    for name, kind, what in (("steps", list, "a list of names"), ("roles", dict, "a table")):
        if not isinstance(found.get(name, kind()), kind):
            raise WrongUsage(f"{path} is no mapping: {name} has to be {what}")
    words = {member.name.lower() for member in Stage}
    for name, stage in stages.items():
        if not isinstance(stage, str) or stage not in words:
            said = f"{path} maps {name!r} to {stage!r}, which is no stage: there are "
            raise WrongUsage(said + ", ".join(sorted(words)))
    return Names(
        stages=stages,
        framework=str(found.get("framework", Names.framework)),
        placement=str(found.get("placement", "")),
        steps=tuple(map(str, found.get("steps", ("step", "global_step")))),
        roles={str(name): str(role) for name, role in found.get("roles", {}).items()},
    )


def mapped(
    path: Path, names: Names, found: Iterable[tuple[str, _Found]]
) -> tuple[list[tuple[Stage, _Found]], tuple[str, ...]]:
    """What has a name that is mapped, and what to say of the rest. Errors: `RltraceError`."""
    kept, left_out = list[tuple[Stage, _Found]](), Counter[str]()
    for name, it in found:
        stage = names.stage_of(name)
        if stage is None:
            left_out[name] += 1
        else:
            kept.append((stage, it))
    if not kept:
        said = f"{path} has none of the names that are mapped; it has {counted(left_out)}"
        raise RltraceError(said)
    said = f"{left_out.total()} spans of names that are not mapped: left out"
    return kept, (said,) if left_out else ()


def numbered(spans: Iterable[PlacedSpan]) -> tuple[PlacedSpan, ...]:
    """The spans by time. If no step has a number, steps are counted from 0 in each process."""
    ordered = sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))
    steps = [span for span in ordered if span.stage == Stage.STEP]
    if any(span.step >= 0 for span in steps):
        return tuple(ordered)
    counts: dict[LoggedProcess, Iterator[int]] = defaultdict(itertools.count)
    return tuple(
        replace(span, step=next(counts[span.process])) if span.stage == Stage.STEP else span
        for span in ordered
    )


def write_placed(path: Path, placed: PlacedEvents, node: str, **facts: object) -> None:
    """Writes a process each into a run directory."""
    writers: dict[LoggedProcess, ProcessWriter] = {}
    began_ns = placed.began_ns
    of = [s.process for s in placed.spans] + [r.process for r in placed.rows]
    for process in dict.fromkeys(of):
        who = f"{node}-{len(writers)}"
        writers[process] = writer = ProcessWriter(path, who)
        rank = {} if process.rank is None else {"rank": process.rank}
        host, role = process.host or node, process.role or process.name
        writer.describe(began_ns, node=node, host=host, role=role, **rank, **facts)
    for span in placed.spans:
        name = STEP_SPAN if span.stage == Stage.STEP else span.name
        known = {"step": span.step, "lane": span.lane, **span.more}
        writers[span.process].span(span.start_ns, span.end_ns, name, span.stage, **known)
    for row in placed.rows:
        writers[row.process].row(row.table, **row.columns)


class ProcessWriter:
    """Writes the tables of one process, and its names, with the writer that traced jobs use. All
    times are Unix ns: what is stored as monotonic time is that already."""

    def __init__(self, path: Path, who: str) -> None:
        self._path = path
        self._who = who
        self._names: dict[str, int] = {}
        self._tables: dict[str, TableWriter] = {}

    def describe(self, start_ns: int, **facts: Any) -> None:
        clock = {"monotonic_ns": start_ns, "real_ns": start_ns, "bracket_ns": 0}
        facts = {"who": self._who, "start_ns": start_ns, "clock": clock, **facts}
        write_json(f"{self._path}/{PROCESS}/{self._who}.json", facts)

    def span(self, start_ns: int, end_ns: int, name: str, stage: Stage, **more: int) -> None:
        """A span; spans of a lane follow or contain each other. `more` are the other columns."""
        self.row("spans", start_ns=start_ns, end_ns=end_ns, name=name, stage=int(stage), **more)

    def row(self, table: str, **columns: float | str) -> None:
        numbers = {c: self._name(v) if isinstance(v, str) else v for c, v in columns.items()}
        if table not in self._tables:
            self._tables[table] = TableWriter(TABLES[table], f"{self._path}/{table}", self._who)
        self._tables[table].append(**numbers)

    def _name(self, text: str) -> int:
        known = self._names.get(text)
        if known is None:
            known = self._names[text] = len(self._names)
            append_line(f"{self._path}/{NAMES}/{self._who}.jsonl", [known, text])
        return known
