"""A job of thousands of processes that live for a moment, one after the other.

    python -m benchmarks.short_processes [--processes 10000] [--side-by-side 2] [--json]

Each starts from nothing under `rltrace wrap`, records a span and a reading, and ends with an exit
code of its own. All codes, all rows and all processes must be there, and nothing else; what a
process costs on disk and the time that reading the run takes are shown.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

import rltrace
from benchmarks.measuring import Check, Result, Spread

_CODES = 7

_JOB = f"""
import os, subprocess, sys
count, width = int(sys.argv[1]), int(sys.argv[2])
code = '''
import os, sys, rltrace
number = int(sys.argv[1])
with rltrace.span("reward", "judge", version=number, step=number % 100): pass
rltrace.counter("number", number)
os._exit(number % {_CODES}) if number % 2 else sys.exit(number % {_CODES})
'''
wrong = 0
for first in range(0, count, width):
    group = range(first, min(first + width, count))
    started = [subprocess.Popen([sys.executable, "-c", code, str(n)]) for n in group]
    wrong += sum(process.wait() != n % {_CODES} for n, process in zip(group, started))
print(wrong)
"""


def record(folder: Path, processes: int, width: int) -> tuple[float, int, str]:
    """Runs the job; its seconds, how many exit codes were others, and what was said on stderr."""
    command = [sys.executable, "-m", "rltrace", "wrap", "--out", str(folder / "run"), "--"]
    command += [sys.executable, "-c", _JOB, str(processes), str(width)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RLTRACE_")}
    began = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=True, cwd=Path.cwd()
    )
    return time.monotonic() - began, int(done.stdout), done.stderr


@click.command()
@click.option("--processes", default=10_000, show_default=True)
@click.option("--side-by-side", "width", default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(processes: int, width: int, as_json: bool) -> None:
    """Traces a job of very many short processes; exits 1 when anything is lost or invented."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        took_s, wrong, said = record(folder, processes, width)
        began = time.monotonic()
        run = rltrace.open_run(folder / "run")
        spans = run.sql("SELECT version, step, process FROM spans").fetchall()
        readings = run.sql("SELECT value FROM samples WHERE counter = 'number'").fetchall()
        read_s = time.monotonic() - began
        files = [path for path in (folder / "run").rglob("*") if path.is_file()]
        size_bytes = sum(path.stat().st_blocks * 512 for path in files)
        recorders = sum(process.role != "agent" for process in run.processes)
        problems = sum(problem["what"] != "no-gpu" for problem in run.problems)
    due = Counter((n, n % 100) for n in range(processes))
    found = Counter((version, step) for version, step, _ in spans)
    of_readings = Counter(int(value) for (value,) in readings)
    numbers = Counter(range(processes))
    result = Result("short processes", f"{processes:,} processes, {width} at a time")
    each_ms = 1000 * took_s / processes
    result.rows["ms a process, started and traced"] = Spread(each_ms, each_ms, each_ms, processes)
    result.notes["reading the run"] = f"{read_s:.1f} s"
    result.notes["on disk"] = f"{size_bytes / processes / 1024:.1f} KiB a process"
    lines = [line for line in said.splitlines() if "the trace is in" not in line]
    result.checks = [
        Check("exit codes that were others", wrong, 0, "processes"),
        Check("rows missing", (due - found + (numbers - of_readings)).total(), 0, "rows"),
        Check("rows nobody recorded", (found - due + (of_readings - numbers)).total(), 0, "rows"),
        Check("processes missing", abs(processes + 1 - recorders), 0, "processes"),
        Check("problems, and lines on stderr", problems + len(lines), 0, "lines"),
    ]
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
