"""Every way in which a job starts a Python process, with real processes under `rltrace wrap`; and
both carriers: sitecustomize on PYTHONPATH and the .pth of the wheel, beside the user's."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from rltrace.testing.inside.hooks import SITE
from tests.hooks.conftest import RunJob, untraced
from tests.pythons import find_python

PY = sys.executable
TORCHRUN = str(Path(PY).parent / "torchrun")

MULTIPROCESSING = """
    import multiprocessing, os, rltrace, sys, time
    def work(item):
        with rltrace.span("rollout"):
            time.sleep(0.03)
        return os.getpid()
    if __name__ == "__main__":
        multiprocessing.set_start_method(sys.argv[1])
        with multiprocessing.Pool(2) as pool:
            assert len(set(pool.map(work, range(20), chunksize=1))) == 2
        child = multiprocessing.Process(target=work, args=(1,))
        child.start()
        child.join()
        assert child.exitcode == 0
"""


FORK = """
    import os, rltrace
    pid = os.fork()
    if pid == 0:
        rltrace.span("rollout")
        os._exit(0)
    os.waitpid(pid, 0)
"""
ANOTHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
WITHOUT_ENVIRONMENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], env={})"

WAYS: dict[str, tuple[list[str], str, int]] = {
    "code": ([PY, "-c", "pass"], "", 1),
    "script": ([PY, "{script}"], "print('hi')", 1),
    "module": ([PY, "-m", "timeit", "-n1", "-r1", "pass"], "", 1),
    "options": ([PY, "-X", "importtime", "-Wignore", "{script}"], "", 1),
    "shell-script": (["bash", "-c", f"{PY} -c pass; {PY} {{script}}"], "print('hi')", 2),
    "subprocess": ([PY, "{script}"], ANOTHER, 2),
    "subprocess-without-environment": ([PY, "{script}"], WITHOUT_ENVIRONMENT, 1),  # as it asked
    "fork": ([PY, "{script}"], FORK, 2),
    "multiprocessing-fork": ([PY, "{script}", "fork"], MULTIPROCESSING, 4),
    "multiprocessing-spawn": ([PY, "{script}", "spawn"], MULTIPROCESSING, 4),
    "multiprocessing-forkserver": ([PY, "{script}", "forkserver"], MULTIPROCESSING, 5),  # and it
    "without-site": ([PY, "-S", "-c", "pass"], "", 0),  # no carrier is read
    "pip": ([PY, "-m", "pip", "--version"], "", 0),  # tools run nothing of the job
    "venv": ([PY, "-m", "venv", "--help"], "", 0),
    "rltrace": ([PY, "-m", "rltrace", "ls"], "", 0),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_python_process_leaves_its_file(job: RunJob, way: str) -> None:
    command, program, traced = WAYS[way]
    done = job(*command, program=program)
    assert done.code == 0, done.err
    assert len(done.processes) == traced
    assert not done.problems
    assert done.spans() == ["rollout"] * {FORK: 1, MULTIPROCESSING: 21}.get(program, 0)


def test_we_cause_no_warning(job: RunJob) -> None:
    """Where a program turns warnings into errors, ours would be its errors."""
    program = """
        import colorsys, os, rltrace
        with rltrace.span("rollout"):
            colorsys.rgb_to_hsv(1, 0, 0)
        def generate(): pass
        generate()
        if os.fork() == 0:
            rltrace.span("train").end()
            os._exit(0)
        os.wait()
    """
    strict = ["-X", "dev", "-X", "warn_default_encoding", "-W", "error", "-b", "-b"]
    hooks = ("colorsys:rgb_to_hsv=other", "__main__:generate=rollout")
    done = job(PY, *strict, "{script}", program=program, hooks=hooks)
    assert done.code == 0, done.err
    assert [line for line in done.err.splitlines() if "the trace is in" not in line] == []
    assert len(done.spans()) == 4
    assert done.problems == []


def test_two_programs_under_one_pid_are_two_processes(job: RunJob) -> None:
    """`exec`, and Ray, which executes a worker twice under one pid."""
    program = """
        import os, sys, rltrace
        with rltrace.span("rollout" if len(sys.argv) == 1 else "train"):
            pass
        if len(sys.argv) == 1:
            rltrace.span("wait")  # never ended
            os.execv(sys.executable, [sys.executable, __file__, "again"])
    """
    done = job(PY, "{script}", program=program)
    assert done.code == 0, done.err
    first, second = done.processes
    assert first["pid"] == second["pid"]
    ended = [("rollout", True), ("wait", False), ("train", True)]
    assert done.spans("stage, end_ns IS NOT NULL") == ended


def test_torchrun_and_its_ranks(job: RunJob) -> None:
    pytest.importorskip("torch", reason="torchrun comes with torch, which is not installed")
    program = "import os; os.write(1, f'rank {os.environ[\"RANK\"]}\\n'.encode())"
    launch = (TORCHRUN, "--nproc-per-node=2", "--standalone", "{script}")
    done = job(*launch, program=program, CUDA_VISIBLE_DEVICES="3,5")
    assert done.code == 0, done.err
    assert sorted(line for line in done.out.splitlines() if line) == ["rank 0", "rank 1"]
    places = sorted((p.get("rank", -1), p.get("devices")) for p in done.processes)
    assert places == [(-1, ["3", "5"]), (0, ["3"]), (1, ["5"])]


@pytest.mark.parametrize(
    ("visible", "devices"),
    [("", []), ("-1", []), ("NoDevFiles", []), ("2, 3", ["2", "3"]), ("GPU-1a", ["GPU-1a"])],
)
def test_a_job_says_which_devices_it_was_given(
    job: RunJob, visible: str, devices: list[str]
) -> None:
    done = job(PY, "{script}", program="pass", CUDA_VISIBLE_DEVICES=visible)
    assert [p.get("devices") for p in done.processes] == [devices]


# --- what others bring ----------------------------------------------------------------------------


def test_a_run_directory_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(2)'])"
    gone = {"RLTRACE_RUN": str(tmp_path / "gone"), "PYTHONPATH": SITE}
    done = untraced(PY, "-c", f"{child}; print(1)", **gone)
    assert done.returncode == 0
    assert sorted(done.stdout.split()) == ["1", "2"]
    assert done.stderr.count("rltrace:") == 1  # said once for the whole family


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(3)", 3), ("raise ValueError('theirs')", 1), ("os._exit(4)", 4),
        ("os.kill(os.getpid(), 15)", 143), ("os.kill(os.getpid(), 9)", 137),
        ("os.kill(os.getpid(), 11)", 139), ("os.kill(os.getpid(), 6)", 134),
    ],
)  # fmt: skip
def test_a_job_is_complete_whichever_way_it_ends(job: RunJob, end: str, code: int) -> None:
    """What is open then has an end only where the program itself came to one."""
    spans = "rltrace.step(4); rltrace.span('rollout', tokens=3)"
    done = job(PY, "-c", f"import os, sys, rltrace; {spans}; {end}")
    is_open = end != "sys.exit(3)"
    found = done.spans("stage, step, tokens, end_ns IS NULL")
    assert (done.code, found) == (code, [("step", 4, None, is_open), ("rollout", 4, 3, is_open)])
    assert ("ValueError: theirs" in done.err) == ("ValueError" in end)


User = Callable[[str], str]


@pytest.fixture
def user(tmp_path: Path) -> User:
    """Makes a folder with a sitecustomize of this code."""

    def made(code: str) -> str:
        folder = tmp_path / "user"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(code)
        return str(folder)

    return made


@pytest.fixture(scope="module")
def other_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment without rltrace."""
    path = tmp_path_factory.mktemp("other")
    venv.create(path, with_pip=False, symlinks=True)
    return path / "bin" / "python"


