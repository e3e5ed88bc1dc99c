"""The SQL views over the tables of codes: words instead of codes, NULL instead of "unknown"."""

from __future__ import annotations

from rltrace.trace import vocabulary
from rltrace.trace.lives import LIVES, SYNC_ROWS, TOLD_USES, VERDICTS
from rltrace.trace.one_clock import STEPS
from rltrace.trace.regrouped import GROUPED, RAW_GROUPED
from rltrace.trace.regrouped import NAME as REGROUPED
from rltrace.trace.schema import TABLES, Column, Table
from rltrace.trace.signals import SAMPLE_REWARDS, SIGNALS, WEIGHTS
from rltrace.trace.vocabulary import Part, word

RECORDED = "recorded"
_PROCESS_COLUMNS = "p.who, p.host, p.node, p.pid, p.role, p.rank"
_RENAMED = {"syncs": "p.role AS process_role"}  # a sync has a role of its own


def in_words(table: Table) -> str:
    """CREATE VIEW statement of one table's friendly view."""
    selected = ", ".join(_readable(column) for column in table.columns)
    joins = "LEFT JOIN processes p USING (process)"
    named = [column.name for column in table.columns if column.is_name]
    for name in named:
        joins += f' LEFT JOIN names AS n_{name} ON n_{name}.id = r."{name}"'
    of_process = _PROCESS_COLUMNS.replace("p.role", _RENAMED.get(table.name, "p.role"))
    return (
        f"CREATE OR REPLACE VIEW {table.name} AS SELECT {selected}, process, {of_process} "
        f"FROM recorded_{table.name} r {joins}"
    )


LAGS = """
CREATE OR REPLACE VIEW lags AS
SELECT u.trajectory, u.step, u.version, t.first_version, t.last_version,
       u.version - t.first_version AS lag, u.tokens, u.fate
FROM uses u LEFT JOIN trajectories t USING (trajectory)
"""
"""Lag in policy versions; NULL where either version is unknown, never 0."""

CAPTURED = f"""
CREATE OR REPLACE VIEW captured AS
SELECT trajectory,
       list(token ORDER BY position) FILTER (part = {int(Part.PROMPT)}) AS prompt_token_ids,
       list(token ORDER BY position) FILTER (part = {int(Part.RESPONSE)}) AS response_token_ids,
       start_ns, process
FROM raw_captured_tokens GROUP BY ALL
"""

RECORDED_VIEW = f"CREATE OR REPLACE VIEW {RECORDED} AS SELECT {{}}::BIGINT AS until_ns"
"""One row: until when the run was recorded, as in the report (`recorded_until`)."""

# The union of intervals: in order of their starts, each adds what lies past all ends before it.
STAGES = """
CREATE OR REPLACE VIEW stages AS
WITH clipped AS (
    SELECT k.step, s.stage, greatest(s.start_ns, k.start_ns) AS a, least(s.end_ns, k.end_ns) AS b
    FROM spans s JOIN steps k ON s.start_ns < k.end_ns AND s.end_ns > k.start_ns
    WHERE s.stage <> 'step'),
reached AS (
    SELECT *, max(b) OVER (PARTITION BY step, stage ORDER BY a, b
                           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM clipped)
SELECT step, stage, sum(greatest(0, b - greatest(a, coalesce(before, a)))) / 1e9 AS seconds,
       count(*) AS spans
FROM reached GROUP BY step, stage ORDER BY step, seconds DESC
"""


SPAN_STAGES = """
create or replace table span_stages as
select process, stage, count(*) as spans, count(*) filter (end_ns < 0) as open,
       count(*) filter (end_ns >= 0 and end_ns < start_ns) as backwards,
       min(lane) as first_lane, max(lane) as last_lane
from raw_spans where start_ns > 0 group by process, stage"""
"""`spans` have begun, of which `open` have not ended and `backwards` ended before (clocks); their
lanes lie between two numbers."""

DERIVED = {
    "steps": (STEPS,),
    "stages": (STAGES,),
    "lags": (LAGS,),
    "captured": (CAPTURED,),
    "grouped_trajectories": (GROUPED,),
    "raw_grouped_trajectories": (RAW_GROUPED,),
    "signals": (SIGNALS,),
    "sample_lives": LIVES,
    "told_uses": (TOLD_USES,),
    "sample_rewards": (SAMPLE_REWARDS,),
    "sample_verdicts": (VERDICTS,),
    "span_stages": (SPAN_STAGES,),
    "sync_rows": (SYNC_ROWS,),
}
"""Tables and views by their names, and the statements that make them of others."""

IN_WORDS = (*TABLES, "steps", "stages", "lags", "captured", "grouped_trajectories")
"""Those that people read."""

NAMED = (*TABLES, *DERIVED, REGROUPED, WEIGHTS, RECORDED, "processes", "names")
"""What a query can name, besides the tables of codes (`raw_`)."""


def _readable(column: Column) -> str:
    name = f'r."{column.name}"'
    alias = f'"{column.name}"'
    if column.is_name:
        return f"n_{column.name}.text AS {alias}"
    if column.codes:
        listed = ", ".join(f"'{word(code)}'" for code in getattr(vocabulary, column.codes))
        return f"([{listed}])[nullif({name}, -1) + 1] AS {alias}"
    if column.kind in "fd":
        return f"CASE WHEN isnan({name}) THEN NULL ELSE {name} END AS {alias}"
    return f"nullif({name}, -1) AS {alias}"
