"""Which generation is an evaluation's.

While a job evaluates, its engines do nothing else, and do not know whose their requests are. So
what begins within a span of the stage `eval` is the evaluation's: spans of generation, tools and
rewards are of that stage, samples and their rewards are in no figure. That is not so where a sample
that began meanwhile met the learner, as generation went on beside the evaluation. Where no sample
met the learner by its id nothing shows that, and an evaluation has what its own process does only.
"""

from __future__ import annotations

from rltrace.trace.vocabulary import Stage

NAME = "evaluations"
"""Table: `start_ns` and `end_ns` of each evaluation in which something was generated, and its
`owner`, a process or -1: all of them."""

ANY = f"SELECT 1 FROM recorded_spans WHERE stage = {int(Stage.EVAL)} AND start_ns > 0 LIMIT 1"
_OWNER = "CASE WHEN EXISTS (FROM met) THEN -1 ELSE process END AS owner"
MAKE = f"""
CREATE OR REPLACE TABLE {NAME} AS
WITH met AS (SELECT DISTINCT trajectory FROM recorded_uses WHERE time_ns > 0 AND trajectory <> -1),
evaluating AS (
    SELECT {_OWNER}, start_ns, CASE WHEN end_ns < 0 THEN {(1 << 63) - 1} ELSE end_ns END AS end_ns
    FROM recorded_spans WHERE stage = {int(Stage.EVAL)} AND start_ns > 0),
apart AS (
    SELECT *, start_ns > max(end_ns) OVER (PARTITION BY owner ORDER BY start_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) IS NOT FALSE AS begins
    FROM evaluating),
numbered AS (
    SELECT *, count(*) FILTER (begins) OVER (PARTITION BY owner ORDER BY start_ns
        ROWS UNBOUNDED PRECEDING) AS number FROM apart),
whole AS (
    SELECT owner, min(start_ns) AS start_ns, max(end_ns) AS end_ns FROM numbered
    GROUP BY owner, number),
generated AS (
    SELECT {_OWNER}, start_ns, trajectory IN (FROM met) AS is_met
    FROM recorded_trajectories WHERE start_ns > 0
    UNION ALL
    SELECT {_OWNER}, start_ns, false FROM recorded_spans
    WHERE start_ns > 0 AND stage = {int(Stage.ROLLOUT)})
SELECT w.owner, w.start_ns, w.end_ns FROM generated g
ASOF JOIN whole w ON g.owner = w.owner AND g.start_ns >= w.start_ns
WHERE g.start_ns < w.end_ns GROUP BY ALL HAVING NOT bool_or(is_met)
"""

_OF = (int(Stage.ROLLOUT), int(Stage.ENV), int(Stage.REWARD))
_JOINED = f"""FROM ({{rows}}) t ASOF LEFT JOIN {NAME} e
    ON e.owner = {{owner}} AND t.start_ns >= e.start_ns"""
_WITHIN = "coalesce(t.start_ns < e.end_ns, false)"
_SAMPLES = f"SELECT {{columns}} {_JOINED} WHERE {{which}} {_WITHIN}"
TABLES = ("spans", "trajectories", "rewards")


def told_apart(table: str, rows: str, owner: str) -> str:
    """A query of the `rows` of a table as they are of training; `owner`: "-1" or "process"."""
    if table == "spans":
        stage = f"CASE WHEN stage IN {_OF} AND {_WITHIN} THEN {int(Stage.EVAL)} ELSE stage END"
        joined = _JOINED.format(rows=rows, owner=owner)
        return f"SELECT t.* REPLACE ({stage}::TINYINT AS stage) {joined}"
    if table == "trajectories":
        return _SAMPLES.format(columns="t.*", which="NOT", rows=rows, owner=owner)
    samples = "FROM recorded_trajectories WHERE start_ns > 0 AND trajectory <> -1"
    evaluated = _SAMPLES.format(columns="trajectory", which="", rows=samples, owner=owner)
    others = f"(SELECT trajectory {samples} AND trajectory NOT IN ({evaluated}))"
    return f"""SELECT t.* {_JOINED.format(rows=rows, owner=owner)}
        WHERE trajectory IN {others} OR NOT {_WITHIN} AND trajectory NOT IN ({evaluated})"""
