"""What `kill -9` costs: nothing that was stored.

    python -m benchmarks.kill_survival [--kills 200] [--json]

Each trial starts a process (`killed_process`) whose two threads record rows of four tables through
the public API and count in shared memory what is stored. It is killed at a random moment; then
every file must be readable by stock pyarrow, and every row that was counted must be in one.
"""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

import rltrace
from benchmarks.killed_process import THREADS
from benchmarks.measuring import Check, Result, Spread
from rltrace.testing.inside.hooks import identify
from rltrace.testing.inside.trace import TABLES, create_run

LONGEST_LIFE_S = 0.1
OPENING_S = 0.0006  # from the first file's directory entry to the first rows of all tables


@dataclass(frozen=True)
class Trial:
    """What one killed process left behind."""

    acknowledged: int
    missing: list[str]
    unreadable: list[str]


def kill_once(folder: Path, chance: random.Random) -> Trial:
    """Starts a recording process, kills it, and looks through its files."""
    run, counters = folder / "run", folder / "acknowledged"
    create_run(str(run), [], {}, rltrace.__version__)
    counters.write_bytes(bytes(8 * THREADS))
    command = [sys.executable, "-m", "benchmarks.killed_process", str(run), str(counters)]
    child = subprocess.Popen(command)
    # One in ten is killed at some moment of its start, two as they make their first files.
    moment = chance.random()
    if moment < 0.7:
        wait_for(child, lambda: any(counters.read_bytes()))
    elif moment < 0.9:
        wait_for(child, lambda: any((run / "spans").iterdir()))
    rest_s = OPENING_S if 0.7 <= moment < 0.9 else LONGEST_LIFE_S
    time.sleep(chance.random() * rest_s)
    child.kill()
    child.wait()
    rows = struct.unpack(f"{THREADS}q", counters.read_bytes())
    stored, unreadable = read_with_pyarrow(run)
    due = expected(rows)
    missing = [f"{table} {key}" for table, key in due if key not in stored[table]]
    return Trial(len(due), missing, unreadable)


def wait_for(child: subprocess.Popen[bytes], happened: Callable[[], bool]) -> None:
    """Looks without a pause, so that the moment is not missed."""
    while not happened():
        if child.poll() is not None:
            raise RuntimeError("the recording process ended by itself")


def expected(rows: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """Every row that must be there, by its identifying columns (`KEYS`)."""
    keys: list[tuple[str, tuple[int, ...]]] = []
    for thread, count in enumerate(rows):
        for row in range(count):
            keys.append(("spans", (thread, row)))
            keys.append(("samples", (thread, row)))
            if row % 10 == 0:
                keys.append(("trajectories", (identify(f"{thread}/{row}"), row)))
                keys.append(("uses", (thread, row)))
    return keys


KEYS = {
    "spans": ("version", "step"),
    "samples": ("device", "value"),
    "trajectories": ("trajectory", "response_tokens"),
    "uses": ("version", "step"),
}
"""The columns that say which row of the loop a stored row is."""


def read_with_pyarrow(run: Path) -> tuple[dict[str, set[tuple[int, ...]]], list[str]]:
    """The rows of all segments, and the files that pyarrow cannot read to their end."""
    stored: dict[str, set[tuple[int, ...]]] = {table: set() for table in TABLES}
    unreadable = []
    for path in run.glob("*/*.arrows"):
        table = path.parent.name
        try:
            with pa.OSFile(str(path)) as file:
                content = ipc.open_stream(file).read_all()
            content.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            unreadable.append(f"{path.parent.name}/{path.name}: {error}")
            continue
        marker = TABLES[table].columns[0].name
        used = content.filter(pc.not_equal(content[marker], 0))
        if table == "spans":  # what is acknowledged has ended
            used = used.filter(pc.greater_equal(used["end_ns"], used["start_ns"]))
        stored[table].update(zip(*(used[key].to_pylist() for key in KEYS[table]), strict=True))
    return stored, unreadable


@click.command()
@click.option("--kills", default=200, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(kills: int, seed: int, as_json: bool) -> None:
    """Kills recording processes; exits 1 when a stored row is lost or a file unreadable."""
    chance = random.Random(seed)
    trials = []
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as folder:
            trials.append(kill_once(Path(folder), chance))
    result = Result("kill -9 while recording", "rows acknowledged before the kill")
    counts = sorted(t.acknowledged for t in trials)
    result.rows["a trial"] = Spread(
        counts[len(counts) // 2], counts[len(counts) // 10], counts[len(counts) * 9 // 10], kills
    )
    result.notes["rows acknowledged in all"] = f"{sum(counts):,}"
    for trial in trials:
        for what in (*trial.missing[:3], *trial.unreadable[:3]):
            result.notes[what] = "lost"
    result.checks = [
        Check("stored rows missing", sum(len(t.missing) for t in trials), 0, "rows"),
        Check("files not readable", sum(len(t.unreadable) for t in trials), 0, "files"),
    ]
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
