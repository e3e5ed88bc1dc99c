"""Files of the job's processes that could not be read whole: what every figure is short of."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.trace.errors import RltraceError
from rltrace.trace.given import AGENT
from rltrace.trace.run import Run
from rltrace.trace.schema import TABLES

_TORN = "torn-file"


@dataclass(frozen=True)
class Damaged:
    """A process whose files were cut or are damaged: the tables that they are of. `pid` is -1 where
    nobody said."""

    role: str
    pid: int
    host: str
    tables: tuple[str, ...]


def damaged(run: Run) -> tuple[Damaged, ...]:
    """The job's processes with such files, as far as the tables of `run` were read; those of the
    agents, which hold readings only, are left out."""
    tables: dict[str, list[str]] = {}
    for problem in run.problems:
        if problem.get("what") == _TORN:
            table, _, name = str(problem.get("target", "")).partition("/")
            tables.setdefault(name.rsplit(".", 2)[0], []).append(table)
    found = []
    for process in run.processes:
        if process.who in tables and process.role != AGENT:
            of = tuple(dict.fromkeys(tables[process.who]))
            found.append(Damaged(process.role or "", process.pid, process.host, of))
    return tuple(found)


def unreadable(run: Run) -> str | None:
    """Why nothing is left to be told of a run, in one sentence: no row of what its processes
    recorded can be read, or not even a process is known, and it is not known to be going on. None
    where there is something."""
    tables = [name for name in TABLES if name != "samples"]
    if any(run.has_rows(name) for name in tables):
        return None
    for name in tables:
        run.rows(name)  # tells what is wrong with its files
    broken = damaged(run)
    if broken:
        torn = sorted({table for one in broken for table in one.tables})
        return (
            f"{run.path}: nothing of what was recorded can be read: the files of "
            f"{', '.join(torn)} are damaged"
        )
    lives = None if run.meta.get("end_real_ns") else run.goes_on
    if run.processes or lives:
        return None
    begun = lives is None and not run.meta.get("end_real_ns")
    return (
        f"{run.path} holds no process and no row: its files are missing, "
        f"{'it has only begun, ' * begun}or the command started no Python that could be traced "
        "(`rltrace doctor`)"
    )


def check_readable(run: Run) -> None:
    """Errors: `RltraceError` for a run that is `unreadable`."""
    if (why := unreadable(run)) is not None:
        raise RltraceError(why)
