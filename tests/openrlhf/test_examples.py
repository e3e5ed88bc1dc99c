"""The launch for GPUs is one that OpenRLHF takes, the extra what all other tests here run on."""

from __future__ import annotations

from importlib.metadata import version

from tests.framework_jobs import PLUGIN, ROOT, pinned_by_extra, printed


def test_openrlhf_knows_every_flag_of_the_gpu_launch() -> None:
    # Three thresholds are what it refuses once it has taken all flags, before it does anything.
    thresholds = ["--algo.advantage.is_correction_threshold", "1", "2", "3"]
    done = printed(
        [str(ROOT / "examples/openrlhf/gpu.sh"), *thresholds],
        GPUS="8", DATA="prompts.jsonl", REWARD="reward.py", DS_ACCELERATOR="cpu",
        PYTHONPATH=f"{ROOT}/tests/openrlhf/plugin:{PLUGIN}",
    )  # fmt: skip
    assert "AssertionError: --algo.advantage.is_correction_threshold takes" in done.stderr


def test_the_extra_is_what_these_tests_run_on() -> None:
    assert pinned_by_extra("openrlhf") == {"openrlhf[vllm]": version("openrlhf")}