def test_the_python_of_another_environment(job: RunJob, other_venv: Path) -> None:
    program = """
        import sys, rltrace
        with rltrace.span("rollout"):
            pass
        try:
            import click
        except ImportError:
            print("its own packages only", [p for p in sys.path if "site-packages" in p])
    """
    done = job(str(other_venv), "{script}", program=program)
    assert done.code == 0, done.err
    assert done.out.startswith("its own packages only")
    assert str(Path(PY).parent.parent) not in done.out
    assert done.spans() == ["rollout"]


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.9", "3.10", "3.12", "3.13"])
def test_other_versions_of_python(job: RunJob, version: str, user: User) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    # rltrace's own command is a Python too and runs it as well: each says which version it is.
    folder = user("import sys; print('hidden in %d.%d' % sys.version_info[:2])")
    done = job(python, "-c", "print('fine')", PYTHONPATH=folder)
    assert done.code == 0
    expected = [f"hidden in {version}", "fine"]
    assert [line for line in done.out.splitlines() if line in expected] == expected
    traced = tuple(map(int, version.split("."))) >= (3, 10)
    assert len(done.processes) == (1 if traced else 0)
    said = [line for line in done.err.splitlines() if "the trace is in" not in line]
    assert said == [] or (not traced and "no Python process was traced" in said[0])


