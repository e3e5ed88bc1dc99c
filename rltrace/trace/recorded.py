"""Until when a run was recorded, in the report and in queries alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rltrace.trace.schema import EVENT_TABLES

if TYPE_CHECKING:
    from rltrace.trace.run import Run


def recorded_until(run: Run) -> int:
    """Until when there was a recording, Unix ns: the run's end where it is known, or what processes
    of the job recorded after it, the moment at which it was opened where the job goes on, else the
    last event, or until when all that was recorded has come from its nodes; of a part of the run
    its end. The agent reads a last time when all is over, which makes no run longer."""
    if run.until_ns is not None:
        return run.until_ns
    ended = run.meta.get("end_real_ns")
    if run.goes_on and ended is None:
        return run.opened_ns
    agents = [process.number for process in run.processes if process.role == "agent"]
    of_job = f"where process not in (select unnest([{', '.join(map(str, [-1, *agents]))}]))"
    last = ended if isinstance(ended, int) else run.reach.until_ns
    for name, table in EVENT_TABLES.items():
        columns = {column.name for column in table.columns}
        moment = "greatest(start_ns, end_ns)" if "end_ns" in columns else "time_ns"
        newest = f"select coalesce(max({moment}), 0) from raw_{name}"
        ((found,),) = run.ask(newest)
        if found > last and name == "samples" and isinstance(ended, int):
            ((found,),) = run.ask(f"{newest} {of_job}")
        last = max(last, found)
    return last
