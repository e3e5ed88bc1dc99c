"""What rltrace itself cost the job: events recorded times the cost of one, over wall time.

Captured tokens are no events: what storing them costs is not in it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.analysis.activity import Activity
from rltrace.analysis.devices import AGENT
from rltrace.trace.schema import EVENT_TABLES

if TYPE_CHECKING:
    from rltrace.trace.run import Run

DEFAULT_COSTS_NS = (1000.0, 4000.0)
"""CPU time of a span and of a row of another table, each recorded through a hook, where the run
states none (`settings["event_cost_ns"]` and `["row_cost_ns"]`, calibrated when it was started)."""


@dataclass(frozen=True)
class OwnCost:
    """`event_cost_ns` is the mean over the run's events. `share` is of the wall time of the job's
    processes together, `worst_share` that of the one (`worst_who`) which recorded the most for its
    time. The agents, which run beside the job, are not in it."""

    events: int
    processes: int
    event_cost_ns: float
    calibrated: bool
    share: float
    worst_share: float
    worst_who: str


def own_cost(run: Run, activity: Activity, recorded_until_ns: int) -> OwnCost:
    """The cost of tracing `run`; of an imported one, which was not traced, that of no event."""
    spans: Counter[int] = Counter(activity.spans_of_process)
    rows: Counter[int] = Counter()
    for table in EVENT_TABLES.values():
        if table.name != "spans":
            marker = table.columns[0].name
            query = f"select process, count(*) from raw_{table.name} where {marker} > 0 group by 1"
            rows.update(dict(run.sql(query).fetchall()))
    for process in run.processes:
        if process.role == AGENT or run.meta.get("imported"):
            spans.pop(process.number, None)
            rows.pop(process.number, None)
    (span_ns, row_ns), calibrated = _costs_ns(run)
    events = spans + rows
    cost_ns = {p: spans[p] * span_ns + rows[p] * row_ns for p in events}
    wall_ns = {
        process.number: recorded_until_ns - max(process.start_ns, run.since_ns)
        for process in run.processes
        if 0 < process.start_ns < recorded_until_ns
    }
    shares = {p: cost_ns[p] / wall for p, wall in wall_ns.items() if p in events}
    total_ns = sum(wall_ns[p] for p in shares)
    worst = max(shares, key=lambda p: shares[p], default=None)
    count = sum(events.values())
    return OwnCost(
        events=count,
        processes=len(events),
        event_cost_ns=sum(cost_ns.values()) / count if count else span_ns,
        calibrated=calibrated,
        share=sum(cost_ns[p] for p in shares) / total_ns if total_ns else float("nan"),
        worst_share=float("nan") if worst is None else shares[worst],
        worst_who="" if worst is None else run.processes[worst].who,
    )


def _costs_ns(run: Run) -> tuple[tuple[float, float], bool]:
    """CPU time of a span and of another row, and whether the run states them."""
    settings = run.meta.get("settings") or {}
    stated = settings.get("event_cost_ns"), settings.get("row_cost_ns")
    span_ns, row_ns = (s if isinstance(s, int | float) and s > 0 else None for s in stated)
    if span_ns is None or row_ns is None:
        return DEFAULT_COSTS_NS, False
    return (float(span_ns), float(row_ns)), True
