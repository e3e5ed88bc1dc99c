"""What a timeline of a million slices costs, beside Perfetto's own writer of the same packets.

    python -m benchmarks.timeline_scale [--rounds 5] [--json]

Each round, in processes of their own that take turns: the export of a run from its files to
`t.pftrace` and to `t.pftrace.gz`; and `StreamingTraceProtoBuilder` of the package perfetto, which
gets every slice, reading and arrow of that timeline as Python values in memory and writes them as
its documentation shows. CPU seconds of all threads; imports, and making those values, not counted.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import click

from benchmarks.make_trace import Workload, make
from benchmarks.measuring import Check, Result, spread, take_turns

SLICES = 1_000_000
LIMIT_S, LIMIT_MB, TIMES = 1.5, 300, 5


def made(path: Path) -> None:
    """Writes the run: about a million slices, six in seven of them spans; in a process of its own,
    since the memory of this one would count as its children's."""
    make(path, Workload(placement="async", steps=100, prompts=64, spans=SLICES - 154_000))


@dataclass
class Writer:
    """A writer in a process of its own; remembers the most memory that it ever took, and what the
    timeline held."""

    kind: str
    run: Path
    target: Path
    peak_mb: float = 0.0
    held: str = ""

    def __call__(self) -> float:
        """Writes once; CPU seconds. Errors: CalledProcessError."""
        command = [sys.executable, "-m", "benchmarks.timeline_writers", self.kind]
        said = subprocess.run(
            [*command, str(self.run), str(self.target)], check=True, capture_output=True, text=True
        )
        seconds, megabytes, self.held = said.stdout.strip().split(maxsplit=2)
        self.peak_mb = max(self.peak_mb, float(megabytes))
        return float(seconds)


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(rounds: int, as_json: bool) -> None:
    """CPU and memory of an export of a million slices; exits 1 when a limit is missed."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        with ProcessPoolExecutor(1, get_context("spawn")) as maker:
            maker.submit(made, run).result()
        plain, builder = Path(folder, "t.pftrace"), Path(folder, "builder.pftrace")
        writers = {
            "rltrace": Writer("rltrace", run, plain),
            "rltrace, gzipped": Writer("rltrace", run, Path(folder, "t.pftrace.gz")),
            "StreamingTraceProtoBuilder": Writer("builder", plain, builder),
        }
        writers["rltrace"]()  # the builder is given what stands in there
        seconds = take_turns(writers, rounds)
        size_mb = {name: writer.target.stat().st_size / 1e6 for name, writer in writers.items()}
    own, packed, theirs = (seconds[name] for name in writers)
    ratios = [slow / fast for slow, fast in zip(theirs, own, strict=True)]
    result = Result("a timeline of a million slices", "s CPU")
    result.rows = {name: spread(taken) for name, taken in seconds.items()}
    result.rows["times faster than StreamingTraceProtoBuilder"] = spread(ratios)
    result.notes = {
        "held": writers["rltrace"].held,
        "written": ", ".join(f"{name} {size:.1f} MB" for name, size in size_mb.items()),
        "gzip": f"adds {spread(packed).median - spread(own).median:.2f} s",
    }
    peak_mb = max(writers[name].peak_mb for name in ("rltrace", "rltrace, gzipped"))
    result.checks = [
        Check.median("CPU of the export", own, LIMIT_S, "s"),
        Check.median("CPU / StreamingTraceProtoBuilder's", [1 / r for r in ratios], 1 / TIMES),
        Check("peak resident memory", peak_mb, LIMIT_MB, "MB"),
    ]
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
