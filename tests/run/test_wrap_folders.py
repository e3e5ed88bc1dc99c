"""Which run `rltrace wrap` records into, that of a launch too which starts it once a rank, and that
it touches nobody else's folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from rltrace.testing.inside.hooks import SITE, launch
from rltrace.testing.inside.run import job_processes
from rltrace.testing.inside.trace import open_run
from tests.faults.means import cannot_be_made
from tests.hooks.conftest import WRAP, clean_environment, found_in, untraced
from tests.patience import PATIENCE_S, until
from tests.run.test_wrap import runs, started, wrap

PY = sys.executable


@pytest.mark.parametrize("options", [("--out", "run"), ()], ids=["out", "default"])
def test_jobs_that_begin_together_get_a_run_each(tmp_path: Path, options: tuple[str, ...]) -> None:
    """All wait for the same instant, so that they want the same directory."""
    (tmp_path / "job.py").write_text("import sys; print(sys.argv[1])")
    jobs = [started(tmp_path, *options, "--", PY, "job.py", str(number)) for number in range(4)]
    said = [job.communicate(timeout=PATIENCE_S) for job in jobs]
    assert [out for out, _ in said] == [f"{number}\n" for number in range(4)]
    places = set()
    for number, (_, errors) in enumerate(said):
        assert "untraced" not in errors
        place = errors.splitlines()[-1].partition("the trace is in ")[2].split("; ")[0].split()[0]
        described = json.loads((tmp_path / place / "run.json").read_text())
        assert described["command"] == [PY, "job.py", str(number)]
        assert described["id"] == Path(place).name
        places.add(place)
    assert len(places) == 4


BEGINS = "import rltrace; print(rltrace.start(%r)); rltrace.stop()"


def test_a_program_that_starts_a_run_where_there_is_one_gets_its_own(tmp_path: Path) -> None:
    done = [untraced(PY, "-c", BEGINS % "run", cwd=tmp_path) for _ in range(2)]
    assert [Path(one.stdout.strip()).name for one in done] == ["run", "run-2"]
    assert "run-2" in done[1].stderr


def test_what_a_program_begins_itself_is_put_elsewhere_too(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    done = untraced(PY, "-c", BEGINS % "shared/run", cwd=tmp_path)
    assert Path(done.stdout).parent.name == "rltrace-runs"
    assert [*(tmp_path / "shared").iterdir()] == []


def test_a_folder_that_holds_something_else_gets_the_run_inside(tmp_path: Path) -> None:
    empty, other = tmp_path / "results", tmp_path / "data"
    empty.mkdir()
    into_empty = wrap(PY, "-c", "pass", cwd=tmp_path, options=("--out", "results"))
    assert (empty / "run.json").exists(), into_empty.stderr
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    (tmp_path / "train.py").touch()
    done = wrap(PY, "train.py", cwd=tmp_path, options=("--out", "data"))
    (run,) = other.glob("*-train")
    assert (run / "run.json").exists()
    assert str(run) in done.stderr
    assert {path.name for path in other.glob("[!.]*")} == {"mine.txt", run.name}


def test_a_run_made_where_this_one_was_deleted_is_left_alone(tmp_path: Path) -> None:
    code = dedent("""
        import json, os, pathlib, shutil, subprocess, sys
        while os.path.exists("run"):  # the node's agent may write a file meanwhile
            shutil.rmtree("run", ignore_errors=True)
        env = {k: v for k, v in os.environ.items() if not k.startswith("RLTRACE_")}
        wrap = [sys.executable, "-m", "rltrace", "wrap", "--out", "run", "--"]
        subprocess.run([*wrap, sys.executable, "-c", "raise SystemExit(7)"], env=env)
        print(pathlib.Path("run/run.json").read_text())
    """)
    done = wrap(PY, "-c", code, cwd=tmp_path, options=("--out", "run"))
    assert "run was deleted" in done.stderr.splitlines()[-1]
    assert (tmp_path / "run" / "run.json").read_text() in done.stdout


@pytest.mark.parametrize("state", ["ended", "deleted"])
def test_variables_of_a_run_that_is_over_are_nothing(tmp_path: Path, state: str) -> None:
    """As in a terminal multiplexer that a traced job started."""
    wrap(PY, "-c", "pass", cwd=tmp_path, options=("--out", "old"))
    old = tmp_path / "old"
    if state == "deleted":
        old.rename(tmp_path / "elsewhere")  # its agent may write for a second yet
    before = len(job_processes(old))
    left = {"RLTRACE_RUN": str(old), "RLTRACE_HOOKS": "gone:f=train", "PYTHONPATH": str(SITE)}
    words = ("wrap", "--", PY, "-c", "print('fine')")
    done = untraced(PY, "-m", "rltrace", *words, cwd=tmp_path, **left)
    assert done.stdout == "fine\n"
    assert len(job_processes(old)) == before
    (run,) = runs(tmp_path)
    assert len(job_processes(run)) == 1
    assert len(done.stderr.splitlines()) == 1


def test_a_wrap_inside_a_wrapped_job_joins_it(tmp_path: Path) -> None:
    script = tmp_path / "inner.py"
    script.write_text("def generate(): pass\ngenerate()")
    inner = [*WRAP, "--hook", "__main__:generate=rollout", "--", PY, str(script)]
    done = wrap(*inner, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path)
    names = "".join(path.read_text() for path in (run / "names").iterdir())
    assert "generate" in names
    assert done.stderr.count("rltrace:") == 1
    assert "no Python process" not in done.stderr


@pytest.mark.parametrize("place", ["another's", "open", "runs", "sticky", "group"])
def test_where_another_user_can_write_there_is_no_run(tmp_path: Path, place: str) -> None:
    """It would be written through links of that user's. The job runs, and is traced elsewhere."""
    folder = tmp_path / ("rltrace-runs" if place == "runs" else "shared")
    folder.mkdir()
    if place in ("another's", "runs") and os.geteuid():
        cannot_be_made("only root can give a folder to another user")
    if place in ("another's", "runs"):
        os.chown(folder, 65534, -1)
    else:
        folder.chmod({"open": 0o777, "sticky": 0o1777, "group": 0o770}[place])
    options = () if place == "runs" else ("--out", "shared/run")
    open_to_all = ("sh", "-c", 'umask 0; exec "$@"', "sh", *WRAP)
    job = (*options, "--", PY, "-c", "print('ran')")
    done = untraced(*open_to_all, *job, cwd=tmp_path, HOME=str(tmp_path / "home"))
    assert (done.returncode, done.stdout) == (0, "ran\n")
    made = [path.parent for path in tmp_path.rglob("run.json")]
    if place in ("sticky", "group"):  # what is ours stays so; a group of ours is asked for
        assert made == [folder / "run"]
    else:
        assert [*folder.iterdir()] == []
        assert str(made[0]) in done.stderr
        where = tmp_path / "home" / "rltrace-runs" if place == "runs" else tmp_path / "rltrace-runs"
        assert [path.parent for path in made] == [where]
    for path in [made[0], *made[0].iterdir()]:
        assert not path.stat().st_mode & 0o022


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
    "mpich in slurm": ("PMI_RANK", "PMI_SIZE", {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"}),
    "torch": ("RANK", "WORLD_SIZE", {"MASTER_ADDR": "::1", "MASTER_PORT": "29500"}),
}


def begin(
    cwd: Path, said: dict[str, str], rank: int, ranks: int, *options: str
) -> subprocess.Popen[str]:
    folder = cwd / "turns"
    folder.mkdir(exist_ok=True)
    words = (*options, "--", PY, "-c", JOB, str(rank), str(ranks), str(folder))
    return started(cwd, *words, env=said, stdout=None)


@pytest.mark.parametrize("launcher", SAID)
@pytest.mark.parametrize("options", [("--out", "run"), ()], ids=["out", "default"])
def test_one_run_has_all_ranks(tmp_path: Path, launcher: str, options: tuple[str, ...]) -> None:
    """Whoever made it may be the first to end: it is closed by the last. The first that fails ends
    the others, so its exit code is the run's. What a launcher says stands within a Slurm job."""
    rank, ranks, more = SAID[launcher]
    said = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", **more, ranks: "3"}
    jobs = [begin(tmp_path, {**said, rank: str(n)}, n, 3, *options) for n in range(3)]
    until(lambda: len([*(tmp_path / "turns").glob("begun*")]) == 3)
    (run,) = [tmp_path / "run"] if options else runs(tmp_path)
    for number, job in [*enumerate(jobs)][::-1]:
        assert open_run(run).goes_on
        (tmp_path / "turns" / f"end{number}").touch()
        assert job.wait(PATIENCE_S) == number  # its own
    told = json.loads((run / "run.json").read_text())
    assert (told["exit_code"], told["missing_ranks"]) == (2, 0)
    assert told["end_real_ns"] is not None
    opened = open_run(run)
    assert sorted(p.rank for p in opened.processes if p.role != "agent") == [0, 1, 2]
    assert opened.sql("select count(*) from spans").fetchall() == [(3,)]
    said = "".join(job.communicate()[1] for job in jobs)
    assert said.count("the trace is in") == 1


def test_a_rank_that_begins_once_the_others_ended_is_of_their_run(tmp_path: Path) -> None:
    rank, ranks, more = SAID["openmpi"]
    for number in (0, 1):
        job = begin(tmp_path, {**more, ranks: "2", rank: str(number)}, 0, 1)
        (tmp_path / "turns" / "end0").touch()
        job.communicate(timeout=PATIENCE_S)
        (run,) = runs(tmp_path)
        told = json.loads((run / "run.json").read_text())
        assert (told["exit_code"], told["missing_ranks"]) == (0, 1 - number)
        assert told["end_real_ns"] is not None
    assert sorted(p.rank for p in open_run(run).processes if p.role != "agent") == [0, 1]


def test_another_launch_has_a_run_of_its_own(tmp_path: Path) -> None:
    """Also where its launcher does not tell it from the first: a rank is there once."""
    said = {"PMI_RANK": "0", "PMI_SIZE": "2"}
    first = begin(tmp_path, said, 0, 1, "--out", "run")
    until((tmp_path / "turns" / "begun0").exists)
    other = {**said, "PMI_RANK": "1"}
    (tmp_path / "turns" / "end1").touch()
    for number, told in enumerate([said, {**other, "PALS_APID": "8"}, other], start=2):
        if number == 4:  # the first is over by then
            (tmp_path / "turns" / "end0").touch()
            first.communicate(timeout=PATIENCE_S)
        job = begin(tmp_path, told, 1, 1, "--out", "run")
        assert f" run-{number} " in job.communicate(timeout=PATIENCE_S)[1]
        described = json.loads((tmp_path / f"run-{number}" / "run.json").read_text())
        assert (described["exit_code"], described["missing_ranks"]) == (1, 1)


def test_a_launch_that_has_no_name_gets_a_run_a_rank(tmp_path: Path) -> None:
    (tmp_path / "turns").mkdir()
    (tmp_path / "turns" / "end0").touch()
    job = begin(tmp_path, {"PMI_RANK": "0", "PMI_SIZE": "2"}, 0, 1)
    assert "--out" in job.communicate(timeout=PATIENCE_S)[1]
    (run,) = runs(tmp_path)
    assert "missing_ranks" not in json.loads((run / "run.json").read_text())


def test_a_rank_whose_wrap_is_killed_keeps_no_run_open(tmp_path: Path) -> None:
    """How it ended is unknown, and so how all did."""
    said = {"PMI_SIZE": "2"}
    jobs = [begin(tmp_path, {**said, "PMI_RANK": str(n)}, n, 2, "--out", "run") for n in (0, 1)]
    until(lambda: len([*(tmp_path / "turns").glob("begun*")]) == 2)
    jobs[1].kill()
    jobs[1].wait()
    told = json.loads((tmp_path / "run" / "ranks" / "1.json").read_text())
    (tmp_path / "turns" / "end1").touch()
    until(lambda: not os.path.exists(f"/proc/{told['command_pid']}"))
    (tmp_path / "turns" / "end0").touch()
    for job in jobs:
        job.communicate(timeout=PATIENCE_S)
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (told["end_real_ns"] is not None, told["exit_code"]) == (True, None)


OWN = """
import sys, rltrace
print(rltrace.start(sys.argv[1] if sys.argv[1:] else None), flush=True)
with rltrace.span("train"): pass
input()
rltrace.stop()
"""


@pytest.mark.parametrize("words", [("run",), ()], ids=["named", "default"])
def test_ranks_that_begin_their_run_themselves_share_it(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    said = {"WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "29500"}
    pipe = subprocess.PIPE
    jobs = [
        subprocess.Popen(
            [PY, "-c", OWN, *words], cwd=tmp_path, text=True, stdin=pipe, stdout=pipe,
            env=clean_environment(RANK=str(rank), **said),
        )
        for rank in (0, 1)
    ]  # fmt: skip
    places = {job.stdout.readline().strip() for job in jobs if job.stdout is not None}
    (run,) = places
    for job in jobs:
        assert json.loads(Path(run, "run.json").read_text())["end_real_ns"] is None
        job.communicate("\n", timeout=PATIENCE_S)
    told = json.loads(Path(run, "run.json").read_text())
    assert (told["exit_code"], told["missing_ranks"]) == (0, 0)
    assert told["end_real_ns"] is not None
    assert found_in(Path(run), "select rank from spans order by rank") == [0, 1]


def test_a_batch_script_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm gives it the numbers of one, and no step."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "RANK", "WORLD"))]:
        monkeypatch.delenv(name)
    assert launch() is None
    for name, value in {"PROCID": "0", "NTASKS": "8", "LOCALID": "0", "JOB_ID": "7"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert launch() is None
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    step = launch()
    assert step is not None
    assert (step.rank, step.ranks, step.local, step.is_known) == (0, 8, 0, True)
