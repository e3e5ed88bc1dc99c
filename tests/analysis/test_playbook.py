"""The moves of the playbook, the settings that make them, those on a job's command line: what the
run has already is not advised."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.fixes.job_settings import (
    current_settings,
    elsewhere,
    form_of,
    given,
    with_settings,
)
from rltrace.analysis.fixes.options import KnownJob, is_rule, known_job, options_for, printed
from rltrace.analysis.fixes.playbook import frameworks, moves, settings_for
from rltrace.testing import process, run_of, stating, turns
from rltrace.testing.handmade_runs import between
from rltrace.testing.inside.analysis import (
    ENV_REWARD,
    FRESHNESS,
    LEARNER,
    LEVERS,
    WRAP_SYNC,
    Fix,
    summarize,
    wall_names,
)
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import RltraceError, Stage
from tests.analysis.made import not_none
from tests.analysis.walls import walled


def test_every_wall_has_a_move_and_every_move_is_whole() -> None:
    assert {move.wall for move in moves()} == set(wall_names())
    told = [(move.wall, move.move) for move in moves()]
    assert len(told) == len(set(told))
    for move in moves():
        assert move.effort in (1, 2, 3), move
        assert move.risk.endswith("."), move
        assert move.watch, move
        assert move.source, move
        assert bool(move.lever) == bool(move.value), move
    assert {move.lever for move in moves() if move.lever} <= {*LEVERS, "samples"}
    known = {(move.wall, move.move): move.lever for move in moves()}
    made = {(s.wall, s.move) for settings in frameworks().values() for s in settings}
    assert made <= known.keys()


@pytest.mark.parametrize(
    ("framework", "version", "wall", "move", "option"),
    [
        ("verl", "0.9.1", ENV_REWARD, "more reward workers", "reward.num_workers"),
        ("verl", "0.6.1", ENV_REWARD, "more reward workers",
         "reward_model.sandbox_fusion.max_concurrent"),
        ("openrlhf", "0.9.1", LEARNER, "recompute activations", "--gradient_checkpointing"),
        ("openrlhf", "0.11.2", LEARNER, "recompute activations",
         "--actor.gradient_checkpointing_enable"),
        ("rltrace.trainer", "", FRESHNESS, "bound the lag", "max_lag"),
    ],
)  # fmt: skip
def test_options_are_those_of_the_version(
    framework: str, version: str, wall: str, move: str, option: str
) -> None:
    (wanted,) = [one for one in moves() if (one.wall, one.move) == (wall, move)]
    assert settings_for(framework, version, wanted)[0].option == option
    assert settings_for("mine", "1.0", wanted) == ()


TRAIN = ["python", "examples/train.py", "--steps", "6", "--retokenize", "--lr=0.1"]
VERL = ["python", "-m", "verl.trainer.main_ppo", "a.b=1", "+c.d=2", "trainer.x=3"]
OPENRLHF = ["python", "-m", "openrlhf.cli.train_ppo_ray", "--vllm.num_engines", "1", "--a.list",
            "1", "2", "--train.async_enable"]  # fmt: skip


@pytest.mark.parametrize(
    ("framework", "command", "settings", "expected"),
    [
        ("rltrace.trainer", TRAIN, {"steps": 9}, [*TRAIN[:2], *TRAIN[4:], "--steps", "9"]),
        ("rltrace.trainer", TRAIN, {"retokenize": False},
         [*TRAIN[:4], "--lr=0.1", "--no-retokenize"]),
        ("rltrace.trainer", TRAIN, {"learning_rate": 1e-3}, [*TRAIN[:5], "--lr", "0.001"]),
        ("rltrace.trainer", TRAIN, {"max_lag": 1}, [*TRAIN, "--max-lag", "1"]),
        ("verl", VERL, {"a.b": True}, [*VERL[:3], *VERL[4:], "a.b=true"]),
        ("verl", VERL, {"c.d": 5}, [*VERL[:4], VERL[5], "+c.d=5"]),
        ("verl", VERL, {"+new.key": [1, 2]}, [*VERL, "+new.key=[1,2]"]),
        ("openrlhf", OPENRLHF, {"--vllm.num_engines": 2},
         [*OPENRLHF[:3], *OPENRLHF[5:], "--vllm.num_engines", "2"]),
        ("openrlhf", OPENRLHF, {"--a.list": [3, 4, 5]},
         [*OPENRLHF[:5], "--train.async_enable", "--a.list", "3", "4", "5"]),
        ("openrlhf", OPENRLHF, {"--train.async_enable": False}, OPENRLHF[:-1]),
        ("openrlhf", OPENRLHF, {"--train.partial_rollout_enable": True},
         [*OPENRLHF, "--train.partial_rollout_enable"]),
        ("openrlhf", OPENRLHF, {"vllm.num_engines": 2},  # as a person may say it
         [*OPENRLHF[:3], *OPENRLHF[5:], "--vllm.num_engines", "2"]),
    ],
)  # fmt: skip
def test_a_setting_takes_the_place_of_the_one_before(
    framework: str, command: list[str], settings: dict[str, object], expected: list[str]
) -> None:
    changed = with_settings(command, form_of(framework), settings)
    assert changed == expected
    assert with_settings(changed, form_of(framework), settings) == expected


def test_what_a_command_sets_can_be_read_and_what_a_job_writes_goes_elsewhere() -> None:
    own, verl = form_of("rltrace.trainer"), form_of("verl")
    read = [given(TRAIN, own, name) for name in ("steps", "learning_rate", "max_lag")]
    assert read == ["6", "0.1", None]
    assert given(VERL, verl, "c.d") == "2"
    assert given(OPENRLHF, form_of("openrlhf"), "--train.async_enable") == ""
    command = [*TRAIN, "--ledger", "books/ledger.json"]
    assert elsewhere(own, command, "/e") == {"ledger": "/e/ledger.json"}
    assert elsewhere(own, TRAIN, "/e") == {}
    assert elsewhere(verl, VERL, "/e") == {"trainer.default_local_dir": "/e/default_local_dir"}
    with pytest.raises(RltraceError, match="not known") as error:
        form_of("another")
    assert error.value.exit_code == 3


ROLLOUT = "actor_rollout_ref.rollout"
NEWEST = {"verl": "0.9.1", "openrlhf": "0.11.2", "trl": "1.16.0"}
SLOW_ROLLOUT = turns(8, 8, 8, 8, 8)
SLOW_SYNC = walled.turns(rollout=3, sync=6, train=1)
OVERLAP = "overlap generation with training"


def run_with(
    path: Path, framework: str, *words: str, spans: list[Any] = SLOW_ROLLOUT, **meta: Any
) -> Run:
    """A run of one process of the newest version, begun by a script with these words."""
    run = run_of(path, process("driver", *spans), command=["./train.sh", *words], **meta)
    return stating(run, {"adapter": framework, "versions": {framework: NEWEST.get(framework)}})


def fixes(path: Path, framework: str, *words: str, **more: Any) -> list[Fix]:
    return list(summarize(run_with(path, framework, *words, **more)).verdict.fixes)


def advised(found: list[Fix]) -> set[str]:
    """All options that are advised, first, with another or besides."""
    options = {fix.setting for fix in found} | {key for fix in found for key in fix.needs}
    return options | {re.split("[= ]", one)[0] for fix in found for one in fix.also}


@pytest.mark.parametrize(
    ("framework", "option", "word", "otherwise"),
    [
        ("openrlhf", "--train.async_enable", "--train.async_enable", ""),
        pytest.param("openrlhf", "--vllm.enable_prefix_caching",
                     "--vllm.enable_prefix_caching=true", "", marks=pytest.mark.slow),
        ("verl", "trainer.v1.trainer_mode", "trainer.v1.trainer_mode=separate_async",
         "trainer.v1.trainer_mode=sync"),
        pytest.param("verl", f"{ROLLOUT}.quantization", f"+{ROLLOUT}.quantization=fp8", "",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_what_the_run_has_is_not_advised(
    tmp_path: Path, framework: str, option: str, word: str, otherwise: str
) -> None:
    assert option in advised(fixes(tmp_path / "without", framework, *filter(None, [otherwise])))
    assert option not in advised(fixes(tmp_path / "with", framework, word))


@pytest.mark.parametrize(
    ("framework", "setting", "value", "also"),
    [
        ("verl", f"{ROLLOUT}.checkpoint_engine.backend", "rltrace", ()),
        ("openrlhf", WRAP_SYNC, True, ()),
        ("rltrace.trainer", "sync", "relay", ("--sync delta",)),
    ],
)
def test_rltraces_own_way_for_weights_is_named_behind_what_is_predicted_to_gain(
    tmp_path: Path, framework: str, setting: str, value: object, also: tuple[str, ...]
) -> None:
    found = fixes(tmp_path, framework, spans=SLOW_SYNC)
    (own,) = [fix for fix in found if fix.move == "move weights by rltrace.sync"]
    assert (own.setting, own.value, own.also) == (setting, value, also)
    assert own.goodput_gain is None
    assert "rltrace experiment" in own.unpredicted
    gains = [fix for fix in found if fix.goodput_gain and fix.goodput_gain.value > 1.02]
    assert gains
    assert found.index(own) >= len(gains)


def test_a_job_whose_weights_rltrace_moves_already_is_not_told_to_wrap_it_so(
    tmp_path: Path,
) -> None:
    run = run_with(tmp_path, "openrlhf", spans=SLOW_SYNC, settings={"sync": True})
    assert current_settings(run, "openrlhf", "")[WRAP_SYNC] is True
    assert WRAP_SYNC not in advised(list(summarize(run).verdict.fixes))


def test_another_option_of_the_same_move_takes_its_place(tmp_path: Path) -> None:
    found = {fix.move: fix for fix in fixes(tmp_path, "openrlhf", "--train.async_enable")}
    move = found[OVERLAP]
    assert (move.setting, move.needs) == ("--train.partial_rollout_enable", {})
    # One configuration is not advised to a run of another.
    others = fixes(tmp_path / "other", "verl", "trainer.v1.trainer_mode=separate_async")
    assert "rollout.nnodes" not in {fix.setting for fix in others if fix.move == OVERLAP}
    # What is needed may be set to something else.
    words = ("--algo.advantage.estimator", "gae", "--rollout.n_samples_per_prompt", "4")
    spans = [*turns(2, 2, 2, 2, 2), *((Stage.VALUE, 10 * n + 3, 10 * n + 5) for n in range(5))]
    critic = fixes(tmp_path / "critic", "openrlhf", *words, spans=spans)
    (drop,) = (fix for fix in critic if fix.move == "drop the critic")
    assert (drop.setting, drop.needs) == ("--algo.advantage.estimator", {})


@pytest.mark.parametrize(("words", "offered"), [((), True), (("trainer.use_v1=False",), False)])
def test_an_option_that_does_nothing_in_the_job_is_not_offered(
    tmp_path: Path, words: tuple[str, ...], offered: bool
) -> None:
    """verl's older trainer reads none of V1's; a job that says nothing has V1."""
    run = run_with(tmp_path, "verl", "-m", "verl.trainer.main_ppo", *words)
    job = known_job(run)
    made = [one for move in moves() for one in options_for(move, job, move.value)[0]]
    of_v1 = [one for one in made if one.option.startswith(("trainer.v1.", "algorithm.filter_"))]
    assert bool(of_v1) == offered
    assert any("trainer.v1.trainer_mode" in one.needs for one in made) == offered
    advice = advised(list(summarize(run).verdict.fixes))
    assert ("trainer.v1.trainer_mode" in advice) == offered


@pytest.mark.parametrize(
    ("current", "offered"), [({}, True), ({"--reward.remote_url": "http://judge"}, False)]
)
def test_ranks_of_a_reward_model_are_not_offered_to_a_job_without_one(
    current: dict[str, Any], offered: bool
) -> None:
    job = KnownJob("openrlhf", "0.11.2", current, {}, "")
    made = [one for move in moves() for one in options_for(move, job, move.value)[0]]
    assert ("--reward.num_gpus_per_node" in {one.option for one in made}) == offered


def test_options_are_about_the_long_timers_though_others_do_the_work(tmp_path: Path) -> None:
    """verl's driver waits in `update_actor` for its workers; a job without a critic has no timer of
    that, and no option."""
    steps = [*((("step", n), 10 * n, 10 * n + 10) for n in range(5))]
    driver = process("controller", *steps, *((Stage.ROLLOUT, 10 * n, 10 * n + 1) for n in range(5)))
    for n in range(5):
        driver.span(between(10 * n + 1, 10 * n + 9), "update_actor", Stage.WAIT, -1)
    learner = process("learner", *((Stage.TRAIN, 10 * n + 1, 10 * n + 9) for n in range(5)))
    run = run_of(tmp_path, driver, learner)
    run = stating(run, *[{"adapter": "verl", "versions": {"verl": "0.9.1"}}] * 2)
    verdict = summarize(run).verdict
    assert not_none(verdict.first).name == LEARNER
    options = advised(list(verdict.fixes))
    assert "actor_rollout_ref.actor.use_dynamic_bsz" in options
    assert not any(option.startswith("critic.") for option in options)


def test_an_option_of_another_program_is_no_option_of_the_job(tmp_path: Path) -> None:
    """verl 0.8's `main_ppo` has no `rollout.nnodes`; in 0.9 it has an option of its own."""

    def overlap(name: str, version: str, *words: str) -> Fix:
        run = run_with(tmp_path / name, "verl", "-m", *words)
        run = stating(run, {"adapter": "verl", "versions": {"verl": version}})
        found = {fix.move: fix for fix in summarize(run).verdict.fixes}
        return found[OVERLAP]

    main = "verl.trainer.main_ppo"
    older = overlap("older", "0.8.0", main)
    assert (older.setting, older.printed) == ("", "")
    assert "verl.experimental.one_step_off_policy.main_ppo" in older.program
    newer = overlap("newer", "0.9.1", main)
    assert (newer.setting, newer.program) == ("trainer.v1.trainer_mode", "")
    apart = overlap("apart", "0.8.0", "verl.experimental.one_step_off_policy.main_ppo")
    assert (apart.setting, apart.program) == ("rollout.nnodes", "")


