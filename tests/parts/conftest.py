"""Real parts of frameworks, each run once for all its tests."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.hooks.conftest import clean_environment
from tests.parts.jobs import Finished, run_part

collect_ignore_glob = [] if importlib.util.find_spec("agentlightning") else ["test_*.py"]
"""They run by `make test-parts`, where the frameworks are installed."""

ASSETS = Path(__file__).parents[1] / "trl" / "make_assets.py"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and its tokenizer, made without a network."""
    folder = tmp_path_factory.mktemp("assets") / "model"
    subprocess.run([sys.executable, str(ASSETS), str(folder)], check=True, env=clean_environment())
    return folder


@pytest.fixture(scope="session")
def part(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Finished]:
    """`part(package, script, *arguments, wrap=options)`: the finished job, where the package is
    installed. `{}` in an argument is the job's folder."""
    known: dict[str, Finished] = {}

    def finished(package: str, script: str, *arguments: str, wrap: Sequence[str] = ()) -> Finished:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed here: make test-parts")
        if script not in known:
            folder = tmp_path_factory.mktemp(Path(script).stem)
            filled = [argument.format(folder) for argument in arguments]
            known[script] = run_part(script, folder, filled, wrap)
        return known[script]

    return finished
