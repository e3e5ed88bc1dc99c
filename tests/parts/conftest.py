"""Real parts of frameworks, each run once for all tests of its module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.framework_jobs import PLUGIN, Ended, assets_of, free_port

JOBS = Path(__file__).with_name("job")

collect_ignore_glob = [] if importlib.util.find_spec("agentlightning") else ["test_*.py"]
"""They run by `make test-parts`, where the frameworks are installed."""


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ended[str]:
    """The finished job of a module's `JOB`: the package that has to be installed, the script and
    its arguments, of which `FOLDER` is the job's folder and `MODEL` a tiny model with a tokenizer,
    made without a network. `WRAP` are options of `rltrace wrap`."""
    package, script, *arguments = request.module.JOB
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed here: make test-parts")
    folder = tmp_path_factory.mktemp(package)
    model = str(folder / "model")
    if "MODEL" in arguments:
        assets_of("trl", folder)
    places = {"FOLDER": str(folder), "MODEL": model}
    filled = [places.get(argument, argument) for argument in arguments]
    command = [sys.executable, str(JOBS / script), *filled]
    environment = {
        "PYTHONPATH": f"{JOBS}:{PLUGIN}",  # for the processes of a mesh, which know no script
        "TORCHDYNAMO_DISABLE": "1",  # a kernel takes longer to compile than the whole job without
        "HF_HUB_OFFLINE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    wrap = getattr(request.module, "WRAP", ())
    finished = Ended.of(script, folder, command, options=wrap, **environment)
    assert finished.problems == [], "every hook has found its target and could read"
    return finished