@pytest.mark.parametrize(
    ("words", "config"),
    [
        (("verl.trainer.main_ppo",), "ppo_trainer"),
        (("verl.trainer.main_ppo", "--config-name=ppo_megatron_trainer"), "ppo_megatron_trainer"),
        (("-m", "verl.trainer.main_ppo", "--config-name", "mine"), "ppo_trainer"),
        (("verl/experimental/fully_async_policy/fully_async_main.py",), "fully_async_ppo_trainer"),
        (("-m", "recipe.one_step_off_policy.main_ppo"), "one_step_off_ppo_trainer"),
        (("mine.py", "rollout.nnodes=1"), "one_step_off_ppo_trainer"),
        (("mine.py", "rollout.nnodes=1", "async_training.staleness_threshold=0.5"),
         "fully_async_ppo_trainer"),
        (("mine.py",), "ppo_trainer"),
    ],
)  # fmt: skip
def test_the_configuration_is_that_of_the_command(
    tmp_path: Path, words: tuple[str, ...], config: str
) -> None:
    assert known_job(run_with(tmp_path, "verl", *words)).config == config


def test_a_relative_value_is_of_the_jobs_own_and_none_without_it() -> None:
    """The factor is the lever's, which predicts the gain."""
    (move,) = [one for one in moves() if one.lever == "samples"]

    def values(**current: Any) -> list[Any]:
        job = KnownJob(
            "openrlhf", "0.11.2", {f"--rollout.{k}": v for k, v in current.items()}, {}, ""
        )
        return [one.value for one in options_for(move, job, move.value)[0]]

    assert values(n_samples_per_prompt=4) == [8]
    assert [is_rule(value) for value in values()] == [True]
    said = printed("openrlhf", {"--rollout.n_samples_per_prompt": move.value})
    assert not any(sign.isdigit() for sign in said)


