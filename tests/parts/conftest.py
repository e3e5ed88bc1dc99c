"""Real parts of frameworks, each run once for all tests of its module."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hooks.conftest import clean_environment
from tests.parts.jobs import Finished, run_part

collect_ignore_glob = [] if importlib.util.find_spec("agentlightning") else ["test_*.py"]
"""They run by `make test-parts`, where the frameworks are installed."""

ASSETS = Path(__file__).parents[1] / "trl" / "make_assets.py"


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The finished job of a module's `JOB`: the package that has to be installed, the script and
    its arguments, of which `FOLDER` is the job's folder and `MODEL` a tiny model with a tokenizer,
    made without a network. `WRAP` are options of `rltrace wrap`."""
    package, script, *arguments = request.module.JOB
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed here: make test-parts")
    folder = tmp_path_factory.mktemp(package)
    model = str(folder / "model")
    if "MODEL" in arguments:
        make = [sys.executable, str(ASSETS), model]
        subprocess.run(make, check=True, env=clean_environment())
    places = {"FOLDER": str(folder), "MODEL": model}
    filled = [places.get(argument, argument) for argument in arguments]
    return run_part(script, folder, filled, getattr(request.module, "WRAP", ()))
