"""The two carriers, sitecustomize on PYTHONPATH and the .pth of the wheel, beside the user's."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from rltrace.testing.inside.hooks import SITE
from tests.hooks.conftest import RunJob, untraced
from tests.pythons import find_python

PY = sys.executable


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
def test_other_versions_of_python(job: RunJob, version: str, tmp_path: Path) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    user = tmp_path / "user"
    user.mkdir()
    # rltrace's own command is a Python too and runs it as well: each says which version it is.
    (user / "sitecustomize.py").write_text(
        "import sys; print('hidden in %d.%d' % sys.version_info[:2])"
    )
    done = job(python, "-c", "print('fine')", PYTHONPATH=str(user))
    assert done.code == 0
    of_the_job = [
        line for line in done.out.splitlines() if line in (f"hidden in {version}", "fine")
    ]
    assert of_the_job == [f"hidden in {version}", "fine"]
    traced = tuple(map(int, version.split("."))) >= (3, 10)
    assert len(done.processes) == (1 if traced else 0)
    said = [line for line in done.err.splitlines() if "the trace is in" not in line]
    assert said == [] or (not traced and "no Python process was traced" in said[0])


# --- the user's own sitecustomize -----------------------------------------------------------------


def _with_sitecustomize(tmp_path: Path, code: str) -> str:
    folder = tmp_path / "user"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    return str(folder)


def test_the_users_sitecustomize_runs_behind_ours(job: RunJob, tmp_path: Path) -> None:
    user = _with_sitecustomize(tmp_path, "ran = True")
    show = "import sitecustomize as s; print(s.ran, s.__file__, s.__name__)"
    done = job(PY, "-c", show, PYTHONPATH=user)
    assert done.out.split() == ["True", f"{user}/sitecustomize.py", "sitecustomize"]
    assert len(done.processes) == 1


def test_the_users_sitecustomize_runs_behind_those_of_two_rltraces(
    job: RunJob, tmp_path: Path
) -> None:
    """As where a job of one environment is traced from another: each would run the other's."""
    other = tmp_path / "rltrace" / "hooks" / "site"
    shutil.copytree(SITE, other, ignore=shutil.ignore_patterns("__pycache__"))
    user = _with_sitecustomize(tmp_path, "import sys; sys.ran = getattr(sys, 'ran', 0) + 1")
    done = job(PY, "-c", "import sys; print(sys.ran)", PYTHONPATH=f"{other}:{user}")
    assert (done.code, done.out) == (0, "1\n")
    assert "Error" not in done.err
    assert len(done.processes) == 1


def test_an_error_in_the_users_sitecustomize_is_reported_by_python_as_ever(
    job: RunJob, tmp_path: Path
) -> None:
    user = _with_sitecustomize(tmp_path, "raise RuntimeError('user bug')")
    done = job(PY, "-c", "print('main runs')", PYTHONPATH=user)
    plain = untraced(PY, "-c", "print('main runs')", PYTHONPATH=user)
    assert (done.code, done.out) == (0, "main runs\n")
    assert done.err.startswith(plain.stderr)
    assert len(done.processes) == 1


def test_a_sitecustomize_in_front_of_ours_wins(
    job: RunJob, tmp_path: Path, other_venv: Path
) -> None:
    """It hides our first carrier; where the wheel is installed, the second one still boots."""
    user = _with_sitecustomize(tmp_path, "print('theirs')")
    program = f"PYTHONPATH={user}:$PYTHONPATH exec {other_venv} -c pass"
    done = job("bash", "-c", program)
    assert (done.code, done.out) == (0, "theirs\n")
    assert done.processes == []


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


@pytest.mark.parametrize("option", ["-E", "-I", "-P" if sys.version_info >= (3, 11) else "-B"])
def test_the_wheel_reaches_processes_that_ignore_the_environment(
    job: RunJob, installed: str, option: str
) -> None:
    done = job(installed, option, "-c", "pass")
    assert done.code == 0, done.err
    assert len(done.processes) == 1


def test_both_carriers_boot_once(job: RunJob, installed: str) -> None:
    count = "sum(type(f).__module__.startswith('rltrace') for f in sys.meta_path)"
    done = job(installed, "-c", f"import sys; print({count})")
    assert done.out == "1\n"
    assert len(done.processes) == 1


def test_the_wheel_reaches_a_process_whose_sitecustomize_hides_ours(
    job: RunJob, tmp_path: Path, installed: str
) -> None:
    user = _with_sitecustomize(tmp_path, "print('theirs')")
    done = job("bash", "-c", f"PYTHONPATH={user}:$PYTHONPATH exec {installed} -c pass")
    assert done.out == "theirs\n"
    assert len(done.processes) == 1


def test_the_wheel_does_nothing_without_a_run(installed: str) -> None:
    show = "import sys; print([m for m in sys.modules if 'rltrace' in m])"
    done = untraced(installed, "-c", show)
    assert (done.stdout, done.stderr) == ("[]\n", "")
