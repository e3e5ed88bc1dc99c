"""Logs of jobs that went on after a crash, evaluated first, or show how far they are by a
progress bar only; broken by a terminal of any width; from stdin."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.importers import ImportedRun, read_run
from tests.cli.conftest import invoke
from tests.hooks.conftest import untraced
from tests.importers.logs import RAISED, TASK, report, verl, written

RLTRACE = (sys.executable, "-m", "rltrace")


# --- one that crashed and went on


def test_a_step_that_was_done_again_counts_once_by_its_last_attempt(tmp_path: Path) -> None:
    first = [verl(n, 50.0) for n in (1, 2, 3, 4, 5)]
    found = read_run(written(tmp_path, *first, RAISED, *(verl(n, 70.0) for n in (4, 5, 6))))
    assert [(step.number, step.seconds) for step in found.steps] == [
        (1, 92.0), (2, 92.0), (3, 92.0), (4, 112.0), (5, 112.0), (6, 112.0),
    ]  # fmt: skip
    assert any("done again" in note and note.endswith("4 to 5") for note in found.log_notes)


def test_another_job_in_the_same_file_is_another_job(tmp_path: Path) -> None:
    """Also where each evaluates before its first step."""
    validated = f"{TASK}step:0 - val-core/openai/gsm8k/acc/mean@1:0.31"
    jobs = [[validated, *(verl(n, gen_s) for n in (1, 2, 3))] for gen_s in (80.0, 50.0)]
    log = written(tmp_path, *jobs[0], *jobs[1])
    found = [[step.seconds for step in read_run(log, job=job).steps if not step.is_evaluation]
             for job in (1, 2)]  # fmt: skip
    assert found == [[122.0] * 3, [92.0] * 3]


# --- steps and their seconds


def test_an_evaluation_before_the_first_step_is_no_step(tmp_path: Path) -> None:
    validated = f"{TASK}step:0 - val-core/openai/gsm8k/acc/mean@1:0.31 - val-aux/num_turns/min:2"
    log = written(tmp_path, validated, verl(1), verl(2), verl(3), RAISED)
    found = read_run(log)
    assert [step.counters for step in found.steps if step.is_evaluation] == [
        {"val-core/openai/gsm8k/acc/mean@1": 0.31, "val-aux/num_turns/min": 2.0}
    ]
    assert ": 3 steps (1 to 3)" in invoke("report", log).output
    assert found.log.end.endswith("after 3 steps")


@pytest.mark.parametrize("shown", [(1, 2, 5, 6), (41, 42, 43), (1, 2, 3)], ids=str)
def test_lost_steps_and_a_cut_log_leave_the_seconds_of_a_step(
    tmp_path: Path, shown: tuple[int, ...]
) -> None:
    begin, end = verl(shown[0] - 1)[200:], verl(shown[-1] + 1).partition("238473")[0]
    found = report(tmp_path, begin, *map(verl, shown), end)
    assert found["steps"]["step_s"]["mean"] == pytest.approx(92.0)
    assert found["steps"]["complete"] == len(shown)


def test_one_step_has_no_interval_and_below_three_nothing_is_predicted(tmp_path: Path) -> None:
    for steps in (1, 2, 3):
        (tmp_path / str(steps)).mkdir()
        found = report(tmp_path / str(steps), *(verl(n, 200.0 + n) for n in range(steps)))
        walls = [wall["cost"] for wall in found["verdict"]["walls"] if wall["cost"]["share"]]
        bounds = [cost["low"] for cost in walls] + [found["steps"]["step_s"]["low"]]
        assert all(bound is None for bound in bounds) is (steps == 1)
        gains = [fix["goodput_gain"] for fix in found["verdict"]["fixes"]]
        assert gains
        assert any(gain is not None for gain in gains) is (steps == 3)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("within", [True, False])
def test_a_validation_is_in_the_step_or_behind_it_as_the_step_s_length_tells(
    tmp_path: Path, every: int, within: bool
) -> None:
    """In verl 0.4 it is within."""
    lines = [
        verl(n, timing_s__testing=60.0, timing_s__step=92.5 + 60.0 * within)
        if n % every == 0
        else verl(n, timing_s__step=92.5)
        for n in range(1, 7)
    ]
    steps = read_run(written(tmp_path, *lines)).steps
    of = [("inside" if within else "after") for step in steps if step.number % every == 0]
    assert of == [part for step in steps for part in ("inside", "after")
                  if any(timed.name == "testing" for timed in getattr(step, part))]  # fmt: skip


# --- what tells the placement

SLIME = (
    "perf 1: {'perf/train_wait_time': 60.0, 'perf/rollout_time': 58.0, "
    "'perf/actor_train_time': 40.0, 'perf/step_time': 100.0}"
)
OPENRLHF = (
    "Global step 1: {'timing/generation': 40.0, 'timing/make_experience': 10.0, "
    "'timing/ppo_train': 30.0, 'timing/broadcast': 2.0, 'timing/step_total': 82.0}"
)
OLD_VERL = "step:1 - timing_s/gen:50.0 - timing_s/update_actor:30.0 - timing_s/step:85.0"


@pytest.mark.parametrize(
    ("command", "step", "placement"),
    [
        ("python3 -m openrlhf.cli.train_ppo_ray --colocate_all_models \\", OPENRLHF, "colocated"),
        ("+ python3 -m openrlhf.cli.train_ppo_ray --train.colocate_all", OPENRLHF, "colocated"),
        ("Namespace(colocate_all_models=False)", OPENRLHF, "disaggregated"),
        ("   --colocate_actor_ref \\", OPENRLHF, ""),
        ("python3 train.py --actor-num-nodes 1 --colocate --lr 1e-6", SLIME, "colocated"),
        ("python3 train.py --actor-num-nodes 1 --colocate-x", SLIME, ""),
        ("python3 -m verl.trainer.main_ppo trainer.nnodes=1", OLD_VERL, "colocated"),
        ("python3 -m verl.trainer.main_ppo_sync trainer.nnodes=1", OLD_VERL, ""),
    ],
)
def test_a_command_line_tells_the_placement(
    tmp_path: Path, command: str, step: str, placement: str
) -> None:
    steps = [step.replace("1:", f"{n}:", 1).replace("step:1", f"step:{n}") for n in (1, 2, 3)]
    assert read_run(written(tmp_path, command, *steps)).placement == placement


# --- a table that the log ends in


def nemo(step: int, cut: int = 99) -> str:
    """A step as NeMo-RL prints it, as far as so many of its lines."""
    lines = f"""========================= Step {step}/9 =========================
