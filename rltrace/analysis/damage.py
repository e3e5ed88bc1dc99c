"""Files of the job's processes that could not be read whole: what every figure is short of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rltrace.trace.run import Run

AGENT = "agent"
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
