"""What a run holds: processes, rows, bytes, clocks, problems."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.analysis.stuck.observed import stuck_of
from rltrace.report import units
from rltrace.report.layout import Section, TableColumn, brief, numbers, table
from rltrace.report.run_description import outlived_lines
from rltrace.trace.read.processes import TracedProcess
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.read.run_losses import unreadable
from rltrace.trace.run_dir import PARQUET, STUCK
from rltrace.trace.safe_text import visible
from rltrace.trace.schema import TABLES
from rltrace.trace.untrusted_files import own_files

HARMLESS = {"no-gpu", "version-untested"}  # problems that nothing has to be done about
_LONGEST = 30  # characters of a name that is shown
_LONGEST_ARGUMENTS = 40
_LONGEST_COMMAND = 300
_MOST_PROBLEMS = 8
_MOST_PROCESSES = 16


@dataclass(frozen=True)
class Inventory:
    """What `rltrace info` shows. `lasted_s` is to the end of its command (`command_s`) or of what
    outlived it, and `shown_s` of it are shown (None: all, or not known). `running` is None where it
    has ended, or cannot be told; `unreadable` says why nothing can be read."""

    path: str
    command: str
    exit_code: int | None
    lasted_s: float | None
    shown_s: float | None
    is_compacted: bool
    rows: dict[str, int]
    bytes_on_disk: int
    segment_bytes: int
    parquet_bytes: int
    nodes: int
    clock_bound_ns: int | None
    processes: list[TracedProcess]
    problems: list[dict[str, Any]]
    imported: bool
    running: bool | None
    unreadable: str | None
    command_s: float | None = None


def inventory(run: OpenedRun) -> Inventory:
    compacted = run.path / PARQUET
    of_segments = sum(_bytes(run.path / table) for table in TABLES)
    inside = {path.parent for path in compacted.glob("*/*")}
    of_parquet = sum(_bytes(folder) for folder in (compacted, *inside))
    bounds = [p.clock_bound_ns for p in run.processes]
    return Inventory(
        path=str(run.path), command=shlex.join(map(str, run.meta.get("command") or ())),
        exit_code=run.meta.get("exit_code"), lasted_s=run.lasted_s, shown_s=run.shown_s,
        is_compacted=run.is_compacted, rows={table: run.rows(table) for table in TABLES},
        bytes_on_disk=of_segments + of_parquet,
        segment_bytes=of_segments, parquet_bytes=of_parquet,
        nodes=len({p.node for p in run.processes}),
        clock_bound_ns=None if -1 in bounds else max(bounds, default=0),
        processes=run.processes, problems=run.problems, imported=bool(run.meta.get("imported")),
        running=None if run.meta.get("end_real_ns") else run.goes_on,
        unreadable=unreadable(run), command_s=run.command_s,
    )  # fmt: skip


def _bytes(folder: Path) -> int:
    """Of the files of a folder, but for those that are deleted at this moment."""
    found = 0
    for file in own_files(folder)[0]:
        with suppress(FileNotFoundError):
            found += file.stat().st_size
    return found


def section(found: Inventory) -> Section:
    """Problems first, then what the run is and holds."""
    bound = found.clock_bound_ns
    clocks = "not aligned" if bound is None else f"aligned within {units.seconds(bound / 1e9)}"
    nodes = "1 node" if found.nodes == 1 else f"{found.nodes} nodes, clocks {clocks}"
    kinds = {"segments": found.segment_bytes, "Parquet": found.parquet_bytes}
    sizes = ", ".join(f"{kind} {units.size(size)}" for kind, size in kinds.items() if size)
    held = f" ({sizes})" if sizes else ""
    counts = ", ".join(f"{table} {rows:,}" for table, rows in found.rows.items() if rows)
    lines = (
        visible(found.command, _LONGEST_COMMAND),
        *brief([*_problems(found)], _MOST_PROBLEMS),
        f"{_state(found)}; {units.size(found.bytes_on_disk)} on disk{held}",
        f"{units.plural(len(found.processes), 'process')} on {nodes}",
        f"rows: {counts}" if counts else "no rows: nothing that rltrace knows ran",
    )
    shown = found.processes[:_MOST_PROCESSES]
    pid, rank = numbers("process", "rank")
    grid = table(map(_cells, shown), pid, "host", "role", rank, TableColumn("argv", least_width=90))
    more = len(found.processes) - len(shown)
    notes = (f"{more} more: rltrace query 'SELECT * FROM processes'",) if more else ()
    return Section(found.path, tuple(filter(None, lines)), grid, notes)


def _problems(found: Inventory) -> Iterator[str]:
    if found.unreadable is not None:
        yield f"! {found.unreadable}"
    yield from (f"! {line}" for line in outlived_lines(found.lasted_s, found.command_s))
    kinds = Counter((str(p.get("what")), _about(p)) for p in found.problems)
    for (what, target), times in kinds.items():
        often = f" ({times} times)" if times > 1 else ""
        mark = "·" if what in HARMLESS else "!"
        yield f"{mark} {visible(what, 60)} {visible(target, _LONGEST_COMMAND)}".rstrip() + often


def _about(problem: dict[str, Any]) -> str:
    """What it is of; where a job was stuck, who it waited for, and not since when (ns)."""
    stuck = stuck_of(problem.get(STUCK))
    return str(problem.get("target", "")) if stuck is None else stuck.culprit.says


def _state(found: Inventory) -> str:
    """How the run ended and what it lasted, or that it goes on."""
    lasted = "" if found.lasted_s is None else units.lasted(found.lasted_s, found.shown_s)
    if found.imported:
        return f"imported, lasted {lasted}" if lasted else "imported"
    if found.exit_code is not None:
        return f"exit code {found.exit_code}, lasted {lasted or 'unknown'}"
    if lasted:
        return f"ended, exit code not seen; lasted {lasted}"
    if found.running is None:
        return "still running, or ended without saying so"
    return "running" if found.running else "ended without saying so"


def _cells(process: TracedProcess) -> tuple[str, ...]:
    rank = "-" if process.rank is None else str(process.rank)
    argv = " ".join(shlex.join(map(str, process.facts.get("argv") or [])).split())
    role = process.role or (f"child of {process.child_of}" if process.child_of else "-")
    texts = (visible(text, _LONGEST) for text in (process.host, role, rank))
    return (str(process.pid), *texts, visible(argv, _LONGEST_ARGUMENTS))
