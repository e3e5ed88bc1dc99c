"""Ranks that the real srun, mpirun and mpiexec start have one run, each with its own number.

`make test-launchers` says what is needed; it is not installed for it.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.hooks.conftest import WRAP, found_in, untraced
from tests.patience import until

pytestmark = pytest.mark.slow

PY = sys.executable
MPI = {
    "mpirun.openmpi": {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    "mpiexec.hydra": {},
}
"""Open MPI's and MPICH's, and what root has to say."""

# Each rank waits for all, as collectives do, and is then what a rank of its number is told to be.
RANK = dedent("""
    import os, signal, sys, time, rltrace
    ranks, folder = int(sys.argv[1]), sys.argv[2]
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    rank = next(os.environ[name] for name in names if name in os.environ)
    own = rltrace.start("own") if "start" in sys.argv else None
    with rltrace.span("train"): pass
    os.makedirs(folder, exist_ok=True)
    open(f"{folder}/{rank}", "w").close()
    while len(os.listdir(folder)) < ranks: time.sleep(0.01)
    if rank == "1" and "fails" in sys.argv: sys.exit(3)
    if rank == "1" and "killed" in sys.argv: os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[-1] in ("fails", "killed"): time.sleep(600)  # until the launcher ends it
    if own: rltrace.stop()
""")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rank.py").write_text(RANK)
    return tmp_path


def ranks(count: int, turn: str, *more: str, out: str | None = "run") -> list[str]:
    """The command of a rank: a wrap, and the job in it."""
    options = [] if out is None else ["--out", out]
    return [*WRAP, *options, "--", *job(count, turn, *more)]


def job(count: int, turn: str, *more: str) -> list[str]:
    return [PY, "rank.py", str(count), turn, *more]


def described(run: Path) -> dict[str, Any]:
    """What a run says of itself once it is over: its agent writes that down where wraps are killed,
    too."""
    told: dict[str, Any] = {}

    def is_over() -> bool:
        told.update(json.loads((run / "run.json").read_text()))
        return told["end_real_ns"] is not None

    until(is_over)
    return told


def only_run(folder: Path) -> Path:
    (found,) = folder.rglob("run.json")
    return found.parent


def ranks_of(run: Path) -> list[int]:
    """The rank of each span, of which a rank has one."""
    return found_in(run, "select rank from spans order by rank")


@pytest.mark.parametrize("out", ["run", None], ids=["out", "default"])
@pytest.mark.parametrize("plugin", ["none", "pmi2"])
def test_srun(folder: Path, slurm: dict[str, str], out: str | None, plugin: str) -> None:
    srun = ["srun", f"--mpi={plugin}", "-n", "4"]
    done = untraced(*srun, *ranks(4, "a", out=out), cwd=folder, **slurm)
    assert done.returncode == 0, done.stderr
    run = only_run(folder)
    assert ranks_of(run) == [0, 1, 2, 3]
    assert (described(run)["exit_code"], described(run)["missing_ranks"]) == (0, 0)


@pytest.mark.parametrize(("ends", "code"), [("fails", 3), ("killed", 137)])
def test_a_rank_that_srun_ends_the_others_for(
    folder: Path, slurm: dict[str, str], ends: str, code: int
) -> None:
    untraced("srun", "-K1", "-n", "2", *ranks(2, "a", ends), cwd=folder, **slurm)
    assert ranks_of(folder / "run") == [0, 1]
    assert described(folder / "run")["exit_code"] == code


def test_each_step_of_a_batch_script_has_a_run(folder: Path, slurm: dict[str, str]) -> None:
    """In it the script is no rank, and MPI's ranks are not Slurm's."""
    lines = [
        ["srun", "-n", "2", *ranks(2, "first", out="steps")],
        ["srun", "-n", "2", *ranks(2, "second", out="steps")],
        ["srun", "-n", "2", *job(2, "third", "start")],
        [*WRAP, "--out", "around", "--", "srun", "-n", "2", *job(2, "fourth")],
        [*WRAP, "--out", "script", "--", *job(1, "fifth")],
    ]
    lines += [["mpirun.openmpi", "-n", "2", *ranks(2, "sixth", out="mpi")]]
    (folder / "batch").write_text("#!/bin/sh\n" + "\n".join(map(shlex.join, lines)))
    batch = ["sbatch", "--wait", "-n", "4", "-o", "said", "batch"]
    done = untraced(*batch, cwd=folder, **slurm, **MPI["mpirun.openmpi"])
    assert done.returncode == 0, (folder / "said").read_text()
    for name in ("steps", "steps-2", "own", "around", "mpi"):
        assert ranks_of(folder / name) == [0, 1], name
    assert ranks_of(folder / "script") == [None]
    assert "missing_ranks" not in described(folder / "script")
    assert len([*folder.glob("*/run.json")]) == 6


@pytest.mark.parametrize("mpi", MPI)
def test_mpi(folder: Path, mpi: str) -> None:
    done = untraced(mpi, "-n", "2", *ranks(2, "a"), cwd=folder, **MPI[mpi])
    assert done.returncode == 0, done.stderr
    assert ranks_of(folder / "run") == [0, 1]
    assert described(only_run(folder))["exit_code"] == 0
    untraced(*WRAP, "--out", "around", "--", mpi, "-n", "2", *job(2, "b"), cwd=folder, **MPI[mpi])
    assert ranks_of(folder / "around") == [0, 1]


def test_mpirun_names_its_launch_and_ends_the_others_for_one(folder: Path) -> None:
    mpirun = ["mpirun.openmpi", "--oversubscribe", "-n", "4"]
    untraced(*mpirun, *ranks(4, "a", "killed", out=None), cwd=folder, **MPI["mpirun.openmpi"])
    run = only_run(folder)
    assert ranks_of(run) == [0, 1, 2, 3]
    assert described(run)["exit_code"] == 137
