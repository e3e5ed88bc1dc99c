"""What `rltrace report` takes on short and long runs, CPU and memory.

    python -m benchmarks.report_scale [--rounds 3] [--json]

The runs are synthetic and compacted; a round is the whole command in a process of its own, Python's
start and all imports included. The runs take turns, each with a floor: DuckDB's exact quantiles of
the lengths of spans, by process and stage, of the same files; and with a process that imports what
a report has imported in the end. CPU seconds of all threads; modules are compiled once, as they are
where rltrace is installed.
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
SHORT, SAMPLES = "3,000 spans", "250,000 spans, 8,192 samples a step"
IMPORTED = "imports alone"
# By four workers, 10 million would be segments that are larger than any that rltrace writes.
RUNS = {
    SHORT: Workload(placement="async", spans=3000),
    SAMPLES: Workload(
        placement="disaggregated", prompts=512, group=16, rollout_workers=8, spans=250_000
    ),
    **{
        f"{size // MILLION} M spans": Workload(placement="async", spans=size, rollout_workers=8)
        for size in SIZES
    },
}
IMPORTS = """
import sys
from click.testing import CliRunner
from rltrace.cli import main
assert CliRunner().invoke(main, ["report", sys.argv[1]]).exit_code == 0
print(*[name for name, module in sys.modules.items()
        if getattr(module, "__file__", "") and all(map(str.isidentifier, name.split(".")))
        and name not in ("__main__", "click.testing")])
"""

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


def compacted(path: Path, workload: Workload) -> Path:
    """Makes a compacted run; called in a process of its own, since the memory of this one would
    count as its children's."""
    make(path, workload)
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
    """Time and memory of the report by the size of a run; exits 1 when a limit is missed."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, str(number)) for number in range(len(RUNS))]
        with ProcessPoolExecutor(1, get_context("spawn")) as maker:
            runs = dict(zip(RUNS, maker.map(compacted, paths, RUNS.values()), strict=True))
        modules = Path(folder, "modules")
        reports = {
            name: Command(["-m", "rltrace", "report", str(path)], modules)
            for name, path in runs.items()
        }
        floors = {
            f"{name}, the floor": Command(["-c", FLOOR, str(path)], modules)
            for name, path in runs.items()
        }
        asked = [sys.executable, "-c", IMPORTS, str(runs[SHORT])]
        names = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout
        imports = Command(["-c", f"import {', '.join(names.split())}"], modules)
        turns = {**reports, **floors, IMPORTED: imports}
        take_turns(turns, 1)  # which compiles the modules
        seconds = take_turns(turns, rounds)
    result = Result("rltrace report, compacted run", "s CPU")
    result.rows = {name: spread(taken) for name, taken in seconds.items()}

    def times(name: str, other: str) -> list[float]:
        return [one / two for one, two in zip(seconds[name], seconds[other], strict=True)]

    for name in reports:
        result.rows[f"{name}, times the floor"] = spread(times(name, f"{name}, the floor"))
    largest = [f"{size // MILLION} M spans" for size in SIZES]
    least = [min(seconds[name]) for name in largest]  # the least disturbed
    slope, base = np.polyfit(np.array(SIZES) / MILLION, least, 1)
    peaks = ", ".join(f"{name} {report.peak_mb:,.0f} MB" for name, report in reports.items())
    result.notes = {
        "linear fit": f"{base:.2f} s + {slope:.3f} s a million spans",
        "peak resident memory": peaks,
    }
    result.checks = [
        Check.median(f"{SHORT} / imports", times(SHORT, IMPORTED), 3.0),
        Check.median(SAMPLES, seconds[SAMPLES], 1.5, "s"),
        Check.median("10 million spans", seconds[largest[-1]], 3.5, "s"),
        Check("memory for 10 million spans", reports[largest[-1]].peak_mb, 1000, "MB"),
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
