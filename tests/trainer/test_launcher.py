"""examples/train.py: every setting is an option, and what is wrong is said without a traceback."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from examples import train as launcher
from rltrace.testing.inside.trainer import RunFailed, Unreadable
from rltrace.trainer import Ledger, TrainerConfig, TrainerError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TrainerConfig]:
    """The settings of runs that the launcher would have made."""
    configs: list[TrainerConfig] = []

    def train(config: TrainerConfig, on_step: object, ledger: Ledger) -> Ledger:
        configs.append(config)
        return ledger

    monkeypatch.setattr(launcher, "train", train)
    return configs


def call(*arguments: object) -> Result:
    return CliRunner().invoke(launcher.main, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--steps", 7], {"steps": 7}),
        (["--env-tail", 0.5], {"env_tail": 0.5}),
        (["--placement", "async"], {"placement": "async"}),
        (["--lr", 0.5], {"learning_rate": 0.5}),
        (["--kl", 0.5], {"kl_coefficient": 0.5}),
        (["--retokenize"], {"retokenize": True}),
        (["--no-partial-rollout"], {"partial_rollout": False}),
        (["--checkpoint", "file", "--resume"], {"checkpoint": "file", "resume": True}),
    ],
)
def test_every_setting_is_an_option(
    asked: list[TrainerConfig], words: list[object], changed: dict[str, Any]
) -> None:
    options = {parameter.name for parameter in launcher.main.params}
    assert {field.name for field in dataclasses.fields(TrainerConfig)} < options
    done = call(*words)
    assert done.exit_code == 0, done.output
    assert asked == [dataclasses.replace(TrainerConfig(), **changed)]


def test_a_file_gives_settings_that_options_override(
    asked: list[TrainerConfig], tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    path.write_text("[job]\nmax-lag = 1\nretokenize = true\n[without]\nmax_lag = 2\nsteps = 7\n")
    call("--config", path)
    call("--config", path, "--without-cause")
    call("--config", path, "--without-cause", "--max-lag", 3, "--no-retokenize")
    assert [(c.max_lag, c.steps, c.retokenize) for c in asked] == [
        (1, 100, True),
        (2, 7, True),
        (3, 7, False),
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--samples", "1"], "samples must be at least 2"),
        (["--task", "expression", "--symbols", "10"], "symbols must be at most 9"),
        (["--config", "/nowhere.toml"], "/nowhere.toml: No such file"),
        (["--checkpoint", "/nowhere/state"], "/nowhere/state"),
        (["--without-cause"], "--without-cause needs --config"),
        (["--joined-cluster", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1"),
        (["--ledger", "/dev/null/ledger.json"], "cannot write '/dev/null/ledger.json'"),
    ],
)
def test_what_is_wrong_is_a_usage_error(arguments: list[str], named: str) -> None:
    done = call(*arguments)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2
    assert named in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("failure", "code", "written"),
    [
        (RunFailed("no rollout worker is left"), 1, True),
        (KeyboardInterrupt(), 1, True),
        (SystemExit(143), 143, True),
        (Unreadable("it is no whole checkpoint"), 4, False),
        (TrainerError("the Ray cluster has too few CPUs"), 2, False),
    ],
)
def test_a_run_that_fails_says_why_and_writes_its_ledger_whole_unless_it_was_refused(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    failure: BaseException,
    code: int,
    written: bool,
) -> None:
    path = tmp_path / "ledger.json"
    path.write_text('{"events": "of the run before"}')

    def train(config: TrainerConfig, on_step: object, ledger: Ledger) -> Ledger:
        assert "of the run before" in path.read_text()  # until there is something better
        ledger.events.append("rollout worker 0 died")
        raise failure

    monkeypatch.setattr(launcher, "train", train)
    assert call("--steps", 0, "--ledger", path).exit_code == 2
    done = call("--ledger", path)
    assert done.exit_code == code
    assert isinstance(done.exception, SystemExit)
    if isinstance(failure, TrainerError):
        assert done.output.endswith(f"Error: {failure}\n")
    events = ["rollout worker 0 died"] if written else "of the run before"
    assert json.loads(path.read_text())["events"] == events
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("asked")
def test_the_ledger_is_written_as_json_to_a_file_or_to_standard_output(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    assert call("--seed", 7, "--ledger", path).output == "no step was left to make\n"
    assert json.loads(path.read_text())["config"]["seed"] == 7
    assert '"steps": []' in call("--ledger", "-").output
