"""A run as spans of OpenTelemetry, in OTLP's JSON (docs/dashboards.md).

Ids follow from the run and its rows, so a second export has the same ones. Names are those of
https://opentelemetry.io/docs/specs/semconv/gen-ai/ where it has any; `rltrace.COLUMN` has every
known column of a row, from which the importer makes the run again.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rltrace.report.formats.atomic_file import whole_file
from rltrace.trace.metadata_validation import whole_text
from rltrace.trace.read.processes import TracedProcess
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.schema import REWARDS, SPANS, SYNCS, TABLES, TRAJECTORIES, USES, Table
from rltrace.trace.vocabulary import OTLP_PREFIX

_TABLES = (SPANS, TRAJECTORIES, REWARDS, USES, SYNCS)
_INTERNAL, _ERROR = 1, 2
_SPANS_A_REQUEST = 2000  # about a megabyte and a half, where collectors take 20 at most
Row = dict[str, Any]


@dataclass
class Exported:
    """Spans handed out so far, by table, and rows left out as they have no end."""

    spans: Counter[str] = field(default_factory=Counter)
    unended: int = 0

    @property
    def total(self) -> int:
        return self.spans.total()


def requests(run: OpenedRun, exported: Exported) -> Iterator[dict[str, Any]]:
    """The run as requests to export, of one process each; `exported` is kept up to date."""
    places = _Places(run)
    for process in sorted(run.processes, key=lambda one: one.number):
        tables = (_spans(run, table, process.number, places, exported) for table in _TABLES)
        spans = chain.from_iterable(tables)
        while some := list(islice(spans, _SPANS_A_REQUEST)):
            yield _request(run, process, some)


def write(run: OpenedRun, path: Path) -> Exported:
    """Writes a request a line, gzipped where the name ends in `.gz`. Errors: `RltraceError`."""
    exported = Exported()
    with whole_file(path, "the spans") as file:
        for request in requests(run, exported):
            file.write(json.dumps(request, allow_nan=False).encode() + b"\n")
    return exported


def _request(run: OpenedRun, process: TracedProcess, spans: list[dict[str, Any]]) -> dict[str, Any]:
    about = {
        "service.name": process.role or process.child_of or "process",
        "service.namespace": str(run.meta.get("framework") or "rltrace"),
        "service.instance.id": process.who,
        "host.name": process.host,
        "process.pid": process.pid,
        "rltrace.run": run.path.name,
        "rltrace.framework": run.meta.get("framework"),
        "rltrace.role": process.role,
        "rltrace.rank": process.rank,
        "rltrace.placement": process.facts.get("placement"),
    }
    scope = {"name": "rltrace", "version": str(run.meta.get("rltrace_version", ""))}
    of_scope = [{"scope": scope, "spans": spans}]
    of_process = {"resource": {"attributes": _attributes(about)}, "scopeSpans": of_scope}
    return {"resourceSpans": [of_process]}


class _Places:
    """Which trace a row belongs to, and under which span."""

    def __init__(self, run: OpenedRun) -> None:
        self._run = blake2b(whole_text(run.meta.get("id") or run.path.name).encode(), digest_size=7)
        query = "SELECT start_ns, step, process FROM steps WHERE end_ns IS NOT NULL ORDER BY ALL"
        steps = run.ask(query)
        self._begins = [start for start, _, _ in steps]
        self._of_step = {step: start for start, step, _ in steps}
        self.steps = {(process, start) for start, _, process in steps}
        self._rooted: set[int] = set()

    def trace(self, kind: int, number: int) -> str:
        """The id of a trace: `kind` 0 is of a step, by its begin, 1 of a trajectory."""
        return f"{self._run.hexdigest()}{kind:02x}{number & (1 << 64) - 1:016x}"

    def within(self, time_ns: int) -> tuple[str, str]:
        """The trace and the span of the step that a moment belongs to (empty: none)."""
        at = bisect_right(self._begins, time_ns)
        begin_ns = self._begins[at - 1] if at else 0
        return self.trace(0, begin_ns), _step_span(begin_ns) if begin_ns else ""

    def is_root(self, trajectory: int) -> bool:
        """Whether a row is the first one of its trajectory: several processes may record one."""
        first = trajectory not in self._rooted
        self._rooted.add(trajectory)
        return first

    def links(self, trained: Iterable[tuple[int, int | None]]) -> list[dict[str, Any]]:
        """Links to the steps that trained on a sample, with its lag, as far as they were seen."""
        found = []
        for step, lag in trained:
            if (begin_ns := self._of_step.get(step)) is not None:
                ids = {"traceId": self.trace(0, begin_ns), "spanId": _step_span(begin_ns)}
                about = _attributes({"rltrace.step": step, "rltrace.lag_versions": lag})
                found.append({**ids, "attributes": about})
        return found


def _step_span(begin_ns: int) -> str:
    return f"{1 << 63 | begin_ns:016x}"


def _spans(
    run: OpenedRun, table: Table, process: int, places: _Places, exported: Exported
) -> Iterator[dict[str, Any]]:
    relation = run.sql(_QUERIES.get(table.name, _ROWS).format(table=table.name, process=process))
    names = relation.columns
    nested: dict[Any, list[tuple[int, str, str]]] = {}
    for number, values in enumerate(relation.fetchall(), 1):
        row = dict(zip(names, values, strict=True))
        row.setdefault("start_ns", row.get("time_ns"))
        row.setdefault("end_ns", row.get("time_ns"))
        if row["end_ns"] is None:
            exported.unended += 1
            continue
        exported.spans[table.name] += 1
        own = f"{list(TABLES).index(table.name) + 1 << 56 | process << 36 | number:016x}"
        if table is SPANS:
            yield _span_of_lane(row, own, places, nested)
        elif table is SYNCS:
            trace, parent = places.within(row["start_ns"])
            name = f"weights {row['role'] or ''}".strip()
            yield _span(SYNCS, row, name, (trace, own, parent))
        else:
            yield _of_sample(table, row, own, places)


_ROWS = "SELECT * FROM {table} WHERE process = {process} ORDER BY start_ns"
_QUERIES = {
    "spans": f"{_ROWS}, end_ns DESC",
    "syncs": _ROWS.replace("*", "* EXCLUDE (process_role)"),
    "trajectories": """
        SELECT t.*, u.steps AS trained_in, u.lags AS trained_at_lag FROM trajectories t LEFT JOIN (
            SELECT trajectory, list(step ORDER BY step) AS steps, list(lag ORDER BY step) AS lags
            FROM (SELECT DISTINCT trajectory, step, lag FROM lags
                  WHERE fate = 'trained' AND step IS NOT NULL) GROUP BY trajectory
        ) u USING (trajectory) WHERE t.process = {process} ORDER BY t.start_ns""",
    "uses": _ROWS.replace("start_ns", "time_ns"),
}


def _span_of_lane(
    row: Row, own: str, places: _Places, nested: dict[Any, list[tuple[int, str, str]]]
) -> dict[str, Any]:
    """A span lies within the one of its lane that contains it, else within its step."""
    around = nested.setdefault(row["lane"], [])
    while around and around[-1][0] < row["end_ns"]:
        around.pop()
    trace, parent = places.within(row["start_ns"])
    if row["stage"] == "step" and (row["process"], row["start_ns"]) in places.steps:
        own, parent = _step_span(row["start_ns"]), ""
    elif around:
        _, trace, parent = around[-1]
    around.append((row["end_ns"], trace, own))
    return _span(SPANS, row, str(row["name"]), (trace, own, parent))


def _of_sample(table: Table, row: Row, own: str, places: _Places) -> dict[str, Any]:
    """A trajectory is the root of its trace, above its verdicts and uses."""
    known = row["trajectory"]
    trace = places.trace(1, int(own, 16) if known is None else known)
    root = "" if known is None else f"{known & (1 << 63) - 1 or 1:016x}"
    if table is REWARDS:
        name = f"evaluate {row['component'] or ''}".strip()
        more = {"gen_ai.evaluation.name": row["component"]}
        more["gen_ai.evaluation.score.value"] = row["value"]
        return _span(REWARDS, row, name, (trace, own, root), more, row["outcome"])
    if table is USES:
        return _span(USES, row, f"learner: {row['fate'] or 'met'}", (trace, own, root))
    operation = "invoke_agent" if (row["turns"] or 1) > 1 else "text_completion"
    more = {
        "gen_ai.operation.name": operation,
        "gen_ai.usage.input_tokens": row["prompt_tokens"],
        "gen_ai.usage.output_tokens": row["response_tokens"],
        "gen_ai.response.finish_reasons": [row["finish"]] if row["finish"] else None,
    }
    if known is not None and places.is_root(known):
        own, root = root, ""
    span = _span(TRAJECTORIES, row, operation, (trace, own, root), more, row["finish"])
    if row["first_token_ns"] is not None:
        span["events"] = [{"timeUnixNano": str(row["first_token_ns"]), "name": "first token"}]
    links = places.links(zip(row["trained_in"] or (), row["trained_at_lag"] or (), strict=True))
    return {**span, "links": links} if links else span


def _span(
    table: Table,
    row: Row,
    name: str,
    ids: tuple[str, str, str],
    more: Row | None = None,
    ended: str | None = None,
) -> dict[str, Any]:
    """`ids` are those of the trace, the span and its parent."""
    trace, own, parent = ids
    columns = {OTLP_PREFIX + c.name: row[c.name] for c in table.columns if c.name not in _TIMES}
    span = {
        "traceId": trace,
        "spanId": own,
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(row["start_ns"]),
        "endTimeUnixNano": str(max(row["end_ns"], row["start_ns"])),
        "attributes": _attributes({f"{OTLP_PREFIX}table": table.name, **(more or {}), **columns}),
    }
    if parent:
        span["parentSpanId"] = parent
    if ended in _FAILURES:
        span["status"] = {"code": _ERROR, "message": ended}
    return span


_FAILURES = ("abort", "timeout", "error")
_NO_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}  # as JSON of protobufs has it
_TIMES = ("start_ns", "end_ns", "time_ns")


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attributes of what is known; 64-bit integers are texts in OTLP's JSON."""
    return [{"key": k, "value": _value(v)} for k, v in values.items() if v is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": _NO_NUMBERS.get(str(value), value)}
    return {"stringValue": str(value)}
