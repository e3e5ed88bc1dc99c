"""The runs of a folder, a line each."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltrace.report import units
from rltrace.trace.errors import RltraceError
from rltrace.trace.liveness import OUTLIVED, Liveness, command_s
from rltrace.trace.metadata_validation import described, read_run_json
from rltrace.trace.run_dir import PROCESS, RUN_FILE
from rltrace.trace.safe_text import visible
from rltrace.trace.untrusted_files import own_files, read_own

if TYPE_CHECKING:
    from rich.console import Console

_LONGEST_NAME = 40
_WIDE = 100
_NUMBERS = ("lasted", "exit", "processes")


@dataclass(frozen=True)
class RunEntry:
    """One run. None: `start_ns` cannot be read; `lasted_s` (to the end of its command) while it
    runs or when it ended without saying so; `running` cannot be told here."""

    path: str
    command: str
    start_ns: int | None
    lasted_s: float | None
    exit_code: int | None
    processes: int | None
    running: bool | None
    problem: str | None


def entries(paths: list[Path]) -> list[RunEntry]:
    """What is known of each run without reading its tables; unreadable ones are listed as such."""
    return [_entry(path) for path in paths]


def entries_at(url: str) -> list[RunEntry]:
    """What is known, without bringing them, of the runs at a URL. Errors: `RltraceError`."""
    from rltrace.trace.transfer.store import Store, child, unreached

    alive = Liveness()
    listed = []
    try:
        store = Store(url)
        for name in store.folders():
            meta = store.get_json(f"{name}/{RUN_FILE}")
            if meta is not None:
                listed.append(_described(child(store.url, name), meta, None, alive))
        if not listed and not store.is_folder():
            raise RltraceError(f"there is no folder {url}: give one that holds runs")
    except OSError as error:
        raise unreached(url, error) from None
    return sorted(listed, key=lambda entry: (entry.start_ns or 0, entry.path))


def render(listed: list[RunEntry], console: Console) -> None:
    """Prints the runs, newest last: a line each, which a terminal cuts where it ends."""
    from rltrace.report.formats.terminal_tables import print_lines

    if not listed:
        console.print("no runs here: record one with `rltrace wrap -- python train.py`")
        return
    narrow = console.is_terminal and console.width < _WIDE
    longest_name = _LONGEST_NAME if console.is_terminal else None
    cells = [_cells(entry, longest_name) for entry in listed]
    names = [name for name in cells[0] if not (narrow and name == "processes")]
    right = [names.index(name) for name in _NUMBERS if name in names]
    print_lines(console, names, [[cell[name] for name in names] for cell in cells], right)


def _cells(entry: RunEntry, longest_name: int | None) -> dict[str, str]:
    name = visible(Path(entry.path).name, longest_name)
    if entry.problem is not None:
        unknown = dict.fromkeys(("started", "lasted", "exit", "processes"), "-")
        return {"run": name, **unknown, "command": visible(entry.problem)}
    began = time.localtime((entry.start_ns or 0) / 1e9)
    code = "-" if entry.exit_code is None else str(entry.exit_code)
    program, space, arguments = entry.command.partition(" ")
    if "'" not in program:  # without the folder of the program
        program = program.rpartition("/")[2] or program
    return {
        "run": name,
        "started": "-" if entry.start_ns is None else time.strftime("%Y-%m-%d %H:%M", began),
        "lasted": "-" if entry.lasted_s is None else units.seconds(entry.lasted_s),
        "exit": "running" if entry.running else code,
        "processes": "-" if entry.processes is None else str(entry.processes),
        "command": visible(program + space + arguments),
    }


def _entry(path: Path) -> RunEntry:
    try:
        meta = read_run_json(str(path))
        files, _ = own_files(path / PROCESS, ".json")
        processes = sum(1 for file in files if b'"role":"agent"' not in read_own(file))
    except (RltraceError, OSError) as error:
        return _unreadable(str(path), error)
    return _described(str(path), meta, processes, Liveness(path))


def _described(path: str, meta: dict[str, Any], processes: int | None, alive: Liveness) -> RunEntry:
    try:
        meta = described(meta, path)
        lasted_s = command_s(meta)
        if meta.get(OUTLIVED) and processes is not None:  # it is here
            from rltrace.trace.read.run import open_run

            lasted_s = open_run(path).lasted_s
        return RunEntry(
            path=path,
            command=shlex.join(map(str, meta.get("command") or ())),
            start_ns=int(meta["start_real_ns"]),
            lasted_s=lasted_s,
            exit_code=meta.get("exit_code"),
            processes=processes,
            running=alive.of_command(meta) if lasted_s is None else False,
            problem=None,
        )
    except (RltraceError, KeyError, TypeError, ValueError) as error:
        return _unreadable(path, error)


def _unreadable(path: str, error: Exception) -> RunEntry:
    why = str(error).replace(f"{path}/", "").removeprefix(f"{path} ")
    if isinstance(error, KeyError):
        why = f"{RUN_FILE} does not say its {error}"
    return RunEntry(path, "", None, None, None, 0, None, f"unreadable: {why}")
