"""The launch for GPUs is one that verl takes, the extra what all other tests here run on."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from tests.framework_jobs import ROOT, pinned_by_extra, printed


def test_verl_knows_every_setting_of_the_gpu_launch(assets: Path) -> None:
    launch = [str(ROOT / "examples/verl/gpu.sh"), "--cfg", "job"]  # prints them, runs nothing
    assert "n_gpus_per_node: 8" in printed(launch, DATA=str(assets), GPUS="8").stdout


def test_the_extra_is_the_set_that_these_tests_run_on() -> None:
    pinned = pinned_by_extra("verl")
    assert pinned == {name: version(name) for name in pinned}
