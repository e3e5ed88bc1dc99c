"""Pools of real runs that gates are drawn from: the same job again and again, and with a slowdown.

Each run is a job of the built-in trainer (examples/ci/job.toml, but `STEPS` steps, each at a
slower pace) under `rltrace wrap`, in processes of its own. All join one Ray cluster, whose start is
none of a job's work: of the 27 s that a run of 24 steps takes on two cores, 13 are its steps, 3 the
start of a cluster, and most of the others the import of torch in four actors. Of a trace only what
a gate reads is kept, in one small file a run, written when the run has ended well and whole: one
that failed, was interrupted or did not take all of its steps is missing, and whoever starts again
goes on with what is missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

import rltrace
from benchmarks.walls import ROOT
from rltrace.testing.inside.analysis import baseline_Baseline as Baseline
from rltrace.testing.inside.analysis import make_baseline, read_baseline, write_baseline
from rltrace.testing.inside.trace import RltraceError
from rltrace.trainer import load_job

JOB = ROOT / "examples" / "ci" / "job.toml"
STEPS = 14
RUN_LIMIT_SECONDS = 300
CLUSTER_CPUS = 8  # places for actors, and no cores
SLOWDOWN = 0.05
DECODE_FLOOR_SECONDS = 0.045
"""How long a token takes. Beside what is paced a step has some 110 ms of work on the machine's own
cores, whose pace differs from run to run by a tenth: it is to be the smaller part of the step, as
it is where GPUs do the work."""

UNCHANGED, BINDING, HIDDEN = "unchanged", "binding", "hidden"
PLANTED: Mapping[str, str] = {UNCHANGED: "", BINDING: "decode_floor", HIDDEN: "update_floor"}
"""The setting that is larger in a pool, so that its stage takes `SLOWDOWN` longer: how long a
token, or an update, takes."""

PACED: Mapping[str, float] = {BINDING: 0.99, HIDDEN: 0.99}
"""Which part of the stage that setting paces, as measured. The rest is prefill, and the hand-over
of requests and answers; `gate_study` prints by how much the stage did get slower."""

STAGE: Mapping[str, str] = {BINDING: "rollout", HIDDEN: "train"}
"""The stage that this slows down."""

IDLE, BUSY = "idle", "busy"
LOADS = (IDLE, BUSY)


@dataclass(frozen=True)
class Place:
    """A run of a pool."""

    load: str
    pool: str
    number: int

    def file(self, folder: Path) -> Path:
        """Where it is kept."""
        return folder / f"{self.load}-{self.pool}-{self.number:02d}.json"


def places(runs: int) -> Iterator[Place]:
    """All runs of all pools, in turns, so that what changes on the machine meets all pools; the
    order of the pools changes from round to round."""
    pools = list(PLANTED)
    for number in range(runs):
        for load in LOADS:
            turn = number % len(pools)
            yield from (Place(load, pool, number) for pool in pools[turn:] + pools[:turn])


def fill(folder: Path, runs: int, say: Callable[[str], None]) -> None:
    """Runs what is missing of the pools. A job that fails is said, and missing still: the others
    are not lost for it."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [place for place in places(runs) if not place.file(folder).exists()]
    if not missing:
        return
    with cluster() as address:
        started = time.monotonic()
        for done, place in enumerate(missing):
            rest = ""
            if done:
                left_s = (time.monotonic() - started) / done * (len(missing) - done)
                rest = f", about {left_s / 60:.0f} min left"
            say(f"{place.load}, {place.pool}, run {place.number + 1} of {runs}{rest}")
            with tempfile.TemporaryDirectory(prefix="gate-", dir="/tmp") as out:
                try:
                    run = run_once(place.pool, place.load == BUSY, Path(out), address)
                    keep(run, place.file(folder))
                except (RuntimeError, RltraceError) as error:
                    say(str(error))


def keep(run: Path, file: Path) -> None:
    """Keeps what a gate reads of a run: all of it, or nothing. Errors: RltraceError where the run
    is not well, RuntimeError where it did not take all of its steps."""
    made = make_baseline([rltrace.open_run(run)])
    if made.runs[0].size != STEPS:
        raise RuntimeError(f"{run} has {made.runs[0].size} complete steps of {STEPS}: not kept")
    write_baseline(made, file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)


@contextmanager
def cluster() -> Iterator[str]:
    """The address of a Ray cluster of our own, which ends with the block."""
    os.environ.update(RAY_memory_monitor_refresh_ms="0", OMP_NUM_THREADS="1")
    import ray  # it reads its environment as it is imported

    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as folder:  # sockets need it short
        ray.init(
            address="local",
            num_cpus=CLUSTER_CPUS,
            object_store_memory=200_000_000,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
        )
        try:
            yield ray.get_runtime_context().gcs_address
        finally:
            ray.shutdown()


def run_once(pool: str, busy: bool, out: Path, address: str) -> Path:
    """Runs the job of a pool on the cluster at `address`, traced, in a folder; returns its run.
    Beside a busy core where that is asked for, once it has taken its first step. Errors:
    RuntimeError."""
    words = [sys.executable, str(ROOT / "examples" / "train.py"), "--config", str(JOB)]
    words += ["--steps", f"{STEPS}", "--joined-cluster", address]
    for setting, value in settings_of(pool).items():
        words += [f"--{setting.replace('_', '-')}", f"{value:g}"]
    wrap = [sys.executable, "-m", "rltrace", "wrap", "--out", str(out / "run"), "--"]
    with (out / "log").open("w+") as log, ExitStack() as beside:
        job = subprocess.Popen(
            [*wrap, *words],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        limit = threading.Timer(RUN_LIMIT_SECONDS, job.terminate)
        limit.start()
        beside.callback(limit.cancel)  # or an interrupt would wait for it
        assert job.stdout is not None
        with job:
            for line in job.stdout:
                if line.startswith("step ") and busy:
                    beside.enter_context(busy_core())
                    busy = False
        if job.returncode:
            log.seek(0)
            raise RuntimeError(f"{' '.join(words)}: exit code {job.returncode}\n{log.read()}")
        if busy:
            raise RuntimeError(f"{' '.join(words)} told of no step: no core was busy beside it")
    return out / "run"


def settings_of(pool: str) -> dict[str, float]:
    """What a pool's runs set otherwise than the job's file."""
    found = {"decode_floor": DECODE_FLOOR_SECONDS}
    if PLANTED[pool]:
        usual = {**load_job(JOB), **found}[PLANTED[pool]]
        found[PLANTED[pool]] = usual * (1 + SLOWDOWN / PACED[pool])
    return found


@contextmanager
def busy_core() -> Iterator[None]:
    """Keeps one core busy with other work."""
    other = subprocess.Popen([sys.executable, "-c", "while True: sum(range(10_000))"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def read(folder: Path) -> dict[tuple[str, str], list[Baseline]]:
    """The runs that are kept, by load and pool, each as a baseline of its own. Errors:
    `ClickException` where the runs of a pool are of different jobs."""
    pools = {
        (load, pool): [read_baseline(p) for p in sorted(folder.glob(f"{load}-{pool}-*.json"))]
        for load in LOADS
        for pool in PLANTED
    }
    for (load, pool), runs in pools.items():
        if any(run.settings != runs[0].settings for run in runs):
            raise click.ClickException(
                f"{folder} holds {load} {pool} runs of different jobs: take another folder"
            )
    return pools
