"""What `rltrace report` takes on long runs, CPU and memory: 1, 3 and 10 million spans.

    python -m benchmarks.report_scale [--rounds 3] [--json]

The runs are synthetic and compacted; a round is the whole command in a process of its own, Python's
start and all imports included. The sizes take turns, each with a floor: DuckDB's exact quantiles of
the lengths of spans, by process and stage, of the same files. CPU seconds of all threads; modules
are compiled once, as they are where rltrace is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import click
import numpy as np

import rltrace
from benchmarks.make_trace import Workload, make
from benchmarks.measuring import Check, Result, spread, take_turns
from rltrace.testing.inside.trace import compaction_compact as compact
from rltrace.testing.inside.trace import delete_segments

MILLION = 1_000_000
SIZES = (1 * MILLION, 3 * MILLION, 10 * MILLION)


FLOOR = '''
import sys, duckdb
files = f"{sys.argv[1]}/parquet/spans/*.parquet"
print(duckdb.sql(f"""select process, stage, count(*), quantile_cont(end_ns - start_ns, [0.5, 0.9])
                     from read_parquet('{files}') group by all""").fetchall())
'''


@dataclass
class Command:
    """A command on one run; remembers the most memory that it ever took."""

    arguments: list[str]
    modules: Path
    peak_mb: float = 0.0

    def __call__(self) -> float:
        """Runs it once; CPU seconds. Errors: RuntimeError when it fails."""
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(self.modules)}
        child = subprocess.Popen(
            [sys.executable, *self.arguments],
            stdout=subprocess.DEVNULL,
            env={**os.environ, **compiled},
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{self.arguments} ended with exit code {child.returncode}")
        self.peak_mb = max(self.peak_mb, usage.ru_maxrss / 1024)
        return usage.ru_utime + usage.ru_stime


def compacted(path: Path, spans: int) -> Path:
    """Makes a compacted run of that many spans; called in a process of its own, since the memory of
    this one would count as its children's."""
    # By four workers, 10 million would be segments that are larger than any that rltrace writes.
    make(path, Workload(placement="async", spans=spans, rollout_workers=8))
    run = rltrace.open_run(path)
    compact(run)
    delete_segments(path)
    if run.problems:  # else a run that was not read whole would be quick
        raise RuntimeError(f"the run was not read whole: {run.problems[0]}")
    return path


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(rounds: int, as_json: bool) -> None:
    """Time and memory of the report by the number of spans; exits 1 when a limit is missed."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, str(size)) for size in SIZES]
        with ProcessPoolExecutor(1, get_context("spawn")) as maker:
            runs = list(maker.map(compacted, paths, SIZES))
        modules = Path(folder, "modules")
        reports = {
            f"{size / MILLION:g} M spans": Command(["-m", "rltrace", "report", str(path)], modules)
            for size, path in zip(SIZES, runs, strict=True)
        }
        floors = {
            f"{name}, the floor": Command(["-c", FLOOR, str(path)], modules)
            for name, path in zip(reports, runs, strict=True)
        }
        take_turns({**reports, **floors}, 1)  # which compiles the modules
        seconds = take_turns({**reports, **floors}, rounds)
    result = Result("rltrace report, compacted run", "s CPU")
    result.rows = {name: spread(taken) for name, taken in seconds.items()}
    for name in reports:
        pairs = zip(seconds[name], seconds[f"{name}, the floor"], strict=True)
        times = spread([report / floor for report, floor in pairs])
        result.rows[f"{name}, times the floor"] = times
    seconds = {name: seconds[name] for name in reports}
    medians = [result.rows[name].median for name in reports]
    least = [min(taken) for taken in seconds.values()]  # the least disturbed
    slope, base = np.polyfit(np.array(SIZES) / MILLION, least, 1)
    misfit = max(
        abs(base + slope * size / MILLION - taken) / taken
        for size, taken in zip(SIZES, least, strict=True)
    )
    peaks = ", ".join(f"{name} {report.peak_mb:,.0f} MB" for name, report in reports.items())
    result.notes = {
        "linear fit": f"{base:.2f} s + {slope:.3f} s a million spans, off by at most {misfit:.1%}",
        "peak resident memory": peaks,
    }
    peak_mb = max(report.peak_mb for report in reports.values())
    result.checks = [
        Check("10 million spans", medians[-1], 3.5, "s"),
        Check("memory for 10 million spans", peak_mb, 1000, "MB"),
        Check("seconds a span, from 3 to 10 million over from 1 to 3", _growth(least), 1.3, ""),
    ]
    sys.exit(result.finish(as_json))


def _growth(least: list[float]) -> float:
    """Seconds a span from 3 to 10 million spans over those from 1 to 3 million: 1 is linear."""
    first = (least[1] - least[0]) / (SIZES[1] - SIZES[0])
    then = (least[2] - least[1]) / (SIZES[2] - SIZES[1])
    return then / first


if __name__ == "__main__":
    main()
