"""What a run holds: processes, rows, bytes, clocks, problems."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from rich import filesize
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rltrace.trace.processes import Process
from rltrace.trace.run import Run
from rltrace.trace.run_dir import PARQUET
from rltrace.trace.schema import TABLES

_LONGEST = 200  # characters of a name that is shown


@dataclass(frozen=True)
class Inventory:
    """Everything that `rltrace info` shows. `bytes_on_disk` counts segments and Parquet."""

    path: str
    command: str
    exit_code: int | None
    seconds: float | None
    is_compacted: bool
    rows: dict[str, int]
    bytes_on_disk: int
    nodes: int
    clock_bound_ns: int | None
    processes: list[Process]
    problems: list[dict[str, Any]]
    imported: bool


def inventory(run: Run) -> Inventory:
    """Counts what is there."""
    folders = (*TABLES, PARQUET)
    files = [f for folder in folders for f in (run.path / folder).glob("*") if f.is_file()]
    rows = {table: run.rows(table) for table in TABLES}
    start, end = (_integer(run.meta.get(key)) for key in ("start_real_ns", "end_real_ns"))
    command = run.meta.get("command")
    bounds = [p.clock_bound_ns for p in run.processes]
    return Inventory(
        path=str(run.path),
        command=shlex.join(map(str, command)) if isinstance(command, list) else "",
        exit_code=_integer(run.meta.get("exit_code")),
        seconds=(end - start) / 1e9 if start and end else None,
        is_compacted=run.is_compacted,
        rows=rows,
        bytes_on_disk=sum(f.stat().st_size for f in files),
        nodes=len({p.node for p in run.processes}),
        clock_bound_ns=None if -1 in bounds else max(bounds, default=0),
        processes=run.processes,
        problems=run.problems,
        imported=bool(run.meta.get("imported")),
    )


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) else None


def to_json(found: Inventory) -> dict[str, Any]:
    """The inventory as a dict."""
    return asdict(found)


def render(found: Inventory, console: Console) -> None:
    """Prints the inventory."""
    state = "imported" if found.imported else "still running, or ended without saying so"
    if found.exit_code is not None:
        state = f"exit code {found.exit_code}"
    before = "," if found.imported else " after"
    took = "" if found.seconds is None else f"{before} {found.seconds:.1f} s"
    console.print(f"[bold]{escape(found.path)}[/bold]", highlight=False, soft_wrap=True)
    console.print(found.command, markup=False, highlight=False, soft_wrap=True)
    size = filesize.decimal(found.bytes_on_disk)
    console.print(f"{state}{took}; {size} on disk", highlight=False)
    bound = found.clock_bound_ns
    clocks = "not aligned with each other" if bound is None else f"aligned within {bound:,} ns"
    nodes = "1 node" if found.nodes == 1 else f"{found.nodes} nodes, clocks {clocks}"
    console.print(nodes, highlight=False)
    counts = ", ".join(f"{table} {rows:,}" for table, rows in found.rows.items() if rows)
    console.print(counts or "no rows: nothing that rltrace knows ran", highlight=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("process", "host", "role", "rank", "argv"):
        right = name in ("process", "rank")
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=name != "argv",
            overflow="fold" if name == "argv" else "ignore",
            min_width=None if name == "argv" else len(name),
        )
    for process in found.processes:
        rank = "-" if process.rank is None else str(process.rank)
        argv = " ".join(shlex.join(map(str, process.facts.get("argv") or [])).split())
        shown = argv if len(argv) <= 80 else f"{argv[:20]} ... {argv[-55:]}"
        role = process.role or (f"child of {process.child_of}" if process.child_of else "-")
        table.add_row(str(process.pid), process.host, escape(role), rank, escape(shown))
    if not console.is_terminal:
        console.width = max(console.width, console.measure(table).maximum)
    console.print(table)
    kinds = Counter((str(p.get("what")), str(p.get("target", ""))) for p in found.problems)
    for (what, target), times in kinds.items():
        often = f" ({times} times)" if times > 1 else ""
        said = f"[yellow]{escape(_visible(what))}[/yellow] {escape(_visible(target))}{often}"
        console.print(said, highlight=False)


def _visible(text: str) -> str:
    """A name of the job's as one short line: what cannot be printed is written out."""
    shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in shown
    )
