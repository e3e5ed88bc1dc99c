"""What is imported of one process, written through the writer that traced jobs use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rltrace.trace.run_dir import NAMES, PROCESS, append_line, write_json
from rltrace.trace.schema import TABLES
from rltrace.trace.segment import TableWriter
from rltrace.trace.vocabulary import Stage


class ProcessWriter:
    """The tables of one process, and its names. All times are Unix ns: what is stored as monotonic
    time is that already."""

    def __init__(self, path: Path, who: str) -> None:
        self._path = path
        self._who = who
        self._names: dict[str, int] = {}
        self._tables: dict[str, TableWriter] = {}

    def describe(self, start_ns: int, **facts: Any) -> None:
        """Writes the process's file."""
        clock = {"monotonic_ns": start_ns, "real_ns": start_ns, "bracket_ns": 0}
        facts = {"who": self._who, "start_ns": start_ns, "clock": clock, **facts}
        write_json(f"{self._path}/{PROCESS}/{self._who}.json", facts)

    def span(
        self,
        start_ns: int,
        end_ns: int,
        name: str,
        stage: Stage,
        step: int,
        lane: int,
        **more: int,
    ) -> None:
        """A span; spans of a lane follow or contain each other. `more` are columns as they are."""
        self._table("spans").append(
            start_ns=start_ns,
            end_ns=end_ns,
            name=self._name(name),
            stage=int(stage),
            step=step,
            lane=lane,
            **more,
        )

    def reading(self, time_ns: int, counter: str, value: float) -> None:
        """A reading of a counter."""
        self._table("samples").append(time_ns=time_ns, counter=self._name(counter), value=value)

    def row(self, table: str, **columns: float | str) -> None:
        """A row of another table; a text is a name."""
        numbers = {c: self._name(v) if isinstance(v, str) else v for c, v in columns.items()}
        self._table(table).append(**numbers)

    def _table(self, name: str) -> TableWriter:
        if name not in self._tables:
            self._tables[name] = TableWriter(TABLES[name], f"{self._path}/{name}", self._who)
        return self._tables[name]

    def _name(self, text: str) -> int:
        known = self._names.get(text)
        if known is None:
            known = self._names[text] = len(self._names)
            append_line(f"{self._path}/{NAMES}/{self._who}.jsonl", [known, text])
        return known
