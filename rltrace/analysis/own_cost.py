"""What rltrace itself cost the job: events and captured tokens times the cost of one, over wall
time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rltrace.analysis.activity import Activity
from rltrace.analysis.coverage import holds_token_ids
from rltrace.trace.given import AGENT
from rltrace.trace.run import Run
from rltrace.trace.sampled import only_some
from rltrace.trace.schema import CAPTURED_TOKENS, EVENT_TABLES

DEFAULT_COSTS_NS = (1000.0, 4000.0)
"""CPU time of a span and of a row of another table, each recorded through a hook, where the run
states none (`settings["event_cost_ns"]` and `["row_cost_ns"]`, calibrated when it was started)."""
DEFAULT_TOKEN_COST_NS = 200.0
"""CPU time of a captured token, likewise (`settings["token_cost_ns"]`)."""


@dataclass(frozen=True)
class OwnCost:
    """`event_cost_ns` is the mean over the run's `events`. `share` is of the wall time of the job's
    processes together (the agents, which run beside it, left out), the captured `tokens` included;
    `worst_share` that of the one which recorded the most for its time."""

    events: int
    processes: int
    event_cost_ns: float
    calibrated: bool
    share: float
    worst_share: float
    tokens: int = 0
    token_cost_ns: float = 0.0


def own_cost(run: Run, activity: Activity, recorded_until_ns: int) -> OwnCost:
    """The cost of tracing `run`; NaN where only some samples were recorded."""
    spans: Counter[int] = Counter(activity.spans_of_process)
    rows: Counter[int] = Counter()
    for table in EVENT_TABLES.values():
        if table.name != "spans":
            marker = table.columns[0].name
            query = f"select process, count(*) from raw_{table.name} where {marker} > 0 group by 1"
            rows.update(dict(run.ask(query)))
    tokens = run.rows_of_processes(CAPTURED_TOKENS.name) if holds_token_ids(run) else Counter()
    for process in run.processes:
        if process.role == AGENT or run.meta.get("imported"):
            for counts in (spans, rows, tokens):
                counts.pop(process.number, None)
    (span_ns, row_ns, token_ns), calibrated = _costs_ns(run, bool(tokens))
    events = spans + rows
    events_ns = {p: spans[p] * span_ns + rows[p] * row_ns for p in events}
    cost_ns = {p: ns + tokens[p] * token_ns for p, ns in events_ns.items()}
    wall_ns = {
        process.number: recorded_until_ns - max(process.start_ns, run.since_ns)
        for process in run.processes
        if 0 < process.start_ns < recorded_until_ns
    }
    told = {} if only_some(run.meta) else wall_ns
    shares = {p: cost_ns[p] / wall for p, wall in told.items() if p in events}
    total_ns = sum(wall_ns[p] for p in shares)
    count = sum(events.values())
    return OwnCost(
        events=count,
        processes=len(events),
        event_cost_ns=sum(events_ns.values()) / count if count else span_ns,
        calibrated=calibrated,
        share=sum(cost_ns[p] for p in shares) / total_ns if total_ns else float("nan"),
        worst_share=max(shares.values(), default=float("nan")),
        tokens=sum(tokens.values()),
        token_cost_ns=token_ns,
    )


def _costs_ns(run: Run, captures: bool) -> tuple[tuple[float, float, float], bool]:
    """CPU time of a span, of another row and of a captured token, and whether the run states all
    that it had."""
    settings = run.meta.get("settings") or {}
    stated = [settings.get(f"{what}_cost_ns") for what in ("event", "row", "token")]
    span, row, token = (float(s) if isinstance(s, int | float) and s > 0 else 0.0 for s in stated)
    if span and row and (token or not captures):
        return (span, row, token), True
    return (*DEFAULT_COSTS_NS, DEFAULT_TOKEN_COST_NS), False
