"""The launch for GPUs is one that OpenRLHF takes, the extra what all other tests here run on."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.hooks.conftest import clean_environment
from tests.openrlhf.jobs import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_openrlhf_knows_every_flag_of_the_gpu_launch(assets: Path) -> None:
    # Three thresholds are what it refuses once it has taken all flags, before it does anything.
    done = subprocess.run(
        [
            str(ROOT / "examples/openrlhf/gpu.sh"),
            *("--algo.advantage.is_correction_threshold", "1", "2", "3"),
        ],
        env=clean_environment(
            PYTHON=sys.executable, GPUS="8", DATA="prompts.jsonl", REWARD="reward.py",
            DS_ACCELERATOR="cpu", PYTHONPATH=str(ROOT / "tests/openrlhf/plugin"),
        ),
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert "AssertionError: --algo.advantage.is_correction_threshold takes" in done.stderr


def test_the_extra_is_what_these_tests_run_on(assets: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [requirement] = extras["optional-dependencies"]["openrlhf"]
    assert requirement == f"openrlhf[vllm]=={version('openrlhf')}"
