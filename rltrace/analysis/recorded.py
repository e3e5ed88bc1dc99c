"""Until when a run was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rltrace.analysis.activity import Activity
from rltrace.analysis.devices import AGENT
from rltrace.trace.liveness import Liveness
from rltrace.trace.run_dir import now_ns

if TYPE_CHECKING:
    from rltrace.trace.run import Run


def recorded_until(run: Run, activity: Activity) -> int:
    """Until when there was a recording, Unix ns: the run's end where it is known, or what processes
    of the job recorded after it, now where the job goes on, else the last event; of a part of the
    run its end. The agent reads a last time when all is over, which makes no run longer."""
    if run.until_ns is not None:
        return run.until_ns
    ended = run.meta.get("end_real_ns")
    if ended is None and Liveness().of_command(run.meta):
        ended = now_ns(run.meta)
    last = activity.last_ns
    agents = [process.number for process in run.processes if process.role == AGENT]
    of_job = f"where process not in ({', '.join(map(str, [-1, *agents]))})"
    for table, column in (("samples", "time_ns"), ("uses", "time_ns"), ("trajectories", "end_ns")):
        rows = of_job if table == "samples" and isinstance(ended, int) else ""
        found = run.sql(f"select coalesce(max({column}), 0) from raw_{table} {rows}").fetchall()
        last = max(last, found[0][0])
    return max(last, ended) if isinstance(ended, int) else last
