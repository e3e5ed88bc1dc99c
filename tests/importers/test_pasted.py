"""Logs as people paste them: broken, cut, of several jobs, of every console; each with what is
right."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.importers.reading import read_run
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.importers import ImportedRun, write_run
from rltrace.testing.inside.trace import Stage
from tests.cli.conftest import invoke

PASTED = Path(__file__).parent / "pasted"
VERL = {"gen": 50.0, "old_log_prob": 6.0, "ref": 5.0, "adv": 0.05, "update_actor": 30.0}
PPO = {"gen": 20.0, "reward": 0.1, "old_log_prob": 10.0, "values": 30.0, "adv": 1.0,
       "update_critic": 110.0, "update_actor": 15.0}  # fmt: skip
SLIME = {"rollout_time": 40.0, "train_wait_time": 1.0, "sleep_time": 12.0, "wake_up_time": 10.0,
         "update_weights_time": 6.0, "data_preprocess_time": 1.0, "ref_log_probs_time": 8.0,
         "log_probs_time": 7.0, "actor_train_time": 20.0}  # fmt: skip

RIGHT: dict[str, tuple[str, int, float | None, dict[str, float]]] = {
    "areal_console_stats_table.log": (
        "areal", 1, 351.0,
        {"rollout": 205.0, "recompute_logp": 12.0, "train_step": 31.0, "update_weights": 103.0},
    ),
    "nemo_rl_console_timing_block.log": (
        "nemo-rl", 1, 30.0,
        {"policy_training": 9.0, "checkpointing": 6.0, "generation": 5.0,
         "policy_and_reference_logprobs": 3.14, "prepare_for_generation/total": 1.6,
         "prepare_for_generation/transfer_and_update_weights": 0.6,
         "logprob_inference_prep": 0.85, "training_prep": 0.75, "data_processing": 0.09,
         "reward_calculation": 0.01},
    ),
    "openrlhf_dict_elided_by_hand.log": (
        "openrlhf", 2, None, {"timing/generation": 3.0, "timing/ppo_train": 5.0}
    ),
    "prime_rl_console_steps.log": ("prime-rl", 2, 70.0, {}),
    "rlinf_console_metric_table.log": (
        "rlinf", 1, 705.0,
        {"sync_weights": 1.2, "generate_rollouts": 192.0, "env/env_interact_step": 350.0,
         "rollout/predict": 38.0, "actor/run_training": 120.0},
    ),
    "torchforge_console_metrics_step.log": (
        "torchforge", 1, 225.0,
        {"train_step/duration_avg_s": 8.0, "push_weights/duration_avg_s": 14.0},
    ),
    "slime_async_update_weights_inside_train_wait.log": (
        "slime", 6, 86.0,
        {"rollout_time": 80.0, "train_wait_time": 43.0, "update_weights_time": 6.0,
         "data_preprocess_time": 1.0, "log_probs_time": 7.0, "actor_train_time": 28.0},
    ),
    "slime_colocated_sleep_wake_inside_train_wait.log": ("slime", 6, 106.0, SLIME),
    "slime_perf_dict_hard_wrapped.log": (
        "slime", 6, 14.178,
        {"train_wait_time": 5.016, "sleep_time": 4.036, "wake_up_time": 1.944,
         "update_weights_time": 0.335, "data_preprocess_time": 0.002,
         "ref_log_probs_time": 1.404, "log_probs_time": 0.109, "actor_train_time": 1.025},
    ),
    "slime_rollout_lines_only.log": ("slime", 6, None, {"rollout_time": 370.0}),
    "trl_dicts_without_step_time.log": ("trl", 3, None, {}),
    "trl_generation_every_second_step_stage_time_is_the_difference.log": (
        "trl", 12, 127.1, {"generation and scoring": 102.53, "the rest of the step": 24.57}
    ),
    "trl_like_json_lines_step_in_a_fraction.jsonl": (
        "trl", 6, 17.1, {"generation and scoring": 15.5, "the rest of the step": 1.6}
    ),
    "verl_eval_and_checkpoint_after_every_step.log": (
        "verl", 6, 92.0, {**VERL, "testing": 45.0, "save_checkpoint": 20.0}
    ),
    "verl_fixes_already_set_in_the_logs_own_command.log": ("verl", 6, 186.5, PPO),
    "verl_ppo_update_critic_dominates.log": ("verl", 6, 186.5, PPO),
    "verl_two_jobs_appended_same_step_numbers.log": ("verl", 4, 92.0, VERL),
    **dict.fromkeys(
        ("verl_070_has_mfu_actor_infer_no_update_weights.log",
         "verl_eval_and_checkpoint_after_step.log", "verl_gen_with_no_tool_calls_and_a_tail.log",
         "verl_ninety_percent_truncated.log", "verl_one_metric_per_line.log",
         "verl_remark_after_last_value.log", "verl_remark_after_last_value_utf8.log",
         "verl_step_line_hard_wrapped_at_200.log", "verl_step_line_wrapped_inside_timers.log"),
        ("verl", 6, 92.0, VERL),
    ),
}  # fmt: skip
"""Log -> whose it is, its steps, how long the first took (None: the log does not have it), and how
long each of its parts did, without what ran within it."""


def parts(run: ImportedRun, at: int = 0) -> dict[str, float]:
    """How long the parts of a step took, by their names."""
    step = run.steps[at]
    return {part.name: part.seconds for part in (*step.before, *step.inside, *step.after)}


def report(folder: Path, log: Path) -> Any:
    """The report on a log, as JSON."""
    write_run(folder / "run", read_run(log), "test")
    return json.loads(invoke("report", folder / "run", "--json").output)


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_a_pasted_log_is_read_as_what_it_is(name: str) -> None:
    framework, steps, step_s, timed = RIGHT[name]
    run = read_run(PASTED / name)
    assert (run.framework, len(run.steps)) == (framework, steps)
    assert run.steps[0].seconds == (None if step_s is None else pytest.approx(step_s, rel=1e-3))
    assert parts(run) == pytest.approx(timed, rel=1e-2, abs=1e-3)


def test_every_pasted_log_has_its_right() -> None:
    here = {path.name for path in PASTED.iterdir() if path.suffix in (".log", ".jsonl")}
    assert here == RIGHT.keys()


def test_timers_that_hold_others_leave_the_learner_its_share(tmp_path: Path) -> None:
    """`train_wait` holds four others: what trains is a third of the step, and nothing is cut."""
    log = PASTED / "slime_colocated_sleep_wake_inside_train_wait.log"
    found = report(tmp_path, log)
    exposed = {row["name"]: row["exposed_s"]["mean"] for row in found["stages"]}
    learner = exposed["train"] + exposed["logprob"] + exposed["reference"]
    assert learner / found["steps"]["step_s"]["mean"] == pytest.approx(0.33, abs=0.005)
    assert not any("add up" in note for note in read_run(log).log_notes)


def test_evaluation_and_checkpoints_between_steps_are_named_where_they_are_the_most(
    tmp_path: Path,
) -> None:
    found = report(tmp_path, PASTED / "verl_eval_and_checkpoint_after_every_step.log")
    assert found["steps"]["between"] == pytest.approx({"eval": 45.0, "checkpoint": 20.0})
    assert found["verdict"]["first"] is None
    assert "eval and checkpoint" in found["verdict"]["because"]


def test_a_log_tells_its_version_by_its_metrics_and_options_of_others_are_not_offered(
    tmp_path: Path,
) -> None:
    log = PASTED / "verl_070_has_mfu_actor_infer_no_update_weights.log"
    assert read_run(log).version == "0.7.0"
    offered = [fix["setting"] for fix in report(tmp_path, log)["verdict"]["fixes"]]
    assert not any(setting.startswith("trainer.v1") for setting in offered)


def test_what_the_log_s_own_command_sets_is_not_offered(tmp_path: Path) -> None:
    """And where the critic's update is the longest, its options come first."""
    names = ("verl_fixes_already_set_in_the_logs_own_command", "verl_ppo_update_critic_dominates")
    found = [report(tmp_path / name, PASTED / f"{name}.log") for name in names]
    offered = [{fix["setting"] for fix in one["verdict"]["fixes"]} for one in found]
    text = (PASTED / f"{names[0]}.log").read_text()
    more = tmp_path / "more.log"
    more.write_text(
        text.replace("critic.ppo_micro_batch_size_per_gpu=2", "critic.use_dynamic_bsz=True")
    )
    fixes = report(tmp_path / "more", more)["verdict"]["fixes"]
    assert "critic.use_dynamic_bsz" not in {fix["setting"] for fix in fixes}
    assert "critic.use_dynamic_bsz" in offered[0]
    assert not any(setting.startswith("actor_rollout_ref.model.") for setting in offered[0])
    assert "critic.use_dynamic_bsz" in offered[1]
    assert "actor_rollout_ref.actor.use_dynamic_bsz" not in offered[1]


