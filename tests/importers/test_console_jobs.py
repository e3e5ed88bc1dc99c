"""Logs of jobs that failed, went on after a crash, evaluated first, or show how far they are by a
progress bar only; broken by a terminal of any width; from stdin."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.importers import ImportedRun, read_run, write_run
from tests.cli.conftest import invoke
from tests.hooks.conftest import untraced

RLTRACE = (sys.executable, "-m", "rltrace")
TASK = "(TaskRunner pid=4711) "


def verl(step: int, gen_s: float = 50.0, before: str = TASK, **more: float) -> str:
    """A step's line as verl 0.7 prints it, of 42 s and what it generates for."""
    named = {name.replace("__", "/"): value for name, value in more.items()}
    figures = {
        "actor/entropy": 0.3141592653589793, "actor/pg_loss": -1.2004e-05,
        "perf/max_memory_allocated_gb": 61.24, "training/global_step": step,
        "training/rollout_probs_diff_mean": 0.0034912109375, "critic/score/mean": 0.41,
        "response_length/mean": 812.5, "response_length/max": 2048.0,
        "response_length/clip_ratio": 0.05, "timing_s/agent_loop/generate_sequences/min": 20.0,
        "timing_s/agent_loop/generate_sequences/max": 0.98 * gen_s,
        "timing_s/agent_loop/slowest/response_length": 2048, "timing_s/gen": gen_s,
        "timing_s/reward": 0.00010192, "timing_s/old_log_prob": 6.017238473892212,
        "timing_s/ref": 5.0, "timing_s/update_weights": 1.0, "timing_s/update_actor": 30.0,
        "timing_s/step": gen_s + 42.0, "perf/throughput": 900.0871, **named,
    }  # fmt: skip
    return f"{before}step:{step} - " + " - ".join(f"{k}:{v}" for k, v in figures.items())


RAISED = f"""{TASK}Traceback (most recent call last):
{TASK}  File "/app/verl/trainer/ppo/ray_trainer.py", line 1100, in fit
{TASK}    raise ValueError("no batch")
{TASK}ValueError: no batch
"""
NO_MEMORY = """Traceback (most recent call last):
  File "/app/verl/trainer/main_ppo.py", line 39, in main
    run_ppo(config)
  File "/opt/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 930, in get_objects
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(OutOfMemoryError): \x1b[36mray::TaskRunner.run()\x1b[39m (pid=4711)
  File "/app/verl/workers/fsdp_workers.py", line 612, in update_actor
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total of 79 GiB
E1130 18:21:07.101000 812 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1)
Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""
OLDER = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n"


def written(folder: Path, *lines: str) -> Path:
    log = folder / "train.log"
    log.write_text("".join(line if line.endswith("\n") else f"{line}\n" for line in lines), "utf-8")
    return log


def report(folder: Path, *lines: str) -> Any:
    """The report on a log of these lines, as JSON."""
    write_run(folder / "run", read_run(written(folder, *lines)), "test")
    return json.loads(invoke("report", folder / "run", "--json").output)


def crashes(found: Any) -> list[str]:
    return [alarm["says"] for alarm in found["health"]["alarms"] if alarm["kind"] == "crash"]


# --- a job that failed


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (RAISED, "ValueError"),
        (NO_MEMORY, "OutOfMemoryError"),
        (OLDER, "RuntimeError: out of memory"),
        (RAISED.replace(TASK, "[rank3]: "), "ValueError"),
        (RAISED[: RAISED.index("    raise")], "cut off"),
    ],
    ids=["ray", "no memory", "older torch", "ranks", "cut"],
)
def test_a_log_that_ends_in_an_exception_is_of_a_job_that_failed(
    tmp_path: Path, end: str, error: str
) -> None:
    (says,) = crashes(report(tmp_path, *map(verl, (1, 2, 3)), end, "wandb: Run history:"))
    assert error in says
    assert "after 3 steps" in says


def test_what_was_raised_before_a_step_did_not_end_the_job(tmp_path: Path) -> None:
    """As of a reward that failed, or a checkpoint that could not be sent."""
    found = report(tmp_path, verl(1), RAISED, OLDER, verl(2), verl(3))
    assert crashes(found) == []
    assert found["steps"]["complete"] == 3


DIED = {
    "Killed": "Killed",
    "./run.sh: line 12: 4711 Killed                  python3 -m verl.trainer.main_ppo": "Killed",
    f"{TASK}terminate called after throwing an instance of 'c10::DistBackendError'": "DistBackend",
    "Fatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):": "fault",
    "Segmentation fault (core dumped)": "fault",
    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T18:21:07 DUE TO TIME LIMIT ***": "LIM",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some processes": "the node's memory",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low": "node's memory",
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing": "ActorDiedError",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB": "the devices' memory",
    RAISED + "Fatal Python error: Aborted": "ValueError",
    "Fatal Python error: Aborted\n" + RAISED: "Aborted",
    "Exception ignored in: <_io.TextIOWrapper name='<stdout>'>\nBrokenPipeError\n"
    + RAISED: "Value",
}
"""What a console ends in -> what its job failed of."""


@pytest.mark.parametrize(("end", "why"), DIED.items())
def test_a_job_that_died_without_an_exception_failed_unless_a_step_came_after(
    tmp_path: Path, end: str, why: str
) -> None:
    found = read_run(written(tmp_path, *map(verl, (1, 2, 3)), end)).log
    assert why in found.end
    assert not found.ended.from_outside
    assert not read_run(written(tmp_path, verl(1), end, verl(2))).log.end


IGNORED = f"""{TASK}Exception ignored in: <function Client.__del__ at 0x7f1c>
{RAISED}
{TASK}During handling of the above exception, another exception occurred:

