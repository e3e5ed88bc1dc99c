"""Weight updates of a framework's real job, its own way and by rltrace.sync: what the benchmarks of
such jobs share. The first update of a run, which opens connections or takes memory, is left out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.environments import ROOT, python_of
from benchmarks.measuring import Check, Result, spread
from benchmarks.stage_truth import in_turn
from tests.framework_jobs import Ended

JobT = TypeVar("JobT")
EndedT = TypeVar("EndedT", bound=Ended[Any])

OURS = "rltrace.sync"
TIME_LIMIT = BYTES_LIMIT = 1.0
"""Of ours, over those of the framework's own."""


def compared(
    ways: Mapping[str, JobT],
    rounds: int,
    make_assets: Callable[[Path], Path],
    train: Callable[[JobT, Path, Path], EndedT],
    judge: Callable[[dict[str, list[EndedT]]], None],
) -> None:
    """Runs each way's job once a round, in turn, and has all of them judged while their traces are
    there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assets = make_assets(folder / "sums")

        def run(way: str, nth: int) -> EndedT:
            print(f"{way}, {nth + 1} of {rounds}", file=sys.stderr)
            return train(ways[way], assets, folder / f"{nth}-{way == OURS}")

        judge(in_turn(list(ways), rounds, run))


def updates_ms(job: Ended[Any], span: str) -> list[float]:
    """Milliseconds of each update after the first: as long as the framework's `span` lasts."""
    return job.rows(
        f"SELECT (end_ns - start_ns) / 1e6 FROM spans WHERE name = '{span}' "
        "ORDER BY start_ns OFFSET 1"
    )


def update_bytes(job: Ended[Any]) -> int:
    """What the policy sent in an update, by the trace; the same in each. Of a framework's own calls
    it knows the size of what it sent."""
    [sent] = job.rows(
        "SELECT DISTINCT coalesce(wire_bytes, bytes) FROM syncs WHERE role = 'source'"
    )
    return int(sent)


def held(done: Mapping[str, Sequence[Ended[Any]]], span: str, own: str, result: Result) -> None:
    """Both ways' updates, and ours against the framework's own."""
    times = {way: [t for job in jobs for t in updates_ms(job, span)] for way, jobs in done.items()}
    sizes = {way: max(map(update_bytes, jobs)) for way, jobs in done.items()}
    for way, found in times.items():
        result.rows[f"{way}: an update"] = spread(found)
        result.notes[way] = f"{sizes[way]:,} bytes in an update"
    ratio = float(np.median(times[OURS]) / np.median(times[own]))
    what = f"an update by {OURS}, over one by {own}"
    result.checks.append(Check(f"{what}, medians", ratio, TIME_LIMIT, "of its time"))
    result.checks.append(Check(what, sizes[OURS] / sizes[own], BYTES_LIMIT, "of its bytes"))


def by_the_python_of(framework: str, title: str, module: str) -> None:
    """Where this Python does not have the framework, runs the benchmark by the one that does, and
    ends with its exit code; with 0 and a word where there is none: then nothing was missed."""
    if find_spec(framework) is not None:
        return
    python = python_of(framework)
    if python is None or python.parent.parent == Path(sys.prefix):
        command = f"`make test-{framework}`"
        print(f"{title} is not installed: {command} installs it where this looks for it")
        raise SystemExit(0)
    words = [str(python), "-m", module, *sys.argv[1:]]
    raise SystemExit(subprocess.run(words, cwd=ROOT, check=False).returncode)