def test_generation_that_is_known_to_be_generation_is_the_wall(tmp_path: Path) -> None:
    """Its longest sample generates for nearly all of it; and the mean one shows a tail."""
    found = report(tmp_path, PASTED / "verl_gen_with_no_tool_calls_and_a_tail.log")
    assert found["verdict"]["first"] == "rollout"
    says = {alarm["kind"]: alarm["says"] for alarm in found["health"]["alarms"]}
    assert "49 s" in says["tail"]
    assert "35 s" in says["tail"]


def test_samples_that_are_mostly_cut_off_are_an_alarm(tmp_path: Path) -> None:
    found = report(tmp_path, PASTED / "verl_ninety_percent_truncated.log")
    (alarm,) = (one for one in found["health"]["alarms"] if one["kind"] == "truncated")
    assert "90%" in alarm["says"]


def test_a_log_without_any_time_keeps_what_it_has(tmp_path: Path) -> None:
    found = report(tmp_path, PASTED / "trl_dicts_without_step_time.log")
    logged = {what: figure["mean"] for what, figure in found["logged"].items()}
    assert logged == pytest.approx(
        {"reward": -2.0, "no_signal": 1.0, "response_tokens": (113.5 + 87.1 + 111.1) / 3,
         "truncated": (0.7 + 0.45 + 0.75) / 3}
    )  # fmt: skip
    assert found["verdict"]["first"] is None