📊 Training Results:
  • Avg Reward: 0.{step}

⏱️  Timing:
  • Total step time: 100.00s
  • generation: 50.00s (50.0%)
  • policy_training: 40.00s (40.0%)
  • reward_calculation: 1.00s (1.0%)

🔍 Performance Metrics:
  • Mean Total Tokens per Sample: 204.01""".splitlines()
    return "\n".join(lines[:cut])


@pytest.mark.parametrize("cut", [6, 7, 8])
def test_a_table_of_timers_that_is_cut_tells_no_times(tmp_path: Path, cut: int) -> None:
    run = read_run(written(tmp_path, *map(nemo, (1, 2, 3)), nemo(4, cut)))
    assert [(s.number, s.seconds) for s in run.steps] == [
        (1, 100.0),
        (2, 100.0),
        (3, 100.0),
        (4, None),
    ]
    assert run.steps[-1].counters == {"train/reward": 0.4}
    assert not run.steps[-1].inside
    assert any("skipped" in note and "last step" in note for note in run.log_notes)


@pytest.mark.parametrize("cut", [9, 10, 99])
def test_a_table_that_is_whole_tells_them_though_the_log_ends(tmp_path: Path, cut: int) -> None:
    run = read_run(written(tmp_path, *map(nemo, (1, 2, 3)), nemo(4, cut)))
    assert [step.seconds for step in run.steps] == [100.0] * 4
    assert not any("skipped" in note for note in run.log_notes)


# --- prime-rl, of which two processes log

PRIME = "12:{step:02}:01 SUCCESS Step {step} | Time: {took:.2f}s | "
PEAKS = (
    "Peak Mem.: 61.9/79.1 GiB (77.4%)",
    "Peak Mem.: 61.9GiB (77.4%)",
    "Peak Mem 61.9 GiB (77%)",
)


def trainer(step: int, peak: str = PEAKS[0]) -> str:
    return f"{PRIME.format(step=step, took=30 + step / 7)}Loss: 0.1 | MFU: 5.4% | {peak}"


def orchestrator(step: int) -> str:
    return f"{PRIME.format(step=step, took=28)}Reward: 0.{step} | Max. Off-Policy Level: 1"


@pytest.mark.parametrize("peak", PEAKS)
@pytest.mark.parametrize("end", ["\n", ""])
def test_a_last_cell_in_parentheses_is_whole(tmp_path: Path, peak: str, end: str) -> None:
    log = tmp_path / "train.log"
    log.write_text("\n".join(trainer(n, peak) for n in (1, 2, 3)) + end, "utf-8")
    run = read_run(log)
    assert not any("skipped" in note for note in run.log_notes)
    assert {step.counters[peak.partition(" 61")[0].rstrip(":")] for step in run.steps} == {61.9}


def test_steps_that_two_processes_count_are_the_trainer_s(tmp_path: Path) -> None:
    lines = [line for n in range(2, 9) for line in (orchestrator(n), trainer(n - 1))]
    run = read_run(written(tmp_path, orchestrator(1), *lines))
    assert run.trainer == "trainer"
    told = [(s.number, s.seconds, s.counters["reward/all/mean"]) for s in run.steps]
    assert told == [(n, pytest.approx(30 + n / 7, abs=0.01), n / 10) for n in range(1, 8)]
    assert not any("again" in note or "jobs" in note for note in run.log_notes)


# --- what is said of a log


def test_a_log_is_called_by_its_name_and_its_steps_counted_once(tmp_path: Path) -> None:
    log = written(tmp_path, *map(verl, (3, 4, 5)), verl(6).partition(" - timing_s/step")[0])
    result = invoke("report", log)
    assert ": 3 steps (3 to 5)" in result.output
    for asked in ("--steps 90..99", "--phase 3"):
        result = invoke("report", log, *asked.split())
        assert (result.exit_code, "rltrace: train.log has no" in result.output) == (2, True)
    result = invoke("compare", log, log)
    assert (result.exit_code, "`rltrace import`" in result.output) == (4, True)


# --- TRL, which says no step


def trl(reward: float, **more: float) -> str:
    """What TRL prints of an entry; older versions without `step_time`."""
    figures = {"loss": 0.0012, "num_tokens": 72418.0, "completions/mean_length": 412.4,
               "completions/max_length": 1024.0, "completions/clipped_ratio": 0.03,
               "reward": reward, "reward_std": 0.21, **more, "epoch": 0.11}  # fmt: skip
    return str(figures)


def bar(step: int, elapsed_s: int, of: int = 400) -> str:
    minutes, seconds = divmod(elapsed_s, 60)
    hours, minutes = divmod(minutes, 60)
    shown = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"
    return f"  {100 * step // of}%|▌         | {step}/{of} [{shown}<1:10:29, 20.94s/it]"


def test_entries_of_ten_steps_are_ten_steps_by_the_progress_bar(tmp_path: Path) -> None:
    lines, elapsed_s = [bar(0, 0)], 0
    for step in range(1, 36):
        elapsed_s += 21 if step % 2 else 25
        lines.append(bar(step, elapsed_s))
        lines += [trl(0.4 + step / 100), bar(step, elapsed_s)] * (step % 10 == 0)
    run = read_run(written(tmp_path, *lines, RAISED))
    assert [step.number for step in run.steps] == [*range(1, 31)]
    assert {step.seconds for step in run.steps} == {23.0}
    assert run.log.end.endswith("after 35 steps")
    # Rewards stand at the last of the ten.
    rewards = {step.number: step.counters["reward"] for step in run.steps if step.counters}
    assert rewards == {10: 0.5, 20: pytest.approx(0.6), 30: pytest.approx(0.7)}


def of_bars(folder: Path, *entries: tuple[int, int], **more: float) -> dict[int, float | None]:
    """Step -> seconds, of entries at (step, seconds since the bar began)."""
    run = read_run(written(folder, *(f"{bar(*one)}\n{trl(0.5, **more)}" for one in entries)))
    return {step.number: step.seconds for step in run.steps}


def test_a_log_that_was_cut_at_its_begin_has_the_pace_of_what_is_left(tmp_path: Path) -> None:
    found = of_bars(tmp_path, (110, 4000), (120, 4200), (130, 4440))
    assert (min(found), max(found)) == (101, 130)
    assert [found[step] for step in (101, 111, 121)] == [22.0, 20.0, 24.0]


def test_steps_shorter_than_the_bar_can_show_have_the_mean_or_trl_s_own_timer(
    tmp_path: Path,
) -> None:
    seen = [(step, step // 2) for step in range(1, 21)]
    assert {*of_bars(tmp_path, *seen).values()} == {0.5}
    assert {*of_bars(tmp_path, *seen, step_time=0.44).values()} == {0.44}


def test_a_job_that_went_on_from_a_checkpoint_is_told_by_its_bar(tmp_path: Path) -> None:
    first = [f"{bar(step, 40 * step)}\n{trl(step / 100)}" for step in (10, 20, 30)]
    again = [f"{bar(step, 10 * step - 100)}\n{trl(step / 99)}" for step in (20, 30, 40)]
    run = read_run(written(tmp_path, *first, RAISED, *again))
    assert [step.seconds for step in run.steps] == [40.0] * 10 + [10.0] * 30
    assert any("done again" in note and note.endswith("11 to 30") for note in run.log_notes)


def test_entries_without_a_bar_between_them_are_counted(tmp_path: Path) -> None:
    """As in a file, into which texts come late; and bars of other work are none of the job's."""
    others = ("Map: 100%|████| 7473/7473 [00:01<00:00, 4.1it/s]",
              "Processed prompts:  50%|██ | 32/64 [00:12<00:12, 2.6it/s]")  # fmt: skip
    run = read_run(written(tmp_path, bar(0, 0), *others, *map(trl, (0.1, 0.2, 0.3))))
    assert [(step.number, step.seconds) for step in run.steps] == [(n, None) for n in (1, 2, 3)]


