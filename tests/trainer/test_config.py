"""A setting that cannot work is refused by its name; so is what is wrong in a file of them."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from rltrace.trainer import TrainerConfig, TrainerError, load_job, train

AT_LEAST_ONE = (
    "steps", "shortest", "max_response", "prompts", "max_running", "layers", "heads",
    "minibatches", "rollout_workers", "reward_workers", "checkpoint_every", "mean_length",
    "oversample", "truncate",
)  # fmt: skip
NOT_NEGATIVE = (
    "learning_rate", "kl_coefficient", "length_tail", "merges", "warm_start", "max_lag", "timeout",
    "reward_latency", "env_latency", "env_tail", "link_gbps", "decode_floor", "update_floor",
)  # fmt: skip
FLOATS = [f.name for f in dataclasses.fields(TrainerConfig) if isinstance(f.default, float)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 0) for name in AT_LEAST_ONE),
        *((name, -1) for name in NOT_NEGATIVE),
        *((name, float(value)) for name in FLOATS for value in ("nan", "inf", "-inf")),
        *((name, "ppo") for name in ("placement", "task", "objective", "reference_side", "sync")),
        *(("symbols", count) for count in (1, 27)),
        *(("clip", share) for share in (0.0, 1.0)),
        ("samples", 1),
        ("longest", 1),
        ("model_size", 0.0),
        ("pass_mark", 1.5),
        ("env_failure_rate", -0.1),
        ("merges", 6),
        ("resume", True),
        ("seed", 2**63),
    ],
)
def test_a_value_that_cannot_work_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TrainerError, match=f"^{name} must|^resume needs a checkpoint"):
        TrainerConfig(**{name: value})


@pytest.mark.parametrize(
    "settings",
    [
        {"symbols": 2, "merges": 1, "samples": 2, "shortest": 3, "longest": 3},
        {"symbols": 26, "pass_mark": 1.0, "env_failure_rate": 1.0, "seed": 1 - 2**63},
        dict.fromkeys(NOT_NEGATIVE, 0),
        dict.fromkeys(AT_LEAST_ONE, 1),
    ],
)
def test_a_bound_itself_is_allowed(settings: dict[str, Any]) -> None:
    TrainerConfig(**settings)


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [("oversample", 2.0, {"placement": "async"}), ("recompute_old", True, {"objective": "tis"})],
)
def test_settings_that_exclude_each_other_are_refused_by_both_names(
    name: str, value: Any, other: dict[str, Any]
) -> None:
    with pytest.raises(TrainerError, match=f"^{name} must .* {' '.join(other)} is "):
        TrainerConfig(**{name: value}, **other)


def test_settings_come_by_name_with_dashes_or_underscores_and_whole_numbers_may_be_floats() -> None:
    config = TrainerConfig.of({"max-lag": 2, "model_size": 1, "retokenize": True})
    assert (config.max_lag, config.model_size, config.retokenize) == (2, 1, True)
    assert TrainerConfig.of({}) == TrainerConfig()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("velocity", 1, "there is no setting 'velocity'"),
        ("step", 1, "there is no setting 'step' (did you mean steps?)"),
        ("steps", True, "steps must be of type int, not True"),
        ("learning-rate", True, "learning-rate must be of type float, not True"),
        ("checkpoint", None, "checkpoint must be of type str, not None"),
    ],
)
def test_a_name_or_a_type_that_does_not_exist_is_refused(name: str, value: Any, why: str) -> None:
    with pytest.raises(TrainerError, match=f"^{re.escape(why)}$"):
        TrainerConfig.of({name: value})


@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("layers", [1, 6])
@pytest.mark.parametrize("model_size", [1e-6, 0.05, 3.0])
def test_a_width_that_the_heads_can_share_has_about_the_parameters_asked_for(
    model_size: float, layers: int, heads: int
) -> None:
    width = TrainerConfig(model_size=model_size, layers=layers, heads=heads).width
    assert width % heads == 0
    assert width > 0
    if model_size > 1e-3:
        wanted = (model_size * 1e6 / (12 * layers)) ** 0.5
        assert abs(width - wanted) <= heads / 2


def test_without_torch_or_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("rltrace.trainer.run")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        TrainerError, match=re.escape("ray: pip install 'rltrace-toolkit[trainer]'")
    ):
        train(TrainerConfig())


# --- jobs in TOML files --------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "job.toml"


def test_the_cause_of_a_wall_is_taken_away_when_that_is_asked_for(job: Path) -> None:
    """A setting has one name however it is written, or it would not override the other."""
    job.write_text(
        "[job]\nplacement = 'async'\nmax-lag = 1\nlink-gbps = 1\n"
        "[without]\nlink_gbps = 0\nmax_lag = 2\n"
    )
    assert load_job(job) == {"placement": "async", "max_lag": 1, "link_gbps": 1}
    without = {"placement": "async", "max_lag": 2, "link_gbps": 0}
    assert load_job(job, without_cause=True) == without


@pytest.mark.parametrize(
    ("text", "without", "named"),
    [
        ("[without]\nsteps = 1", False, "no [job]"),
        ("[job]\nsteps = 1", True, "no [without]"),
        ("[job]\nsteps = 1\n[withot]", False, "'withot'"),
        ("steps = 3\n[job]", False, "'steps'"),
        ("without = 3\n[job]\nsteps = 1", True, "no [without]"),
        ("[job]\nsteps = \n", False, "line 2"),
        ("[job]\n# \udcff", False, "'utf-8'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(job: Path, text: str, without: bool, named: str) -> None:
    job.write_text(text, errors="surrogateescape")
    with pytest.raises(TrainerError, match=f"{job}.*{re.escape(named)}"):
        load_job(job, without)


def test_a_file_that_cannot_be_read_is_named_with_the_reason(job: Path) -> None:
    for path, why in ((job, "No such file or directory"), (job.parent, "Is a directory")):
        with pytest.raises(TrainerError, match=f"^cannot read settings from {path}: {why}$"):
            load_job(path)
