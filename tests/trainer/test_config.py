"""A setting that cannot work is refused in one sentence that says what would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rltrace.trainer import TrainerConfig, TrainerError, train

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"task": "chess"}, "task must be one of sort, reverse, copy, not 'chess'"),
        ({"samples": 1}, "samples must be at least 2: GRPO compares them, not 1"),
        ({"width": 30}, "width must be a multiple of 4, not 30"),
        ({"symbols": 27}, "symbols must be 2 to 26, not 27"),
        ({"longest": 1}, "longest must be at least 2, not 1"),
        ({"max_response": 6}, "max_response must exceed longest (6), or no answer can end, not 6"),
        ({"learning_rate": -1.0}, "learning_rate must not be negative, not -1.0"),
        ({"rollout_workers": 0}, "rollout_workers must be at least 1, not 0"),
    ],
)
def test_bad_settings(settings: dict[str, int], sentence: str) -> None:
    with pytest.raises(TrainerError, match=f"^{re.escape(sentence)}$"):
        TrainerConfig(**settings)


def test_an_unknown_placement_names_the_known_ones() -> None:
    with pytest.raises(TrainerError, match="placement must be one of colocated, not 'everywhere'"):
        train(TrainerConfig(placement="everywhere"))


def test_without_torch_or_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("rltrace.trainer.run")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "ray", None)
    needed = re.escape("the trainer needs ray: pip install 'rltrace-toolkit[trainer]'")
    with pytest.raises(TrainerError, match=f"^{needed}$"):
        train(TrainerConfig())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--samples", "1"], "samples must be at least 2: GRPO compares them, not 1"),
        (["--ray-address", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1"),
        (["--ray-address", "moon"], "no Ray cluster answers at moon"),
        (["--ledger", "/dev/null/ledger.json"], "'/dev/null/ledger.json'"),
    ],
)
def test_the_launcher_says_what_is_wrong_without_a_traceback(
    options: list[str], sentence: str
) -> None:
    command = [sys.executable, "examples/train.py", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