def test_rewards_without_any_time_are_in_the_order_of_the_log(tmp_path: Path) -> None:
    rewards = [0.484, 0.51, 0.47, 0.53, 0.55, 0.52, 0.58, 0.594]
    found = report(tmp_path, *map(trl, rewards))
    reward = found["logged"]["reward"]
    assert (reward["first"], reward["last"], reward["n"]) == (0.484, 0.594, 8)
    assert "0.484 → 0.594" in invoke("report", tmp_path / "run").output


@pytest.mark.parametrize("without", [0.4, 0.95])
def test_groups_without_a_signal_are_told_and_an_alarm_where_nearly_all_are(
    tmp_path: Path, without: float
) -> None:
    found = report(tmp_path, *(trl(0.5, frac_reward_zero_std=without) for _ in range(4)))
    assert found["logged"]["no_signal"]["mean"] == pytest.approx(without)
    kinds = {alarm["kind"] for alarm in found["health"]["alarms"]}
    assert ("no signal" in kinds) is (without > 0.9)


# --- lines that a terminal broke


def shown_of(run: ImportedRun) -> list[dict[str, float]]:
    return [step.counters for step in run.steps]


@pytest.mark.parametrize("before", [TASK, ""], ids=["ray", "bare"])
def test_lines_are_joined_whatever_the_terminal_s_width(tmp_path: Path, before: str) -> None:
    """But for a last number that may go on in the next line: it is left out."""
    lines = [verl(n, 50.0 + n / 7, before=before) for n in range(9, 14)]
    right = shown_of(read_run(written(tmp_path, *lines)))
    for width in (*range(75, 141), *range(141, 301, 7)):
        broken = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
        for cut in (broken, [part.rstrip() for part in broken]):
            found = shown_of(read_run(written(tmp_path, *cut)))
            assert len(found) == len(right), width
            for one, other in zip(found, right, strict=True):
                assert other.keys() - one.keys() <= {"perf/throughput"}, width
                assert one.items() <= other.items(), width


