"""What a long run of 2,000 processes takes: 1, 10 and 100 million rows, in all tables.

    python -m benchmarks.scale [--rows 1 --rows 10 --rows 100] [--processes 2000] [--keep FOLDER]

For each size the run is made and compacted, its segments are deleted, and the report, a query, the
report of one step and the timeline of ten are each one command in a process of its own, Python's
start and all imports included. Time is the command's wall clock, memory the most that the whole
process ever had resident (`ru_maxrss`; no command starts others). 100 million rows take 5 GB of
disk until they are compacted, and 0.7 GB then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import click

from benchmarks.make_trace import make_long
from benchmarks.measuring import Check, Result, spread

MILLION = 1_000_000
LARGEST = 100
REPORT_S, REPORT_MB = 60, 2_000
GROWTH = 1.3  # seconds a row at the largest size over those at the one before
QUESTION = "SELECT stage, role, count(*), sum(tokens) FROM spans GROUP BY ALL"


def command_of(arguments: Sequence[object]) -> tuple[float, float]:
    """Runs a command of rltrace: wall seconds and the most resident memory, MB. Errors:
    RuntimeError when it fails."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "rltrace", *map(str, arguments)]
    room = {**os.environ, "RLTRACE_BOUNDS": "4"}  # 100 million rows need more than usual
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=room)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{command} ended with exit code {child.returncode}")
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def measure(path: Path, millions: float, processes: int) -> dict[str, tuple[float, float]]:
    """Seconds and MB of each command on a run of so many rows, which is made in `path`."""
    with ProcessPoolExecutor(1, get_context("spawn")) as maker:  # its memory is not ours
        rows = round(millions * MILLION)
        steps = maker.submit(make_long, path, rows, processes).result()
    middle = steps // 2
    timeline = path.parent / "timeline.pftrace.gz"
    commands: dict[str, list[object]] = {
        "compact": ["compact", path, "--delete-segments"],
        "report": ["report", path],
        "query": ["query", path, QUESTION],
        "report of a step": ["report", path, "--steps", middle],
        "timeline of 10 steps": [
            *("timeline", path, "-o", timeline, "--steps", f"{middle}..{middle + 9}"),
        ],
    }
    return {name: command_of(arguments) for name, arguments in commands.items()}


@click.command()
@click.option("--rows", "sizes", multiple=True, type=float, default=(1, 10, LARGEST), metavar="M")
@click.option("--processes", default=2_000, show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), help="Make the runs here, and keep them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(sizes: tuple[float, ...], processes: int, keep: Path | None, as_json: bool) -> None:
    """Time and memory by the number of rows, in millions; exits 1 when a limit is missed."""
    sizes = tuple(sorted(sizes))
    found = {}
    for millions in sizes:
        folder = keep if keep is not None else Path(tempfile.mkdtemp())
        try:
            found[millions] = measure(folder / f"{millions:g}M", millions, processes)
        finally:
            if keep is None:
                shutil.rmtree(folder)
    result = Result(f"runs of {processes:,} processes", "s wall")
    for name in next(iter(found.values())):
        for millions, taken in found.items():
            result.rows[f"{name}, {millions:g} M rows"] = spread([taken[name][0]])
        memory = (f"{millions:g} M {taken[name][1]:,.0f}" for millions, taken in found.items())
        result.notes[f"peak resident memory of {name}, MB"] = ", ".join(memory)
    seconds, peak_mb = found[sizes[-1]]["report"]
    allowed = sizes[-1] / LARGEST
    result.checks = [
        Check(f"report of {sizes[-1]:g} million rows", seconds, max(10, REPORT_S * allowed), "s"),
        Check(f"memory for {sizes[-1]:g} million rows", peak_mb, REPORT_MB, "MB"),
    ]
    if len(sizes) > 1:
        least, most = sizes[-2], sizes[-1]
        for name in ("report", "compact", "query"):
            grown = found[most][name][0] / found[least][name][0] / (most / least)
            what = f"seconds a row of {name}, {most:g} M over {least:g} M"
            result.checks.append(Check(what, grown, GROWTH, ""))
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
