"""Which run `rltrace wrap` records into, and that it touches nobody else's folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent

import pytest

from rltrace.testing.inside.hooks import SITE
from rltrace.testing.inside.run import job_processes
from rltrace.testing.inside.trace import RunExistsError, create_run, read_run_json
from tests.faults.means import cannot_be_made
from tests.hooks.conftest import WRAP, clean_environment
from tests.patience import PATIENCE_S
from tests.run.test_wrap import runs, wrap

PY = sys.executable


def test_a_directory_that_holds_a_run_is_not_touched(tmp_path: Path) -> None:
    first = wrap(PY, "-c", "pass", cwd=tmp_path, options=("--out", "run"))
    before = (tmp_path / "run" / "run.json").read_text()
    second = wrap(PY, "-c", "print(2)", cwd=tmp_path, options=("--out", "run"))
    assert (first.returncode, second.returncode, second.stdout) == (0, 0, "2\n")
    assert (tmp_path / "run" / "run.json").read_text() == before
    assert (tmp_path / "run-2" / "run.json").exists()
    assert second.stderr.splitlines()[-1] == (
        "rltrace: the trace is in run-2 (run holds a run already); next: rltrace report run-2"
    )


@pytest.mark.parametrize("options", [("--out", "run"), ()], ids=["out", "default"])
def test_jobs_that_begin_together_get_a_run_each(tmp_path: Path, options: tuple[str, ...]) -> None:
    """All wait for the same instant, so that they want the same directory."""
    (tmp_path / "job.py").write_text("import sys; print(sys.argv[1])")
    jobs = [
        subprocess.Popen(
            [*WRAP, *options, "--", PY, "job.py", str(number)],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
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


def test_of_many_that_want_a_directory_one_gets_it(tmp_path: Path) -> None:
    start = threading.Barrier(8)

    def make(number: int) -> int | None:
        start.wait()
        try:
            create_run(str(tmp_path / "run"), [str(number)], {}, "test")
        except RunExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        (winner,) = [number for number in pool.map(make, range(8)) if number is not None]
    assert read_run_json(str(tmp_path / "run"))["command"] == [str(winner)]


def test_a_program_that_starts_a_run_where_there_is_one_gets_its_own(tmp_path: Path) -> None:
    code = "import rltrace; print(rltrace.start('run').name); rltrace.stop()"
    done = [
        subprocess.run(
            [PY, "-c", code],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(2)
    ]
    assert [one.stdout for one in done] == ["run\n", "run-2\n"]
    assert "rltrace: run holds a run already; this one goes to " in done[1].stderr


def test_a_folder_that_holds_something_else_gets_the_run_inside(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    into_empty = wrap(PY, "-c", "pass", cwd=tmp_path, options=("--out", "results"))
    assert (folder / "run.json").exists(), into_empty.stderr
    other = tmp_path / "data"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    (tmp_path / "train.py").touch()
    done = wrap(PY, "train.py", cwd=tmp_path, options=("--out", "data"))
    mine, run = sorted(other.glob("[!.]*"), key=lambda path: path.is_dir())
    assert mine.name == "mine.txt"
    assert run.name.endswith("-train")
    assert (run / "run.json").exists()
    assert f"data is not empty and no run; this one goes to {run}\n" in done.stderr


def test_a_run_that_is_deleted_meanwhile_is_not_named(tmp_path: Path) -> None:
    code = dedent("""
        import os, shutil
        while os.path.exists("run"):  # the node's agent may write a file meanwhile
            shutil.rmtree("run", ignore_errors=True)
    """)
    done = wrap(PY, "-c", code, cwd=tmp_path, options=("--out", "run"))
    assert done.returncode == 0, done.stderr
    assert "rltrace: run was deleted while the job ran: there is no trace of it\n" in done.stderr
    assert "next: rltrace report" not in done.stderr


def test_a_run_made_where_this_one_was_deleted_is_left_alone(tmp_path: Path) -> None:
    code = dedent("""
        import json, os, pathlib, shutil, subprocess, sys
        while os.path.exists("run"):  # the node's agent may write a file meanwhile
            shutil.rmtree("run", ignore_errors=True)
        env = {k: v for k, v in os.environ.items() if not k.startswith("RLTRACE_")}
        wrap = [sys.executable, "-m", "rltrace.cli", "wrap", "--out", "run", "--"]
        subprocess.run([*wrap, sys.executable, "-c", "raise SystemExit(7)"], env=env)
        print(pathlib.Path("run/run.json").read_text())
    """)
    done = wrap(PY, "-c", code, cwd=tmp_path, options=("--out", "run"))
    assert "rltrace: run was deleted while the job ran: there is no trace of it\n" in done.stderr
    assert (tmp_path / "run" / "run.json").read_text() in done.stdout


@pytest.mark.parametrize("state", ["ended", "deleted"])
def test_variables_of_a_run_that_is_over_are_nothing(tmp_path: Path, state: str) -> None:
    """As in a terminal multiplexer that a traced job started."""
    wrap(PY, "-c", "pass", cwd=tmp_path, options=("--out", "old"))
    old = tmp_path / "old"
    if state == "deleted":
        shutil.rmtree(old)
    before = len(job_processes(old))
    done = subprocess.run(
        [PY, "-m", "rltrace.cli", "wrap", "--", PY, "-c", "print('fine')"],
        cwd=tmp_path,
        env=clean_environment(
            RLTRACE_RUN=str(old), RLTRACE_HOOKS="gone:f=train", PYTHONPATH=str(SITE)
        ),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout == "fine\n"
    assert len(job_processes(old)) == before
    (run,) = runs(tmp_path)
    assert len(job_processes(run)) == 1
    assert done.stderr == (
        f"rltrace: the trace is in rltrace-runs/{run.name}; next: rltrace report\n"
    )


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
    command = [*WRAP, *options, "--", PY, "-c", "print('ran')"]
    done = subprocess.run(
        ["sh", "-c", 'umask 0; exec "$@"', "sh", *command],
        cwd=tmp_path,
        env=clean_environment(HOME=str(tmp_path / "home")),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
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


def test_what_a_program_begins_itself_is_put_elsewhere_too(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    code = "import rltrace; print(rltrace.start('shared/run').parent.name); rltrace.stop()"
    done = subprocess.run(
        [PY, "-c", code],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "rltrace-runs\n"
    assert [*(tmp_path / "shared").iterdir()] == []
