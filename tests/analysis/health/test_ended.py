"""How a job ended, and which of its steps and processes did not live to see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.analysis import ALARM, NOTE, summarize
from rltrace.testing.inside.trace import Stage
from rltrace.testing.made import at, process, run_of
from tests.analysis.health.jobs import health_of, kinds, steps


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
    assert found.well == (("crash", ALARM) not in expected)


def test_a_job_that_died_in_its_first_step(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 0, -1), (Stage.ROLLOUT, 0, 3))
    found = health_of(run_of(tmp_path, driver, exit_code=1))
    assert "before its first step was complete" in found.alarms[0].says
    assert not found.well


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "the job failed (exit code 3) in step 0, before its first step was complete"),
        (137, "the job failed (exit code 137, SIGKILL) in step 0, before its first"),
        (-9, "the job failed (signal 9, SIGKILL) in step 0, before its first"),
    ],
)
def test_how_a_job_ended_is_named(tmp_path: Path, code: int, words: str) -> None:
    driver = process("driver", (("step", 0), 0, -1), (Stage.ROLLOUT, 0, 3))
    assert health_of(run_of(tmp_path, driver, exit_code=code)).alarms[0].says.startswith(words)


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
    assert "nobody saw how" in found.alarms[0].says


def failing(*failed: int, of: int) -> list[tuple[Any, ...]]:
    """Steps of 10 s, some of which an exception left."""
    spans: list[tuple[Any, ...]] = []
    for n in range(of):
        end = -1 if n in failed else 10 * n + 10
        spans += [(("step", n), 10 * n, end), (Stage.TRAIN, 10 * n, 10 * n + 5)]
    return spans


@pytest.mark.parametrize(
    ("failed", "severity", "words"),
    [
        ((4,), NOTE, "1 of 20 steps (4) failed (ValueError: 4): no figure"),
        ((4, 11), ALARM, "2 of 20 steps (4, 11) failed (ValueError: 4): no figure"),
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
    lost = {part.reason: part.seconds for part in found.cascade.seconds}
    assert lost["steps that failed"] == pytest.approx(10 * sum(n < 19 for n in failed))


def test_the_exception_that_a_job_failed_of_is_named(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", *failing(5, of=6)), exit_code=1, end_real_ns=at(1000))
    run.problems.append({"what": "step-failed", "target": "5", "detail": "KeyError: 'x'"})
    found = health_of(run)
    assert kinds(found) == [("crash", ALARM)]
    assert "in step 5 (KeyError: 'x'), after 5 complete steps" in found.alarms[0].says


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


def test_restarts(tmp_path: Path) -> None:
    first = process("learner", *steps(*[10] * 6))
    again = process("learner", (("step", 4), 80, 90), (("step", 5), 90, 100), rank=1)
    found = health_of(run_of(tmp_path, first, again))
    assert ("restart", ALARM) in kinds(found)


def test_one_step_and_nothing_at_all_are_no_reason_for_an_alarm(tmp_path: Path) -> None:
    assert health_of(run_of(tmp_path / "one", process("driver", *steps(10)))).alarms == ()
    assert health_of(run_of(tmp_path / "none")).alarms == ()


def test_numbers_that_come_again_are_a_restart_or_a_count_that_began_anew(tmp_path: Path) -> None:
    def numbered(begin_s: int, rank: int, *numbers: int) -> Any:
        windows = [
            (("step", n), begin_s + 10 * i, begin_s + 10 * i + 10) for i, n in enumerate(numbers)
        ]
        return process("driver", *windows, rank=rank)

    restarted = run_of(tmp_path / "a", numbered(0, 0, 0, 1, 2), numbered(40, 1, 1, 2, 3))
    (alarm,) = (one for one in health_of(restarted).alarms if one.kind == "restart")
    assert alarm.says == "2 steps were done again after a restart"
    anew = run_of(tmp_path / "b", numbered(0, 0, 0, 1, 2, 0, 1, 2))
    (alarm,) = (one for one in health_of(anew).alarms if one.kind == "restart")
    assert "the numbers of 3 steps came again in one process" in alarm.says
    assert "number steps through" in alarm.says
