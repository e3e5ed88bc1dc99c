"""How much of an update a trace tells apart."""

from __future__ import annotations

from rltrace.testing.inside.trace import OpenedRun as Run

# An update of the smallest model takes 15 ms: a process that waits for a core is a tenth of it.
MOST = 0.75


def explained(run: Run, name: str) -> float:
    """The share of the time of all spans of a name in which others of their process run inside."""
    covered = whole = 0
    rows = run.sql(f"SELECT process, start_ns, end_ns FROM spans WHERE name = '{name}'").fetchall()
    for process, first_ns, last_ns in rows:
        whole += last_ns - first_ns
        reached = first_ns
        inside = run.sql(
            f"SELECT start_ns, end_ns FROM spans WHERE process = '{process}' AND name <> '{name}'"
            f" AND start_ns >= {first_ns} AND end_ns <= {last_ns} ORDER BY start_ns"
        )
        for start_ns, end_ns in inside.fetchall():
            covered += max(0, end_ns - max(reached, start_ns))
            reached = max(reached, end_ns)
    return covered / whole
