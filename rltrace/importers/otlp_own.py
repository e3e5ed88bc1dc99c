"""What rltrace itself exported as OTLP JSON (`rltrace.report.otlp`): the run again, row by row."""

from __future__ import annotations

from typing import Any

from rltrace.importers.placed import PlacedRow, PlacedSpan, Process
from rltrace.trace import vocabulary
from rltrace.trace.schema import TABLES, WIDTH_BYTES, Column
from rltrace.trace.vocabulary import Stage, word

PREFIX = "rltrace."

Attributes = dict[str, Any]

_TOO_LARGE = {kind: 1 << 8 * width - 1 for kind, width in WIDTH_BYTES.items()}


def row(
    about: Attributes, span: dict[str, Any], attributes: Attributes
) -> PlacedSpan | PlacedRow | None:
    """The row that an exported span is of; None for one that is of no table. `about` are the
    attributes of what sent it. Errors: `ValueError`, `KeyError`, `TypeError`, `AttributeError` or
    `OverflowError` where it is damaged."""
    table = TABLES.get(str(attributes.get(f"{PREFIX}table")))
    if table is None:
        return None
    columns: dict[str, float | str] = {
        column.name: _stored(column, attributes[PREFIX + column.name])
        for column in table.columns
        if PREFIX + column.name in attributes
    }
    start_ns, end_ns = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    if not 0 < start_ns <= end_ns < _TOO_LARGE["q"]:
        raise ValueError(f"no time: {start_ns} to {end_ns}")
    process = _process(about)
    if table.name == "spans":
        stage, step = Stage(int(columns.pop("stage"))), int(columns.pop("step", -1))
        name, lane = str(columns.pop("name")), int(columns.pop("lane"))
        more = {column: int(value) for column, value in columns.items()}
        return PlacedSpan(process, lane, name, stage, start_ns, end_ns, step, more)
    if table.columns[0].name == "time_ns":
        columns["time_ns"] = start_ns
    else:
        columns |= {"start_ns": start_ns, "end_ns": end_ns}
    for event in span.get("events", ()):
        if table.name == "trajectories" and event.get("name") == "first token":
            columns["first_token_ns"] = int(event["timeUnixNano"])
    return PlacedRow(process, table.name, columns)


def _process(about: Attributes) -> Process:
    role = str(about.get(f"{PREFIX}role", ""))
    rank = about.get(f"{PREFIX}rank")
    return Process(
        name=str(about.get("service.instance.id", "process")),
        role=role or str(about.get("service.name", "")),
        host=str(about.get("host.name", "")),
        rank=None if rank is None else int(rank),
    )


def _stored(column: Column, value: Any) -> float | str:
    if column.codes:
        codes = {word(member): int(member) for member in getattr(vocabulary, column.codes)}
        return codes[str(value)]
    if column.is_name:
        return str(value)
    if column.kind in "fd":
        return float(value)
    number = int(value)
    if not -_TOO_LARGE[column.kind] <= number < _TOO_LARGE[column.kind]:
        raise ValueError(f"{column.name} cannot be {number}")
    return number