{RAISED}"""


@pytest.mark.parametrize(
    "end",
    [
        IGNORED,
        IGNORED[: IGNORED.rindex("    raise")],
        "Exception ignored in atexit callback: <function _exit_function>\n" + RAISED,
        "Error in atexit._run_exitfuncs:\n" + RAISED.replace(TASK, ""),
        "--- Logging error ---\n" + RAISED,
        "Exception ignored in: <_io.TextIOWrapper name='<stdout>'>\nBrokenPipeError: [Errno 32]",
    ],
)
def test_an_exception_that_python_ignores_fails_no_job(tmp_path: Path, end: str) -> None:
    assert not read_run(written(tmp_path, verl(1), verl(2), end)).log.end
    after = read_run(written(tmp_path, verl(1), verl(2), end, "wandb: done", RAISED)).log.end
    assert "ValueError" in after


CTRL_C = RAISED.replace("ValueError: no batch", "KeyboardInterrupt")


@pytest.mark.parametrize(
    "end",
    [
        CTRL_C,
        CTRL_C + RAISED,
        RAISED + CTRL_C,
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T18:21:07 ***",
        RAISED.replace("ValueError: no batch", "torch.x.SignalException: Process 7 got signal: 15"),
    ],
)
def test_what_ended_from_outside_is_no_failure(tmp_path: Path, end: str) -> None:
    found = report(tmp_path, verl(1), verl(2), verl(3), end)
    assert len(crashes(found)) == 1
    assert found["health"]["ok"]


def test_a_job_that_failed_before_any_figure_is_said_to_have(tmp_path: Path) -> None:
    bar = f"{TASK}Training Progress:   1%|          | 2/435 [03:04<11:09:28, 92.55s/it]"
    result = invoke("report", written(tmp_path, "loading weights", bar, NO_MEMORY))
    assert (result.exit_code, len(result.output.splitlines())) == (4, 1)
    assert "OutOfMemoryError" in result.output
    assert "after 2 steps" in result.output
    validated = f"{TASK}step:0 - val-core/openai/gsm8k/acc/mean@1:0.31"
    result = invoke("report", written(tmp_path, validated, RAISED))
    assert (result.exit_code, "ValueError" in result.output) == (4, True)


# --- one that crashed and went on


def test_a_step_that_was_done_again_counts_once_by_its_last_attempt(tmp_path: Path) -> None:
    first = [verl(n, 50.0) for n in (1, 2, 3, 4, 5)]
    found = read_run(written(tmp_path, *first, RAISED, *(verl(n, 70.0) for n in (4, 5, 6))))
    assert [(step.number, step.seconds) for step in found.steps] == [
        (1, 92.0), (2, 92.0), (3, 92.0), (4, 112.0), (5, 112.0), (6, 112.0),
    ]  # fmt: skip
    assert any("done again" in note and note.endswith("4, 5") for note in found.log_notes)


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
    entries = [(10, 200), (20, 400), (30, 600), (20, 150), (30, 400), (40, 650)]
    found = of_bars(tmp_path, *entries)
    assert sorted(found) == [*range(1, 41)]
    assert (found[5], found[35]) == (20.0, 25.0)


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
