"""A small run, recorded once, of which every test has a copy of its own."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rltrace.cli import main
from rltrace.testing.inside.trace import create_run
from tests.conftest import recorded

PROGRAM = """
import time
for n in range(5):
    with rltrace.step(n):
        with rltrace.span("rollout"), rltrace.trajectory(f"t{n}", version=n) as t:
            time.sleep(0.05)  # longer than what the scheduler of a busy machine adds
            t.finish(response_tokens=5, version=n)
        with rltrace.span("train"):
            time.sleep(0.05)
            rltrace.use(f"t{n}", version=n, tokens=5)
"""


def invoke(*arguments: object) -> Result:
    """Runs `rltrace ARGUMENTS` in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def typed(line: str, **places: object) -> Result:
    """Runs `rltrace LINE` in this process; a name in it, as RUN, stands for the place given."""
    words = shlex.split(line)
    for name, place in places.items():
        words = [word.replace(name, str(place)) for word in words]
    return invoke(*words)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps; not to be written into."""
    path = tmp_path_factory.mktemp("small") / "run"
    create_run(str(path), ["python", "train.py"], {}, "test")
    recorded(path, PROGRAM)
    return path


@pytest.fixture(scope="session")
def compacted_run(tmp_path_factory: pytest.TempPathFactory, small_run: Path) -> Path:
    """The same, compacted; not to be written into."""
    path = Path(shutil.copytree(small_run, tmp_path_factory.mktemp("compacted") / "run"))
    assert invoke("compact", path).exit_code == 0
    return path


@pytest.fixture
def run(tmp_path: Path, small_run: Path) -> Path:
    """A run of five steps."""
    return Path(shutil.copytree(small_run, tmp_path / "run"))