# --- a long tail


def tailed(folder: Path, **more: float) -> tuple[Any, dict[str, Any]]:
    """The verdict, and its walls by name, of steps that generate for 400 s of 442 s."""
    found = report(folder, *(verl(n, 400.0, **more) for n in range(1, 7)))["verdict"]
    return found, {wall["name"]: wall for wall in found["walls"]}


def test_a_tail_that_binds_reaches_the_verdict_and_the_fixes(tmp_path: Path) -> None:
    lengths = {"response_length__mean": 900.0, "response_length__max": 16384.0}
    found, walls = tailed(tmp_path, **lengths)
    tail = walls["long tail"]
    assert found["first"] == "long tail"
    assert found["confidence"] == tail["confidence"] == "weak"
    cost = tail["cost"]
    assert 0.25 < cost["low"] < cost["share"] < cost["high"] < 400 / 442
    assert cost["share"] + walls["rollout"]["cost"]["share"] == pytest.approx(400 / 442)
    moves = {fix["move"]: fix for fix in found["fixes"]}
    assert {"partial rollout", "cap the length"} <= moves.keys()
    gain = moves["cap the length"]["goodput_gain"]
    assert gain is not None
    assert gain["low"] < gain["value"] < gain["high"]


def test_lengths_that_are_not_far_apart_leave_generation_whole(tmp_path: Path) -> None:
    """And the longest that a lone sequence has done soon is not why generation takes so long."""
    for name, lengths in (
        ("alike", {"response_length__mean": 6000.0, "response_length__max": 8192.0}),
        ("short", {"response_length__mean": 60.0, "response_length__max": 2048.0}),
    ):
        (tmp_path / name).mkdir()
        found, walls = tailed(tmp_path / name, **lengths)
        assert found["first"] == "rollout"
        assert walls["rollout"]["cost"]["share"] == pytest.approx(400 / 442)
        assert walls["long tail"]["cost"]["share"] < 0.3


