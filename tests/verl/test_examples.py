"""The launch for GPUs is one that verl takes, the extra what all other tests here run on."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.hooks.conftest import clean_environment
from tests.verl.jobs import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_verl_knows_every_setting_of_the_gpu_launch(assets: Path) -> None:
    done = subprocess.run(
        [str(ROOT / "examples/verl/gpu.sh"), "--cfg", "job"],  # prints the settings, runs nothing
        env=clean_environment(PYTHON=sys.executable, DATA=str(assets), GPUS="8"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "n_gpus_per_node: 8" in done.stdout


def test_the_extra_is_the_set_that_these_tests_run_on(assets: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in extras["optional-dependencies"]["verl"]:
        name, _, pinned = requirement.partition("==")
        assert version(name) == pinned
