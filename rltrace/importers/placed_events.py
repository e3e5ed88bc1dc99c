"""Spans and rows that a log places in time, and their writer."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rltrace.adapters.log_table import LoggedProcess, PlacedRow, PlacedSpan, SpanNames
from rltrace.importers.log_records import counted
from rltrace.trace.errors import RltraceError
from rltrace.trace.read.stated_tables import checked, refuse
from rltrace.trace.run_dir import NAMES, PROCESS, append_line, write_json
from rltrace.trace.schema import TABLES
from rltrace.trace.segment import TableWriter
from rltrace.trace.untrusted_files import toml_given
from rltrace.trace.vocabulary import STEP_SPAN, Stage

_Found = TypeVar("_Found")


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


_STAGES = sorted(member.name.lower() for member in Stage)
_MAPPING = {"framework": "text", "placement": "text", "steps": "texts",
            "stages": {"*": _STAGES}, "roles": {"*": "text"}}  # fmt: skip


def read_names(path: Path) -> SpanNames:
    """A mapping file. Errors: `RltraceError` for one that cannot be used."""
    found = checked(_MAPPING, toml_given(path), str(path))
    if not found.get("stages"):
        refuse(str(path), "a mapping needs a table [stages]")
    return SpanNames(**{**found, "steps": tuple(found.get("steps", SpanNames.steps))})


def mapped(
    path: Path, names: SpanNames, found: Iterable[tuple[str, _Found]]
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
    """The spans by time, a step once; steps without any number are counted in each process."""
    ordered = sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))
    steps = list(_once(span for span in ordered if span.stage == Stage.STEP))
    if not any(span.step >= 0 for span in steps):
        counts: dict[LoggedProcess, Iterator[int]] = defaultdict(itertools.count)
        steps = [replace(span, step=next(counts[span.process])) for span in steps]
    others = [span for span in ordered if span.stage != Stage.STEP]
    return tuple(sorted([*others, *steps], key=lambda span: (span.start_ns, -span.end_ns)))


def _once(steps: Iterable[PlacedSpan]) -> Iterator[PlacedSpan]:
    """A process's steps, each once: spans that overlap, as of several threads, or that follow each
    other under one number, are of one step."""
    last: dict[LoggedProcess, PlacedSpan] = {}
    for span in steps:
        known = last.get(span.process)
        same = known is not None and span.step == known.step
        if known is not None and same and (span.start_ns < known.end_ns or span.step >= 0):
            until_ns = max(known.end_ns, span.end_ns)
            last[span.process] = replace(known, end_ns=until_ns)
            continue
        if known is not None:
            yield known
        last[span.process] = span
    yield from last.values()


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
        writer = writers[span.process]
        writer.span(span.start_ns, span.end_ns, name, span.stage, step=span.step, lane=span.lane)
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

    def span(self, start_ns: int, end_ns: int, name: str, stage: Stage, **where: int) -> None:
        """A span; spans of a lane follow or contain each other. `where`: its step and its lane."""
        self.row("spans", start_ns=start_ns, end_ns=end_ns, name=name, stage=int(stage), **where)

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
