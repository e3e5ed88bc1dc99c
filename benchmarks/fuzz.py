"""Fuzzes every parser of what comes from elsewhere: `make fuzz`, or `python -m benchmarks.fuzz`.

    --executions 10_000_000    of all parsers together (default: what is asked for of a release)
    --segment 1_000_000        at least so many of them through the readers of segments
    --seconds 600              stop after so long, in which each target has its turn; the next call
                               goes on where this one stopped
    --only NAME                these targets only (repeatable)

Each target runs in processes of its own, with limits of memory and time, guided by coverage
(atheris). All have the same time, whatever their inputs take; segments have more, should they need
it for their number. What a target has learnt, how often it ran and what it found stay in
build/fuzz. Exits 1 where there is a finding, or less was executed than was asked for (of a given
time nothing is asked). Findings are to be mended, made small and put into tests/fuzz/findings,
where `make test` tries them for ever.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.target import folder_in_memory
from tests.fuzz.targets import TARGETS
from tests.fuzz.worker import fuzz

_STATE = Path("build/fuzz")
_PIECE_S = 60  # of one target, then it is the next one's turn
_GRACE_S = 900  # a piece that has not ended by then hangs where no alarm reaches it
_SEGMENT = "segment"
_MOST_SAID = 20_000  # characters, of a worker that ended without leaving an input
_EXECUTED = re.compile(r"^(?:stat::number_of_executed_units: |#)(\d+)", re.MULTILINE)
_EDGES = re.compile(r"\bcov: (\d+) ft: (\d+) corp: (\d+)")
_RAISED = re.compile(r"=== Uncaught Python exception: ===\n(.*)")


@dataclass
class Progress:
    """How far a target is: executions, seconds of CPU, branches of the code that some input reached
    (libFuzzer's edges), inputs in the corpus, and findings by file."""

    executions: int = 0
    seconds: float = 0.0
    edges: int = 0
    corpus: int = 0
    findings: dict[str, str] = field(default_factory=dict)


def main() -> int:
    """Fuzzes in pieces until enough is executed, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=10_000_000)
    parser.add_argument("--segment", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--piece", type=int, default=_PIECE_S, help="seconds of a turn")
    parser.add_argument("--only", action="append", choices=list(TARGETS))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    names = asked.only or list(TARGETS)
    until = time.monotonic() + asked.seconds
    progress = {name: _read(name) for name in names}
    while time.monotonic() < until:
        name = _next(progress, asked.executions, asked.segment)
        if name is None:
            break
        turn_s = min(asked.piece, asked.seconds / len(names), until - time.monotonic())
        seconds = max(1, int(turn_s))
        _fuzz(name, progress[name], seconds)
        _write(name, progress[name])
        if not asked.json:
            print(f"{name}: {progress[name].executions:,}", flush=True)
    covered = {name: _covered(name) for name in names}
    in_time = asked.seconds < float("inf")
    enough = in_time or _next(progress, asked.executions, asked.segment) is None
    found = sum(len(one.findings) for one in progress.values())
    if asked.json:
        rows = {name: {**asdict(progress[name]), "lines": covered[name]} for name in names}
        print(json.dumps(rows, indent=1))
    else:
        _print(progress, covered)
    return 1 if found or not enough else 0


def _next(progress: dict[str, Progress], executions: int, segment: int) -> str | None:
    """Whose turn it is: the one that had the least time, or segments while they are behind; None
    where enough was executed."""
    part = sum(one.executions for one in progress.values()) / executions
    if _SEGMENT in progress and progress[_SEGMENT].executions < segment * min(1.0, part):
        return _SEGMENT
    name = min(progress, key=lambda name: progress[name].seconds)
    return name if part < 1 or not progress[name].seconds else None


def _fuzz(name: str, progress: Progress, seconds: int) -> None:
    folder = _STATE / name
    before = _files(folder / "findings")
    began_s = _cpu_s()
    with folder_in_memory() as place, tempfile.TemporaryFile("w+", errors="replace") as told:
        # A fork: what all targets import has been imported.
        worker = get_context("fork").Process(
            target=_work, args=(name, folder, place, seconds, told.fileno()), daemon=True
        )
        worker.start()
        worker.join(seconds + _GRACE_S)
        if worker.is_alive():
            worker.kill()
            worker.join()
        code = worker.exitcode
        told.seek(0)
        said = told.read()
    progress.seconds += _cpu_s() - began_s
    executed = _EXECUTED.findall(said)
    progress.executions += int(executed[-1]) if executed else 0
    if reached := _EDGES.findall(said):
        progress.edges, progress.corpus = int(reached[-1][0]), int(reached[-1][2])
    raised = _RAISED.search(said)
    why = raised[1] if raised else f"exit code {code}: {said.strip().splitlines()[-1:]}"
    for file in sorted(_files(folder / "findings") - before):
        progress.findings[file] = why
    if code and not _files(folder / "findings") - before:
        kept = folder / "findings" / f"without-an-input-{time.time():.0f}.txt"
        kept.write_text(said[-_MOST_SAID:])
        progress.findings[kept.name] = why


def _work(name: str, folder: Path, place: Path, seconds: int, told: int) -> None:
    """In a process of its own: fuzzes, and has all that is said of it in a file."""
    for stream in (1, 2):
        os.dup2(told, stream)
    fuzz(TARGETS[name], place, folder / "corpus", folder / "findings", seconds)


def _cpu_s() -> float:
    """What the processes that were waited for took: others have the machine too."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _files(folder: Path) -> set[str]:
    return {file.name for file in folder.glob("*")}


def _covered(name: str) -> dict[str, tuple[int, int]]:
    """Lines of each module of a target that its corpus reaches, and all that can be."""
    folder = _STATE / name / "corpus"
    command = [sys.executable, "-m", "tests.fuzz.covered", name, str(folder)]
    environment = {**os.environ, "COVERAGE_CORE": "ctrace"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=_GRACE_S, check=False
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return {}
    return {module: (hit, lines) for module, (hit, lines) in json.loads(done.stdout).items()}


def _print(progress: dict[str, Progress], covered: dict[str, dict[str, tuple[int, int]]]) -> None:
    head = f"{'target':14} {'executions':>12} {'a CPU s':>9} {'edges':>6} {'corpus':>6}"
    print(f"\n{head}  lines covered")
    for name, one in progress.items():
        rate = one.executions / one.seconds if one.seconds else 0
        lines = ", ".join(
            f"{module.rpartition('.')[2]} {hit}/{all_}"
            for module, (hit, all_) in covered[name].items()
        )
        print(
            f"{name:14} {one.executions:12,} {rate:9,.0f} {one.edges:6,} {one.corpus:6,}  {lines}"
        )
    print(f"{'together':14} {sum(one.executions for one in progress.values()):12,}")
    for name, one in progress.items():
        for file, why in one.findings.items():
            print(f"FOUND {name}: {why} ({_STATE / name / 'findings' / file})")


def _read(name: str) -> Progress:
    try:
        read = Progress(**json.loads((_STATE / name / "progress.json").read_text()))
    except FileNotFoundError:
        return Progress()
    there = {file.name for file in (_STATE / name / "findings").glob("*")}
    read.findings = {file: said for file, said in read.findings.items() if file in there}
    return read  # without what was mended since, and its file deleted


def _write(name: str, progress: Progress) -> None:
    path = _STATE / name / "progress.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(progress)))


if __name__ == "__main__":
    sys.exit(main())