def test_times_that_differ_less_than_lengths_are_no_tail(tmp_path: Path) -> None:
    """Samples that wait for a slot all take long: the log then says so by their mean time."""
    more = {"response_length__mean": 900.0, "response_length__max": 16384.0,
            "timing_s__agent_loop__generate_sequences__mean": 300.0}  # fmt: skip
    assert tailed(tmp_path, **more)[0]["first"] == "rollout"


# --- stdin


def piped(*words: str, cwd: Path, given: str) -> Any:
    return untraced(*RLTRACE, *words, cwd=cwd, given=given)


def test_what_comes_in_is_read_where_it_is_asked_for(tmp_path: Path) -> None:
    log = "\n".join(map(verl, (1, 2, 3)))
    done = piped("report", "-", "--json", cwd=tmp_path, given=log)
    assert json.loads(done.stdout)["steps"]["complete"] == 3
    done = piped("report", cwd=tmp_path, given=log)
    assert done.returncode != 0
    assert "rltrace report -" in done.stderr


@pytest.mark.parametrize(
    ("given", "words", "said"),
    [
        ("", (), "stdin is empty"),
        ("no figures\n", (), "stdin is no log"),
        ("no figures\n", ("--as", "verl"), "stdin holds no metrics"),
        (verl(1), ("--job", "2"), "stdin holds 1 job:"),
    ],
)
def test_messages_name_stdin_and_no_file_of_ours(
    tmp_path: Path, given: str, words: tuple[str, ...], said: str
) -> None:
    done = piped("report", "-", *words, cwd=tmp_path, given=given)
    assert done.returncode in (2, 4)
    assert said in done.stderr
    assert tempfile.gettempdir() not in done.stderr.replace(str(tmp_path), "")


def test_a_kept_run_of_stdin_says_so(tmp_path: Path) -> None:
    log = "\n".join(map(verl, (1, 2, 3)))
    done = piped("import", "verl", "-", "--out", "run", "--json", cwd=tmp_path, given=log)
    assert json.loads(done.stdout)["log"] == "stdin"
