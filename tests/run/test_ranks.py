"""A launcher that starts `rltrace wrap` once a rank has one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from rltrace.testing.inside.hooks import launch
from rltrace.testing.inside.trace import open_run
from tests.hooks.conftest import WRAP, clean_environment
from tests.patience import PATIENCE_S
from tests.run.test_wrap import runs, until

PY = sys.executable

# Each waits for the others, and for its turn to end.
JOB = dedent("""
    import os, sys, time, rltrace
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    with rltrace.span("train"): pass
    open(f"{folder}/begun{rank}", "w").close()
    while sum(name.startswith("begun") for name in os.listdir(folder)) < ranks: time.sleep(0.01)
    while not os.path.exists(f"{folder}/end{rank}"): time.sleep(0.01)
    sys.exit(rank)
""")

SAID = {
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"}),
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {"PMIX_NAMESPACE": "prte-7@1"}),
    "pmi": ("PMI_RANK", "PMI_SIZE", {"PALS_APID": "0f-7"}),
    "torch": ("RANK", "WORLD_SIZE", {"MASTER_ADDR": "::1", "MASTER_PORT": "29500"}),
}


def start(
    cwd: Path, said: dict[str, str], rank: int, ranks: int, *options: str
) -> subprocess.Popen[str]:
    folder = cwd / "turns"
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [*WRAP, *options, "--", PY, "-c", JOB, str(rank), str(ranks), str(folder)],
        cwd=cwd,
        env=clean_environment(**said),
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("launcher", SAID)
@pytest.mark.parametrize("options", [("--out", "run"), ()], ids=["out", "default"])
def test_one_run_has_all_ranks(tmp_path: Path, launcher: str, options: tuple[str, ...]) -> None:
    """Whoever made it may be the first to end: it is closed by the last."""
    rank, ranks, more = SAID[launcher]
    jobs = [start(tmp_path, {rank: str(n), ranks: "3", **more}, n, 3, *options) for n in range(3)]
    assert until(lambda: len([*(tmp_path / "turns").glob("begun*")]) == 3)
    (run,) = [tmp_path / "run"] if options else runs(tmp_path)
    for number, job in enumerate(jobs):
        assert open_run(run).goes_on
        (tmp_path / "turns" / f"end{number}").touch()
        assert job.wait(PATIENCE_S) == number  # its own
    told = json.loads((run / "run.json").read_text())
    assert (told["exit_code"], told["end_real_ns"] is not None) == (1, True)
    opened = open_run(run)
    assert sorted(p.rank for p in opened.processes if p.role != "agent") == [0, 1, 2]
    assert opened.sql("select count(*) from spans").fetchall() == [(3,)]
    said = "".join(job.stderr.read() for job in jobs if job.stderr is not None)
    assert said.count("the trace is in") == 1
    for job in jobs:
        assert job.stderr is not None
        job.stderr.close()


def test_another_launch_has_a_run_of_its_own(tmp_path: Path) -> None:
    """Also where its launcher does not tell it from the first: a rank is there once."""
    said = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    first = start(tmp_path, said, 0, 1, "--out", "run")
    assert until((tmp_path / "turns" / "begun0").exists)
    others = [said, {**said, "SLURM_PROCID": "1", "SLURM_JOB_ID": "8"}]
    for number, other in enumerate(others, start=2):
        (tmp_path / "turns" / "end1").touch()
        job = start(tmp_path, other, 1, 1, "--out", "run")
        _, errors = job.communicate(timeout=PATIENCE_S)
        assert f"the trace is in run-{number}" in errors
    (tmp_path / "turns" / "end0").touch()
    first.communicate(timeout=PATIENCE_S)
    later = start(tmp_path, {**said, "SLURM_PROCID": "1"}, 1, 1, "--out", "run")
    _, errors = later.communicate(timeout=PATIENCE_S)
    assert "the trace is in run-4" in errors  # the first is over


def test_a_rank_whose_wrap_is_killed_keeps_no_run_open(tmp_path: Path) -> None:
    said = {"SLURM_NTASKS": "2"}
    jobs = [start(tmp_path, {**said, "SLURM_PROCID": str(n)}, n, 2, "--out", "run") for n in (0, 1)]
    assert until(lambda: len([*(tmp_path / "turns").glob("begun*")]) == 2)
    jobs[1].kill()
    jobs[1].wait()
    told = json.loads((tmp_path / "run" / "ranks" / "1.json").read_text())
    (tmp_path / "turns" / "end1").touch()
    assert until(lambda: not os.path.exists(f"/proc/{told['command_pid']}"))
    (tmp_path / "turns" / "end0").touch()
    jobs[0].communicate(timeout=PATIENCE_S)
    jobs[1].communicate(timeout=PATIENCE_S)
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert told["end_real_ns"] is not None


def test_a_batch_script_has_no_device_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm gives it the numbers of a rank, and no step."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "RANK", "WORLD"))]:
        monkeypatch.delenv(name)
    assert launch() is None
    for name, value in {"PROCID": "0", "NTASKS": "8", "LOCALID": "0", "JOB_ID": "7"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    script = launch()
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    step = launch()
    assert script is not None
    assert step is not None
    assert (script.local, script.is_known, step.local, step.is_known) == (-1, False, 0, True)
