"""How a job ended, which of its steps did not live to see it, and steps that hang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rltrace import open_run
from rltrace.testing.handmade_runs import at, process, run_of
from rltrace.testing.inside.analysis import ALARM, NOTE, summarize
from rltrace.testing.inside.trace import Stage
from tests.analysis.health.jobs import health_of, kinds, steps
from tests.analysis.walls.walled import in_steps


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({}, []),
        ({"exit_code": 0}, []),
        ({"exit_code": 1}, [("crash", ALARM)]),
        ({"exit_code": -9}, [("crash", ALARM)]),
        ({"exit_code": 137}, [("crash", ALARM)]),
        ({"exit_code": 130}, [("crash", NOTE)]),
        ({"exit_code": 1, "signals": [2]}, [("crash", NOTE)]),  # Ctrl-C, which it took itself
        ({"exit_code": 1, "signals": [10]}, [("crash", ALARM)]),  # SIGUSR1 asks nobody to end
        ({"exit_code": -15}, [("crash", NOTE)]),
    ],
)
def test_a_job_that_failed_is_no_job_that_somebody_ended(
    tmp_path: Path, meta: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    found = health_of(run_of(tmp_path, process("driver", *steps(*[10] * 6)), **meta))
    assert kinds(found) == expected
    assert found.ok == (("crash", ALARM) not in expected)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "the job failed (exit code 3) in step 0, before its first step was complete"),
        (137, "the job failed (exit code 137, SIGKILL) in step 0"),
        (-9, "the job failed (signal 9, SIGKILL) in step 0"),
    ],
)
def test_how_a_job_ended_is_named(tmp_path: Path, code: int, words: str) -> None:
    driver = process("driver", (("step", 0), 0, -1), (Stage.ROLLOUT, 0, 3))
    found = health_of(run_of(tmp_path, driver, exit_code=code))
    assert found.alarms[0].says.startswith(words)
    assert not found.ok


@pytest.mark.parametrize(
    ("spans", "severity"),
    [(steps(*[10] * 4), NOTE), ([(("step", 0), 0, -1), (Stage.ROLLOUT, 0, 15)], ALARM)],
)
def test_a_job_that_nobody_saw_end(
    tmp_path: Path, spans: list[tuple[Any, ...]], severity: str
) -> None:
    """Its agent wrote down when; `wrap`, which would have said how, was killed too."""
    run = run_of(tmp_path, process("driver", *spans), exit_code=None, end_real_ns=at(41),
                 command_pid=1)  # fmt: skip
    found = health_of(run)
    assert kinds(found) == [("crash", severity)]
    assert "how was not recorded" in found.alarms[0].says


def failing(*failed: int, of: int) -> list[tuple[Any, ...]]:
    """Steps of 10 s, some of which an exception left."""
    spans = in_steps(10, (("step", 0), 0, 10), (Stage.TRAIN, 0, 5), count=of)
    return [(what, begin, -1 if what in [("step", n) for n in failed] else end)
            for what, begin, end in spans]  # fmt: skip


@pytest.mark.parametrize(
    ("failed", "severity", "words"),
    [
        ((4,), NOTE, "1 of 20 steps (4) failed (ValueError: 4)"),
        ((4, 11), ALARM, "2 of 20 steps (4, 11) failed (ValueError: 4)"),
        ((4, 19), ALARM, "2 of 20 steps (4, 19) failed"),  # the last one, too
    ],
)
def test_steps_that_an_exception_left_are_failed_ones(
    tmp_path: Path, failed: tuple[int, ...], severity: str, words: str
) -> None:
    run = run_of(tmp_path, process("driver", *failing(*failed, of=20)), end_real_ns=at(1000))
    run.problems.extend(
        {"what": "step-failed", "target": str(n), "detail": f"ValueError: {n}"} for n in failed
    )
    found = summarize(run, predict=False)
    assert found.coverage.problems == ()
    assert kinds(found.health) == [("failed steps", severity)]
    assert words in found.health.alarms[0].says
    assert found.steps.complete == 20 - len(failed)
    assert found.steps.step_s.mean == pytest.approx(10)
    assert found.cascade is not None
    lost = {part.reason: part.wall_s for part in found.cascade.wall_clock}
    assert lost["steps that failed"] == pytest.approx(10 * len(failed) - 5 * (19 in failed))


def test_the_exception_that_a_job_failed_of_is_named(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", *failing(5, of=6)), exit_code=1, end_real_ns=at(1000))
    run.problems.append({"what": "step-failed", "target": "5", "detail": "KeyError: 'x'"})
    found = health_of(run)
    assert kinds(found) == [("crash", ALARM)]
    assert "(exit code 1, KeyError: 'x') in step 5, after 5 complete steps" in found.alarms[0].says


@pytest.mark.parametrize(
    ("role", "says"), [("rollout", "1 process of role rollout fell"), ("", "1 process fell")]
)
def test_a_process_that_fell_silent_while_the_job_went_on(
    tmp_path: Path, role: str, says: str
) -> None:
    driver = process("driver", *steps(*[10] * 12))
    worker = process(role, (Stage.ROLLOUT, 0, 5), (Stage.ROLLOUT, 20, -1))
    waits = process("reward", (Stage.REWARD, 0, 5), (Stage.WAIT, 5, -1))
    found = health_of(run_of(tmp_path, driver, worker, waits))
    assert kinds(found) == [("lost process", ALARM)]
    assert found.alarms[0].says.startswith(says)


@pytest.mark.parametrize(
    ("code", "ends_s", "signal", "told"),
    [
        (0, 5, 9, []),
        (0, 5, 11, [("failed process", NOTE)]),  # nobody ends a child so
        (0, -1, 9, [("failed process", NOTE)]),  # it was at work
        (1, 5, 9, [("crash", ALARM), ("failed process", NOTE)]),
    ],
)
def test_what_a_job_kills_at_its_end_has_not_failed(
    tmp_path: Path, code: int, ends_s: float, signal: int, told: list[tuple[str, str]]
) -> None:
    worker = process("rollout", *((Stage.ROLLOUT, 10 * n, 10 * n + 5) for n in range(5)),
                     (Stage.ROLLOUT, 50, 50 + ends_s if ends_s > 0 else -1))  # fmt: skip
    run = run_of(tmp_path, process("driver", *steps(*[10] * 6)), worker, exit_code=code)
    driver, child = run.processes
    (run.path / "ends").mkdir(exist_ok=True)
    line = {"pid": child.pid, "signal": signal, "asked": False, "monotonic_ns": 2**62}
    (run.path / "ends" / f"{driver.who}.jsonl").write_text(json.dumps(line))
    assert kinds(health_of(run)) == told


def test_one_step_and_nothing_at_all_are_no_reason_for_an_alarm(tmp_path: Path) -> None:
    assert health_of(run_of(tmp_path / "one", process("driver", *steps(10)))).alarms == ()
    assert health_of(run_of(tmp_path / "none")).alarms == ()


@pytest.mark.parametrize(
    ("again", "says"),
    [
        ([(0, 0, 1, 2), (40, 1, 2, 3)], "2 steps were done again after a restart"),
        ([(0, 0, 1, 2, 1, 2, 3)], "the numbers of 2 steps came again in one process"),
    ],
    ids=["a restart", "a count that began anew"],
)
def test_numbers_that_come_again_are_a_restart_or_a_count_that_began_anew(
    tmp_path: Path, again: list[tuple[int, ...]], says: str
) -> None:
    made = [
        process("driver", *((("step", n), begin + 10 * i, begin + 10 * i + 10)
                            for i, n in enumerate(numbers)))
        for begin, *numbers in again
    ]  # fmt: skip
    found = health_of(run_of(tmp_path, *made))
    assert ("restart", ALARM) in kinds(found)
    (alarm,) = (one for one in found.alarms if one.kind == "restart")
    assert says in alarm.says


def test_a_step_that_never_ends_is_a_hang_by_the_measure_of_the_usual_ones(tmp_path: Path) -> None:
    driver = process("driver", *steps(*[10] * 6), (("step", 6), 60, -1), (Stage.WAIT, 60, -1))
    hung = health_of(run_of(tmp_path, driver, end_real_ns=at(160)))
    assert kinds(hung) == [("hang", ALARM)]
    assert health_of(run_of(tmp_path / "on", driver, end_real_ns=at(75))).ok
    few = process("driver", *steps(30, 10), (("step", 2), 40, -1))  # they tell it by the longest
    found = health_of(run_of(tmp_path / "few", few, end_real_ns=at(131)))
    assert kinds(found) == [("hang", ALARM)]
    assert health_of(run_of(tmp_path / "few on", few, end_real_ns=at(129))).ok


SIGNALLED: dict[str, Any] = {"exit_code": 130, "signals": [2]}


@pytest.mark.parametrize(
    ("meta", "spans"),
    [
        (SIGNALLED, [(Stage.REWARD, 60, 185)]),  # Ctrl-C has ended it
        ({"exit_code": 124}, [(Stage.REWARD, 60, 185)]),  # `timeout -s INT`
        ({"exit_code": 137}, [(Stage.REWARD, 60, -1)]),
        ({"exit_code": 143}, [(Stage.REWARD, 60, -1)]),
        ({"exit_code": 137}, []),
    ],
)
def test_a_hang_is_one_however_it_was_ended(
    tmp_path: Path, meta: dict[str, Any], spans: list[tuple[Any, ...]]
) -> None:
    driver = process("driver", *steps(*[10] * 6), (("step", 6), 60, -1), *spans)
    found = health_of(run_of(tmp_path, driver, end_real_ns=at(187), **meta)).alarms
    (hang,) = (alarm for alarm in found if alarm.kind == "hang")
    assert hang.severity == ALARM
    assert "step 6 had run for 13 times a usual step" in hang.says
    assert ("of it in “reward”" in hang.says) == bool(spans)


def test_what_ctrl_c_ended_after_seconds_hung(tmp_path: Path) -> None:
    spans = (("step", 8), 2, -1), (Stage.TRAIN, 2, 11)
    driver = process("driver", *steps(*[0.25] * 8), *spans)
    found = health_of(run_of(tmp_path, driver, end_real_ns=at(11.2), **SIGNALLED))
    assert ("hang", ALARM) in kinds(found)


@pytest.mark.parametrize(
    ("meta", "problem", "took_s"),
    [
        ({"exit_code": -9}, {}, 8),
        ({"exit_code": 130, "signalled_real_ns": at(63)}, {}, 3),
        ({"exit_code": 1, "command_pid": 7}, {"what": "process-failed", "target": "7"}, 2),
        ({"exit_code": 1}, {"what": "step-failed", "target": "6"}, 2),
        ({"exit_code": -9}, {"what": "process-failed", "target": "8"}, 8),  # another process
    ],
)
def test_what_passes_after_the_job_was_over_is_no_time_in_its_step(
    tmp_path: Path, meta: dict[str, Any], problem: dict[str, Any], took_s: float
) -> None:
    driver = process("driver", *steps(*[10] * 6), (("step", 6), 60, -1), (Stage.TRAIN, 60, 61))
    run = run_of(tmp_path, driver, end_real_ns=at(68), **meta)
    if problem:
        line = json.dumps({"real_ns": at(62), "detail": "", **problem})
        (run.path / "problems" / "one.jsonl").write_text(line)
    (going,) = summarize(open_run(run.path), predict=False).steps.in_progress
    assert going == (6, pytest.approx(took_s))


@pytest.mark.parametrize(("code", "asked"), [(137, []), (130, [2]), (0, [])])
@pytest.mark.parametrize(("open_s", "stuck"), [(0.8, False), (4, False), (40, True)])
def test_a_job_of_short_steps_hangs_by_seconds_too(
    tmp_path: Path, open_s: float, stuck: bool, code: int, asked: list[int]
) -> None:
    spans = (("step", 8), 0.4, -1), (Stage.REWARD, 0.4, -1)
    driver = process("driver", *steps(*[0.05] * 8), *spans)
    ended = {"end_real_ns": at(0.4 + open_s), "exit_code": code, "signals": asked}
    found = health_of(run_of(tmp_path, driver, **ended))
    assert (("hang", ALARM) in kinds(found)) == stuck


@pytest.mark.parametrize(
    ("worked_s", "until_s", "stuck"),
    [
        (5, 25, False),  # nothing for 20 s may be anything
        (5, 40, True),
        (20, 79, False),
        (20, 81, True),
    ],
)
def test_a_first_step_in_which_nothing_happens_any_more_is_stuck(
    tmp_path: Path, worked_s: float, until_s: float, stuck: bool
) -> None:
    spans = [(("step", 0), 0, -1), (Stage.DATA, 0, worked_s), (Stage.ROLLOUT, worked_s, -1)]
    run = run_of(tmp_path, process("driver", *spans), end_real_ns=at(until_s))
    found = summarize(run, predict=False)
    assert kinds(found.health) == ([("hang", ALARM)] if stuck else [])
    if stuck:
        says = f"had not ended after {until_s} s, and nothing began or ended"
        assert says in found.health.alarms[0].says
        assert "stuck in “rollout”" in found.health.alarms[0].says
    assert "step 0 was begun and has no end" in found.verdict.because