# --- the user's own sitecustomize -----------------------------------------------------------------


@pytest.mark.parametrize("of_two", [False, True])
def test_the_users_sitecustomize_runs_behind_ours(
    job: RunJob, tmp_path: Path, user: User, of_two: bool
) -> None:
    """Of two rltraces, as where a job of one environment is traced from another, each would run
    the other's."""
    folder = user("import sys; sys.ran = getattr(sys, 'ran', 0) + 1")
    other = tmp_path / "rltrace" / "hooks" / "site"
    shutil.copytree(SITE, other, ignore=shutil.ignore_patterns("__pycache__"))
    show = "import sitecustomize as s, sys; print(sys.ran, s.__file__, s.__name__)"
    path = f"{other}:{folder}" if of_two else folder
    done = job(PY, "-c", show, PYTHONPATH=path)
    assert done.code == 0
    assert "Error" not in done.err
    assert done.out.split() == ["1", f"{folder}/sitecustomize.py", "sitecustomize"]
    assert len(done.processes) == 1


def test_an_error_in_the_users_sitecustomize_is_reported_by_python_as_ever(
    job: RunJob, user: User
) -> None:
    folder = user("raise RuntimeError('user bug')")
    done = job(PY, "-c", "print('main runs')", PYTHONPATH=folder)
    plain = untraced(PY, "-c", "print('main runs')", PYTHONPATH=folder)
    assert (done.code, done.out) == (0, "main runs\n")
    assert done.err.startswith(plain.stderr)
    assert len(done.processes) == 1


# --- the wheel's own carrier ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment in which the wheel is installed, without its dependencies."""
    pytest.importorskip("build", reason="needs the `build` package, of the [dev] extra")
    pytest.importorskip("hatchling", reason="needs hatchling, of the [dev] extra")
    root = Path(__file__).parents[2]
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [PY, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder), str(root)],
        check=True,
        capture_output=True,
    )
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    install = ["install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    subprocess.run([PY, "-m", "pip", "--python", str(python), *install], check=True)
    return str(python)


@pytest.mark.parametrize(
    "option", ["-E", "-I", "-P" if sys.version_info >= (3, 11) else "-B", "-B"]
)
def test_the_wheel_reaches_processes_that_ignore_the_environment(
    job: RunJob, installed: str, option: str
) -> None:
    """And where both carriers do (`-B`), it boots once."""
    count = "sum(type(f).__module__.startswith('rltrace') for f in sys.meta_path)"
    done = job(installed, option, "-c", f"import sys; print({count})")
    assert (done.code, done.out) == (0, "1\n"), done.err
    assert len(done.processes) == 1


@pytest.mark.parametrize("is_installed", [False, True])
def test_a_sitecustomize_in_front_of_ours_hides_it_and_not_the_wheel(
    job: RunJob, user: User, other_venv: Path, installed: str, is_installed: bool
) -> None:
    python = installed if is_installed else other_venv
    folder = user("print('theirs')")
    done = job("bash", "-c", f"PYTHONPATH={folder}:$PYTHONPATH exec {python} -c pass")
    assert (done.code, done.out) == (0, "theirs\n")
    assert len(done.processes) == is_installed
