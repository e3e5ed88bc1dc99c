"""What rltrace itself cost the job: events recorded times the cost of one, over wall time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.analysis.activity import Activity
from rltrace.analysis.devices import AGENT
from rltrace.trace.schema import TABLES

if TYPE_CHECKING:
    from rltrace.trace.run import Run

DEFAULT_EVENT_COST_NS = 1000.0
"""CPU time of one recorded row where the run states none (`settings["event_cost_ns"]`, calibrated
when it was started): a span begun and ended through a hook, rounded up."""


@dataclass(frozen=True)
class OwnCost:
    """`share` is of the wall time of the job's processes together, `worst_share` that of the one
    (`worst_who`) which recorded the most for its time. The agents, which run beside the job, are
    not in it."""

    events: int
    processes: int
    event_cost_ns: float
    calibrated: bool
    share: float
    worst_share: float
    worst_who: str


def own_cost(run: Run, activity: Activity, recorded_until_ns: int) -> OwnCost:
    """The cost of tracing `run`."""
    events: Counter[int] = Counter(activity.spans_of_process)
    for table in TABLES.values():
        if table.name != "spans":
            marker = table.columns[0].name
            events.update(
                dict(
                    run.sql(
                        f"select process, count(*) from raw_{table.name} where {marker} > 0 "
                        "group by process"
                    ).fetchall()
                )
            )
    for process in run.processes:
        if process.role == AGENT:
            events.pop(process.number, None)
    stated = (run.meta.get("settings") or {}).get("event_cost_ns")
    calibrated = isinstance(stated, int | float) and stated > 0
    cost_ns = float(stated or 0) if calibrated else DEFAULT_EVENT_COST_NS
    wall_ns = {
        process.number: recorded_until_ns - process.start_ns
        for process in run.processes
        if 0 < process.start_ns < recorded_until_ns
    }
    shares = {p: events[p] * cost_ns / wall for p, wall in wall_ns.items() if events[p]}
    total_ns = sum(wall_ns[p] for p in shares)
    worst = max(shares, key=lambda p: shares[p], default=None)
    return OwnCost(
        events=sum(events.values()),
        processes=len(events),
        event_cost_ns=cost_ns,
        calibrated=calibrated,
        share=sum(events[p] for p in shares) * cost_ns / total_ns if total_ns else float("nan"),
        worst_share=float("nan") if worst is None else shares[worst],
        worst_who="" if worst is None else run.processes[worst].who,
    )
