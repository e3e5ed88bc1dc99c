"""What the run has already is known from its command lines, and is not advised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.analysis.current import current_settings
from rltrace.testing.inside.analysis import WRAP_SYNC, Fix, summarize
from rltrace.testing.inside.trace import Run, Stage
from rltrace.testing.made import process, run_of, turns
from tests.analysis.walls import walled

ROLLOUT = "actor_rollout_ref.rollout"
SLOW_ROLLOUT = turns(8, 8, 8, 8, 8)
SLOW_LEARNER = turns(2, 2, 2, 2, 2)


def run_with(path: Path, spans: list[Any], command: list[str], **facts: Any) -> Run:
    """A run of one process of which these facts are known."""
    run_of(path, process("driver", *spans), command=command)
    for file in (path / "run" / "process").iterdir():
        file.write_text(json.dumps({**json.loads(file.read_text()), **facts}) + "\n")
    return rltrace.open_run(path / "run")


def fixes(path: Path, framework: str, *words: str, spans: list[Any] = SLOW_ROLLOUT) -> list[Fix]:
    run = run_with(path, spans, ["./train.sh", *words], adapter=framework)
    return list(summarize(run).verdict.fixes)


def advised(found: list[Fix]) -> set[str]:
    """All options that are advised, first, with another or besides."""
    options = {fix.setting for fix in found} | {key for fix in found for key in fix.needs}
    return options | {one.partition("=")[0] for fix in found for one in fix.also}


@pytest.mark.parametrize(
    ("framework", "option", "word"),
    [
        ("openrlhf", "--train.async_enable", "--train.async_enable"),
        ("openrlhf", "--vllm.enable_prefix_caching", "--vllm.enable_prefix_caching=true"),
        ("verl", "trainer.v1.trainer_mode", "trainer.v1.trainer_mode=separate_async"),
        ("verl", f"{ROLLOUT}.quantization", f"+{ROLLOUT}.quantization=fp8"),
    ],
)
def test_what_the_run_has_is_not_advised(
    tmp_path: Path, framework: str, option: str, word: str
) -> None:
    assert option in advised(fixes(tmp_path / "without", framework))
    assert option not in advised(fixes(tmp_path / "with", framework, word))


@pytest.mark.parametrize(
    ("framework", "setting", "value", "also"),
    [
        ("verl", f"{ROLLOUT}.checkpoint_engine.backend", "rltrace", ()),
        ("openrlhf", WRAP_SYNC, True, ()),
        ("rltrace.trainer", "sync", "relay", ("sync=delta",)),
    ],
)
def test_rltraces_own_way_for_weights_is_named_behind_what_is_predicted_to_gain(
    tmp_path: Path, framework: str, setting: str, value: object, also: tuple[str, ...]
) -> None:
    spans = walled.turns(rollout=3, sync=6, train=1)
    found = fixes(tmp_path, framework, spans=spans)
    (own,) = [fix for fix in found if fix.move == "move weights by rltrace.sync"]
    assert (own.setting, own.value, own.also) == (setting, value, also)
    assert own.goodput_gain is None
    assert "rltrace experiment" in own.no_number
    gains = [fix for fix in found if fix.goodput_gain and fix.goodput_gain.middle > 1.02]
    assert gains
    assert found.index(own) >= len(gains)


def test_a_job_whose_weights_rltrace_moves_already_is_not_told_to_wrap_it_so(
    tmp_path: Path,
) -> None:
    run_with(tmp_path, walled.turns(rollout=3, sync=6, train=1), ["x"], adapter="openrlhf")
    file = tmp_path / "run" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "settings": {"sync": True}}))
    run = rltrace.open_run(tmp_path / "run")
    assert current_settings(run, "openrlhf", "")[WRAP_SYNC] is True
    assert WRAP_SYNC not in advised(list(summarize(run).verdict.fixes))


def test_an_option_that_is_set_otherwise_is_advised(tmp_path: Path) -> None:
    word = "trainer.v1.trainer_mode=sync"
    assert "trainer.v1.trainer_mode" in advised(fixes(tmp_path, "verl", word))


def test_another_option_of_the_same_move_takes_its_place(tmp_path: Path) -> None:
    found = {fix.move: fix for fix in fixes(tmp_path, "openrlhf", "--train.async_enable")}
    move = found["overlap generation with training"]
    assert move.setting == "--train.partial_rollout_enable"
    assert move.needs == {}


def test_one_configuration_is_not_advised_to_a_run_of_another(tmp_path: Path) -> None:
    words = ("trainer.v1.trainer_mode=separate_async",)
    assert "rollout.nnodes" not in {
        fix.setting
        for fix in fixes(tmp_path, "verl", *words)
        if fix.move == "overlap generation with training"
    }


def test_what_is_needed_may_be_set_to_something_else(tmp_path: Path) -> None:
    words = ("--algo.advantage.estimator", "gae", "--rollout.n_samples_per_prompt", "4")
    values = [(Stage.VALUE, 10 * n + 3, 10 * n + 5) for n in range(5)]
    spans = [*SLOW_LEARNER, *values]
    found = {fix.move: fix for fix in fixes(tmp_path, "openrlhf", *words, spans=spans)}
    drop = found["drop the critic"]
    assert drop.setting == "--algo.advantage.estimator"
    assert drop.needs == {}


def test_the_program_itself_knows_more_than_the_script_that_starts_it(tmp_path: Path) -> None:
    argv = ["python", "-m", "openrlhf", "--ds.zero_stage", "3", "--vllm.num_engines=4"]
    command = ["./train.sh", "--ds.zero_stage=2"]
    run = run_with(tmp_path, SLOW_ROLLOUT, command, adapter="openrlhf", argv=argv, role=None)
    found = current_settings(run, "openrlhf", "0.11.2")
    assert found == {"--ds.zero_stage": 3, "--vllm.num_engines": 4}


def test_without_a_command_nothing_is_known(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", *SLOW_ROLLOUT))
    assert current_settings(run, "verl", "") == {}
    assert current_settings(run, "", "") == {}