@pytest.mark.parametrize(
    ("option", "now", "offered"),
    [
        ("--vllm.gpu_memory_utilization", 0.85, True),
        ("--vllm.gpu_memory_utilization", 0.95, False),
        ("--vllm.tensor_parallel_size", 2, True),
        ("--vllm.tensor_parallel_size", 1, False),
        ("--algo.kl.init_coef", 0.01, True),
        ("--algo.kl.init_coef", 0.0, False),
        ("--train.max_tokens_per_gpu", 65536, False),
    ],
)
def test_what_the_job_has_passed_is_not_offered(option: str, now: float, offered: bool) -> None:
    job = KnownJob("openrlhf", "0.11.2", {option: now}, {}, "")
    settings = [one for move in moves() for one in options_for(move, job, move.value)[0]]
    assert (option in {one.option for one in settings}) == offered


@pytest.mark.parametrize(
    ("framework", "settings", "line"),
    [
        ("openrlhf", {"--train.async_enable": True, "--a.b": [0.5, 2.0]},
         "--train.async_enable --a.b 0.5 2.0"),
        ("trl", {"--use_vllm": True, "--beta": 0.0, "--gradient_checkpointing": False},
         "--use_vllm --beta 0.0 --gradient_checkpointing false"),
        ("verl", {"a.b": False, "+c": [1, 2]}, "a.b=false '+c=[1,2]'"),
        ("prime_rl", {"a.use_it": False}, "--no-a.use-it"),
        ("roll", {"a.b": True}, "a.b: true"),
        ("openrlhf", {WRAP_SYNC: True}, WRAP_SYNC),
    ],
)  # fmt: skip
def test_settings_are_printed_as_the_framework_takes_them(
    framework: str, settings: dict[str, Any], line: str
) -> None:
    assert printed(framework, settings) == line


def test_the_program_itself_knows_more_than_the_script_that_starts_it(tmp_path: Path) -> None:
    argv = ["python", "-m", "openrlhf", "--ds.zero_stage", "3", "--vllm.num_engines=4"]
    run = run_with(tmp_path, "openrlhf", "--ds.zero_stage=2")
    run = stating(run, {"argv": argv, "role": None})
    found = current_settings(run, "openrlhf", "0.11.2")
    assert found == {"--ds.zero_stage": 3, "--vllm.num_engines": 4}
    plain = run_of(tmp_path / "plain", process("driver", *SLOW_ROLLOUT))
    assert current_settings(plain, "verl", "") == current_settings(plain, "", "") == {}
