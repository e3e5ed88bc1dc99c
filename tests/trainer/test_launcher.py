"""examples/train.py: every setting is an option, and what is wrong is said without a traceback."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rltrace.testing.inside.trainer import RunFailed, Unreadable
from rltrace.trainer import Ledger, TrainerConfig, TrainerError

PATH = Path(__file__).parents[2] / "examples" / "train.py"
SETTINGS = dataclasses.fields(TrainerConfig)


@pytest.fixture
def launcher() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def asked(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[TrainerConfig]:
    """The settings of runs that the launcher would have made."""
    configs: list[TrainerConfig] = []

    def train(config: TrainerConfig, on_step: object, ledger: Ledger) -> Ledger:
        configs.append(config)
        return ledger

    monkeypatch.setattr(launcher, "train", train)
    return configs


def call(launcher: ModuleType, *arguments: object) -> Result:
    return CliRunner().invoke(launcher.main, [str(argument) for argument in arguments])


def option(name: str) -> str:
    return "--" + {"learning_rate": "lr", "kl_coefficient": "kl"}.get(name, name).replace("_", "-")


def other(field: dataclasses.Field[Any]) -> list[object]:
    """An option that sets a field to something else than its default, and what that is."""
    name, default = option(field.name), field.default
    words = {"placement": "async", "task": "copy", "objective": "tis", "reference_side": "learner",
             "sync": "bucketed"}  # fmt: skip
    if isinstance(default, bool):
        return [[f"--no-{name[2:]}" if default else name], not default]
    if isinstance(default, str):
        word = words.get(field.name, "somewhere")
        return [[name, word], word]
    value = default / 2 if 0 < default <= 1 and isinstance(default, float) else default + 1
    value = 0.5 if field.name in ("pass_mark", "env_failure_rate") else value
    value = 3.0 if field.name in ("oversample", "truncate") else value
    return [[name, value], value]


@pytest.mark.parametrize("field", SETTINGS, ids=lambda field: field.name)
def test_every_setting_is_an_option(
    launcher: ModuleType, asked: list[TrainerConfig], field: dataclasses.Field[Any]
) -> None:
    arguments, value = other(field)
    extra = ["--checkpoint", "file"] if field.name == "resume" else []
    done = call(launcher, *arguments, *extra)
    assert done.exit_code == 0, done.output
    assert getattr(asked[0], field.name) == value != field.default
    changed = {f.name for f in SETTINGS if getattr(asked[0], f.name) != f.default}
    assert changed == {field.name} | ({"checkpoint"} if extra else set())


def test_help_lists_every_setting_with_its_default(launcher: ModuleType) -> None:
    text = call(launcher, "--help").output
    assert "Traceback" not in text
    for field in SETTINGS:
        assert f"  {option(field.name)}" in text, field.name
    assert "VERSIONS" in text
    assert "[default: 0.001]" in text


def test_a_file_gives_settings_that_options_override(
    launcher: ModuleType, asked: list[TrainerConfig], tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    path.write_text("[job]\nmax-lag = 1\nretokenize = true\n[without]\nmax_lag = 2\nsteps = 7\n")
    call(launcher, "--config", path)
    call(launcher, "--config", path, "--without-cause")
    call(launcher, "--config", path, "--without-cause", "--max-lag", 3, "--no-retokenize")
    assert [(c.max_lag, c.steps, c.retokenize) for c in asked] == [
        (1, 100, True),
        (2, 7, True),
        (3, 7, False),
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--samples", "1"], "samples must be at least 2: GRPO compares them, not 1"),
        (["--steps", "1.5"], "'1.5' is not a valid integer"),
        (["--steps", "-1"], "steps must be at least 1, not -1"),
        (["--lr", "nan"], "learning_rate must be finite, not nan"),
        (["--reward-latency", "inf"], "reward_latency must be finite, not inf"),
        (["--placement", "here"], "placement must be one of colocated, disaggregated"),
        (["--max-response", "3"], "max_response must be at least 7"),
        (["--task", "expression", "--symbols", "10"], "symbols must be at most 9"),
        (["--resume"], "resume needs a checkpoint"),
        (["--placement", "async", "--oversample", "2"], "oversample must be 1 where placement is"),
        (["--objective", "tis", "--recompute-old"], "recompute_old must be off where objective"),
        (["--config", "/nowhere.toml"], "cannot read settings from /nowhere.toml: No such file"),
        (["--checkpoint", "/nowhere/state"], "no checkpoint can be kept in /nowhere/state"),
        (["--without-cause"], "--without-cause needs --config"),
        (["--joined-cluster", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1"),
        (["--joined-cluster", "127.0.0.1:port"], "no Ray cluster answers at 127.0.0.1:port"),
        (["--joined-cluster", "moon"], "no Ray cluster answers at moon"),
        (["--ledger", "/dev/null/ledger.json"], "cannot write '/dev/null/ledger.json'"),
        (["--ledger", "/nowhere/ledger.json"], "cannot write '/nowhere/ledger.json': No such"),
        (["--speed", "3"], "No such option"),
    ],
)
def test_what_is_wrong_is_a_usage_error_in_a_sentence(
    launcher: ModuleType, arguments: list[str], sentence: str
) -> None:
    done = call(launcher, *arguments)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())


def test_a_bad_setting_in_a_file_is_a_usage_error_too(launcher: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("[job]\nsteps = 'three'\n")
    done = call(launcher, "--config", path)
    assert done.exit_code == 2
    assert "steps must be of type int, not 'three'" in done.output


@pytest.mark.parametrize(("failure", "code"), [(RunFailed, 1), (Unreadable, 4)])
def test_a_run_that_fails_says_why_in_a_sentence_and_by_its_exit_code(
    launcher: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    failure: type[TrainerError],
    code: int,
) -> None:
    def train(*_: object, **__: object) -> Ledger:
        raise failure("no rollout worker is left and none could be started")

    monkeypatch.setattr(launcher, "train", train)
    done = call(launcher)
    assert done.exit_code == code
    assert done.output == "Error: no rollout worker is left and none could be started\n"


@pytest.mark.usefixtures("asked")
def test_the_ledger_is_written_as_json(launcher: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    done = call(launcher, "--seed", 7, "--ledger", path)
    assert json.loads(path.read_text())["config"]["seed"] == 7
    assert done.output == "no step was left to make\n"


def test_the_ledger_of_a_run_that_failed_is_written_too(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def train(config: TrainerConfig, on_step: object, ledger: Ledger) -> Ledger:
        ledger.events.append("rollout worker 0 died")
        raise RunFailed("no rollout worker is left and none could be started")

    monkeypatch.setattr(launcher, "train", train)
    call(launcher, "--ledger", tmp_path / "ledger.json")
    written = json.loads((tmp_path / "ledger.json").read_text())
    assert written["events"] == ["rollout worker 0 died"]


def test_a_run_that_is_refused_leaves_the_ledger_that_is_there(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.json"
    path.write_text("of the run before")

    def train(*_: object) -> Ledger:
        assert path.read_text() == "of the run before"  # until there is something better
        raise TrainerError("the Ray cluster has too few CPUs")

    assert call(launcher, "--steps", 0, "--ledger", path).exit_code == 2
    monkeypatch.setattr(launcher, "train", train)
    assert call(launcher, "--ledger", path).exit_code == 2
    assert path.read_text() == "of the run before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_the_ledger_of_a_run_that_was_ended_is_written_whole(
    launcher: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    end: type[BaseException],
) -> None:
    def train(config: TrainerConfig, on_step: object, ledger: Ledger) -> Ledger:
        raise end

    path = tmp_path / "ledger.json"
    path.write_text("of the run before")
    monkeypatch.setattr(launcher, "train", train)
    call(launcher, "--ledger", path)
    assert json.loads(path.read_text())["steps"] == []
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("asked")
def test_the_ledger_may_go_to_standard_output(launcher: ModuleType) -> None:
    assert '"steps": []' in call(launcher, "--ledger", "-").output
