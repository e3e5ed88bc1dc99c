"""The runs of a folder, a line each."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rltrace.trace.errors import RltraceError
from rltrace.trace.run_dir import PROCESS, read_run_json


@dataclass(frozen=True)
class Entry:
    """One run. `seconds` is None while it runs, or when it ended without saying so."""

    path: str
    command: str
    start_real_ns: int
    seconds: float | None
    exit_code: int | None
    processes: int
    problem: str | None


def entries(paths: list[Path]) -> list[Entry]:
    """What is known of each run without reading its tables; unreadable ones are listed as such."""
    return [_entry(path) for path in paths]


def to_json(listed: list[Entry]) -> list[dict[str, Any]]:
    """The entries as dicts."""
    return [asdict(entry) for entry in listed]


def render(listed: list[Entry], console: Console) -> None:
    """Prints the runs, newest last."""
    if not listed:
        console.print("no runs here: record one with `rltrace wrap -- python train.py`")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("run", "started", "seconds", "exit", "processes", "command"):
        right = name in ("seconds", "exit", "processes")
        table.add_column(name, justify="right" if right else "left", no_wrap=name == "run")
    for e in listed:
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e.start_real_ns / 1e9))
        seconds = "-" if e.seconds is None else f"{e.seconds:.1f}"
        code = "-" if e.exit_code is None else str(e.exit_code)
        said = e.problem or e.command
        name = Path(e.path).name
        table.add_row(name, started, seconds, code, str(e.processes), said.replace("[", "\\["))
    if not console.is_terminal:
        console.width = max(console.width, console.measure(table).maximum)
    console.print(table)


def _is_of_job(process: Path) -> bool:
    return '"role":"agent"' not in process.read_text("utf-8", "replace")


def _entry(path: Path) -> Entry:
    try:
        meta = read_run_json(str(path))
        start, end = int(meta["start_real_ns"]), meta.get("end_real_ns")
        return Entry(
            path=str(path),
            command=shlex.join(map(str, meta.get("command") or [])),
            start_real_ns=start,
            seconds=(int(end) - start) / 1e9 if end else None,
            exit_code=meta.get("exit_code"),
            processes=sum(1 for file in (path / PROCESS).glob("*.json") if _is_of_job(file)),
            problem=None,
        )
    except (RltraceError, KeyError, TypeError, ValueError) as error:
        return Entry(str(path), "", 0, None, None, 0, f"unreadable: {error}")
