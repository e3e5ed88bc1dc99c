"""Samples whose id comes again: a loop that numbers them anew in each step.

An id is over once its sample has met the learner: a generation that begins later is of another
sample, and so are the rewards and uses from then on. Where a use came before the generation that it
would belong to had ended, as in a job that generates ahead, nobody knows which sample it was of:
such an id is taken for unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

TABLES = {"trajectories": "start_ns", "rewards": "start_ns", "uses": "time_ns"}
"""The tables with ids of samples, and the moment that says which sample of an id a row is of."""

_ENDS = """
SELECT {} FROM recorded_trajectories t JOIN (
    SELECT trajectory, min(time_ns) AS met_ns FROM recorded_uses
    WHERE time_ns > 0 AND trajectory <> -1 GROUP BY trajectory) USING (trajectory)
WHERE start_ns > met_ns {}
"""
_FIND = f"""
CREATE OR REPLACE TABLE repeated_ids AS
WITH ids AS ({_ENDS.format("DISTINCT trajectory", "")}),
events AS (
    SELECT trajectory, start_ns AS at_ns, greatest(start_ns, end_ns) AS end_ns, false AS is_use
    FROM recorded_trajectories WHERE start_ns > 0 AND trajectory IN (FROM ids)
    UNION ALL
    SELECT trajectory, time_ns, NULL, true
    FROM recorded_uses WHERE time_ns > 0 AND trajectory IN (FROM ids)),
after AS (
    SELECT *, NOT is_use AND coalesce(lag(is_use) OVER of_id, true) AS begins
    FROM events WINDOW of_id AS (PARTITION BY trajectory ORDER BY at_ns, is_use)),
numbered AS (
    SELECT *, count(*) FILTER (begins) OVER so_far AS number,
           max(end_ns) OVER so_far AS ended_ns
    FROM after WINDOW so_far AS (PARTITION BY trajectory ORDER BY at_ns, is_use)),
unclear AS (SELECT DISTINCT trajectory FROM numbered WHERE is_use AND at_ns < ended_ns)
SELECT trajectory, at_ns AS since_ns, (hash(trajectory, number) >> 1)::BIGINT AS id
FROM numbered WHERE begins AND number > 1 AND trajectory NOT IN (FROM unclear)
UNION ALL
SELECT trajectory, 0, -1 FROM unclear
"""
"""Table: from a moment on, the rows of an id are of the sample `id`; -1: of one that is unknown."""


def tell_apart(database: duckdb.DuckDBPyConnection) -> bool:
    """Whether an id comes again in `recorded_trajectories` and `recorded_uses`; then it makes the
    table `repeated_ids`."""
    if database.execute(_ENDS.format("1", "LIMIT 1")).fetchone() is None:
        return False
    database.execute(_FIND)
    return True


def told_apart(table: str) -> str:
    """A query of the rows of a table with the ids that samples have."""
    return (
        "SELECT t.* REPLACE (coalesce(r.id, t.trajectory) AS trajectory) "
        f"FROM recorded_{table} t ASOF LEFT JOIN repeated_ids r "
        f"ON t.trajectory = r.trajectory AND t.{TABLES[table]} >= r.since_ns"
    )
