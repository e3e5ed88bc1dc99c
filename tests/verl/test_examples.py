"""The launch for GPUs is one that verl takes. The one without is what all other tests here run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.hooks.conftest import clean_environment
from tests.verl.jobs import ROOT


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
