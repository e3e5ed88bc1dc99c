"""The wheel as users get it: built from the source distribution, installed with what it asks for.

Each Python takes a minute and the package index, so `make test` leaves these files out; `make
test-packaging` runs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from tests.hooks.conftest import clean_environment
from tests.pythons import find_python

ROOT = Path(__file__).parents[2]
PYTHONS = "3.10", "3.11", "3.12", "3.13", "3.14"

collect_ignore_glob = [] if os.environ.get("RLTRACE_PACKAGING") else ["test_*.py"]


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel in it."""

    folder: Path

    def run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        """What a program of the environment prints; it must not fail, nor complain."""
        done = subprocess.run(
            [str(self.folder / "bin" / program), *arguments],
            cwd=cwd or self.folder,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that is made of it."""
    folder = tmp_path_factory.mktemp("built")
    build = [sys.executable, "-m", "build", "--no-isolation", "-o", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session", params=PYTHONS)
def installed(
    request: pytest.FixtureRequest, built: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """An empty environment of a Python, into which the wheel was installed."""
    return _with_wheel(request.param, built, tmp_path_factory)


@pytest.fixture(scope="session")
def lowest(
    built: Path, metadata: Distribution, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """An environment of the lowest Python with the lowest version of whatever the core asks for."""
    core = [one for one in metadata.requires or [] if "extra ==" not in one]
    assert all(">=" in one for one in core), core
    pins = [one.replace(">=", "==") for one in core]
    return _with_wheel(PYTHONS[0], built, tmp_path_factory, *pins)


@pytest.fixture(scope="session")
def metadata(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """What the wheel says of itself."""
    folder = tmp_path_factory.mktemp("unpacked")
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return PathDistribution(next(folder.glob("*.dist-info")))


def _with_wheel(
    version: str, built: Path, tmp_path_factory: pytest.TempPathFactory, *pins: str
) -> Installed:
    """An environment of a Python with the wheel; skipped where there is none of that version."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    folder = tmp_path_factory.mktemp(f"python{version}")
    environment = clean_environment()
    subprocess.run([python, "-m", "venv", str(folder)], env=environment, check=True)
    [wheel] = built.glob("*.whl")
    one = Installed(folder)
    one.run("python", "-m", "pip", "install", "--quiet", str(wheel), *pins)
    return one