def test_of_several_jobs_in_one_log_the_last_counts_or_the_one_that_is_asked_for() -> None:
    log = PASTED / "verl_two_jobs_appended_same_step_numbers.log"
    assert [parts(read_run(log, job=job))["gen"] for job in (None, 1, 2)] == [50.0, 80.0, 50.0]
    assert any("2 jobs" in note for note in read_run(log).log_notes)
    result = invoke("report", log, "--job", "3")
    assert (result.exit_code, "there is no job 3" in result.output) == (2, True)


def test_a_dict_that_somebody_cut_is_named_by_its_line() -> None:
    notes = read_run(PASTED / "openrlhf_dict_elided_by_hand.log").log_notes
    assert any("2 lines (the first is line 1): the dict is cut" in note for note in notes)


def test_step_spans_of_several_threads_are_one_step(tmp_path: Path) -> None:
    log = PASTED / "chrome_step_spans_on_two_threads.json"
    write_run(tmp_path / "run", read_run(log, "chrome", PASTED / "chrome_map.toml"), "test")
    steps = rltrace.open_run(tmp_path / "run").sql("SELECT seconds FROM steps").fetchall()
    assert [seconds for (seconds,) in steps] == [59.5] * 6


def test_a_stated_placement_does_not_overrule_overlap_that_is_there(tmp_path: Path) -> None:
    """Training is hidden: putting it beside generation gains what is left, 5 s of 59.5 s."""
    log = PASTED / "chrome_overlap_advised_where_training_is_hidden_already.json"
    run = read_run(log, "chrome", PASTED / "chrome_map_disaggregated.toml")
    write_run(tmp_path / "run", run, "test")
    fixes = summarize(rltrace.open_run(tmp_path / "run")).verdict.fixes
    overlap = [fix.goodput_gain for fix in fixes if fix.lever == "placement=one-step-off"]
    assert all(gain is not None and gain.high <= 1.08 for gain in overlap)


# --- `rltrace report LOG`


def test_a_report_on_a_log_makes_no_run_and_says_what_it_found(tmp_path: Path) -> None:
    log = PASTED / "verl_one_metric_per_line.log"
    result = invoke("report", log, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["steps"]["complete"] == 6
    assert "6 steps (1 to 6)" in result.stderr
    assert list(tmp_path.iterdir()) == []
    asked = invoke("report", log, "--as", "verl", "--json")
    assert json.loads(asked.stdout)["verdict"] == json.loads(result.stdout)["verdict"]


def test_a_log_of_nothing_known_is_one_sentence_that_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("it was slow\nloss went down\n", "utf-8")
    result = invoke("report", tmp_path / "notes.txt")
    assert (result.exit_code, len(result.output.splitlines())) == (4, 1)
    assert "--as" in result.output


def test_stages_that_a_log_has_no_timer_of_are_unknown_not_zero() -> None:
    run = read_run(PASTED / "slime_rollout_lines_only.log")
    unknown = {stage for stage, _ in run.not_logged}
    assert {Stage.TRAIN, Stage.SYNC} <= unknown
    assert math.isclose(sum(parts(run, at)["rollout_time"] for at in range(6)), 2235.0)
