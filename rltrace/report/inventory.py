"""What a run holds: processes, rows, bytes, clocks, problems."""

from __future__ import annotations

import shlex
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import filesize
from rich.console import Console
from rich.text import Text

from rltrace.report import units
from rltrace.report.plain_table import print_lines
from rltrace.report.run_lines import dropped_lines, outlived_lines
from rltrace.trace.damage import unreadable
from rltrace.trace.dropped import Dropped
from rltrace.trace.own_files import own_files
from rltrace.trace.printable import visible
from rltrace.trace.processes import Process
from rltrace.trace.run import Run
from rltrace.trace.run_dir import PARQUET
from rltrace.trace.sampled import only_some
from rltrace.trace.schema import TABLES

_LONGEST = 60  # characters of a name that is shown
_LONGEST_ARGUMENTS = 80


@dataclass(frozen=True)
class Inventory:
    """Everything that `rltrace info` shows. `lasted_s` is from the run's start to the end of its
    command, which `command_s` are, or of what outlived it, of which `shown_s` are shown (None: all,
    or not known); `bytes_on_disk` are those of its rows, of which `segment_bytes` in segments and
    `parquet_bytes` compacted; `running` is None where it has ended, or where nobody here can tell;
    `unreadable` says why nothing of the run can be read, or is None. `only_some` is why
    nothing is told of samples."""

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
    processes: list[Process]
    problems: list[dict[str, Any]]
    imported: bool
    running: bool | None
    unreadable: str | None
    dropped: Dropped | None = None
    only_some: str = ""
    command_s: float | None = None


def inventory(run: Run) -> Inventory:
    compacted = run.path / PARQUET
    of_segments = sum(_bytes(run.path / table) for table in TABLES)
    inside = {path.parent for path in compacted.glob("*/*")}
    of_parquet = sum(_bytes(folder) for folder in (compacted, *inside))
    rows = {table: run.rows(table) for table in TABLES}
    bounds = [p.clock_bound_ns for p in run.processes]
    return Inventory(
        path=str(run.path),
        command=shlex.join(map(str, run.meta.get("command") or ())),
        exit_code=run.meta.get("exit_code"),
        lasted_s=run.lasted_s,
        shown_s=run.shown_s,
        is_compacted=run.is_compacted,
        rows=rows,
        bytes_on_disk=of_segments + of_parquet,
        segment_bytes=of_segments,
        parquet_bytes=of_parquet,
        nodes=len({p.node for p in run.processes}),
        clock_bound_ns=None if -1 in bounds else max(bounds, default=0),
        processes=run.processes,
        problems=run.problems,
        imported=bool(run.meta.get("imported")),
        running=None if run.meta.get("end_real_ns") else run.goes_on,
        unreadable=unreadable(run),
        dropped=run.dropped,
        only_some=only_some(run.meta),
        command_s=run.command_s,
    )


def _bytes(folder: Path) -> int:
    """Of the files of a folder, but for those that are dropped at this moment."""
    found = 0
    for file in own_files(folder)[0]:
        with suppress(FileNotFoundError):
            found += file.stat().st_size
    return found


def render(found: Inventory, console: Console) -> None:
    console.print(Text(visible(found.path), style="bold"), soft_wrap=True)
    console.print(Text(visible(found.command)), soft_wrap=True)
    console.print(f"{_state(found)}; {_size(found)}", highlight=False, soft_wrap=True)
    bound = found.clock_bound_ns
    clocks = "not aligned with each other" if bound is None else f"aligned within {bound:,} ns"
    nodes = "1 node" if found.nodes == 1 else f"{found.nodes} nodes, clocks {clocks}"
    console.print(nodes, highlight=False)
    counts = ", ".join(f"{table} {rows:,}" for table, rows in found.rows.items() if rows)
    if found.unreadable is not None:
        console.print(Text(visible(found.unreadable), style="yellow"), soft_wrap=True)
    else:
        console.print(counts or "no rows: nothing that rltrace knows ran", highlight=False)
    if found.only_some:
        console.print(f"{found.only_some}: their rows are not shown", highlight=False)
    outlived = outlived_lines(found.lasted_s, found.command_s)
    for line in (*outlived, *dropped_lines(found.dropped)):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    columns = ("process", "host", "role", "rank", "argv")
    print_lines(console, columns, [_cells(process) for process in found.processes], right=(0, 3))
    kinds = Counter((str(p.get("what")), str(p.get("target", ""))) for p in found.problems)
    for (what, target), times in kinds.items():
        often = f" ({times} times)" if times > 1 else ""
        said = Text(visible(what, _LONGEST), style="yellow")
        said.append(f" {visible(target, _LONGEST)}{often}", style="default")
        console.print(said, soft_wrap=True)


def _state(found: Inventory) -> str:
    """How the run ended and what it lasted, or that it goes on."""
    lasted = "" if found.lasted_s is None else units.lasted(found.lasted_s, found.shown_s)
    if found.imported:
        return f"imported, lasted {lasted}" if lasted else "imported"
    if found.exit_code is not None:
        return f"exit code {found.exit_code}, lasted {lasted or 'unknown'}"
    if lasted:
        return f"ended, nobody saw how; lasted {lasted}"
    if found.running is None:
        return "still running, or ended without saying so"
    return "running" if found.running else "ended without saying so"


def _size(found: Inventory) -> str:
    """What the rows take on the disk, and as what."""
    kinds = {"segments": found.segment_bytes, "Parquet": found.parquet_bytes}
    held = {kind: size for kind, size in kinds.items() if size}
    whole = f"{filesize.decimal(found.bytes_on_disk)} on disk"
    if "Parquet" not in held:
        return whole
    if len(held) == 1:
        return f"{whole}, all of it Parquet"
    parts = [f"{filesize.decimal(size)} of {kind}" for kind, size in held.items()]
    return f"{whole} ({' and '.join(parts)})"


def _cells(process: Process) -> tuple[str, ...]:
    rank = "-" if process.rank is None else str(process.rank)
    argv = " ".join(shlex.join(map(str, process.facts.get("argv") or [])).split())
    role = process.role or (f"child of {process.child_of}" if process.child_of else "-")
    texts = (visible(text, _LONGEST) for text in (process.host, role, rank))
    return (str(process.pid), *texts, visible(argv, _LONGEST_ARGUMENTS))
