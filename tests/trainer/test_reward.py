"""The reward worker: a verdict for every trajectory, and what is said when there is none."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Sequence

import numpy as np
import pytest

from rltrace.testing.inside.trainer import END, Request, TrainerConfig, Trajectory, task_of
from rltrace.trainer.reward import RewardWorker

SORT = TrainerConfig(task="sort")


def answered(prompt: Sequence[int], response: Sequence[int], id: str = "0/0/0") -> Trajectory:
    return Trajectory(
        request=Request(id, "0/0", 0, tuple(prompt)),
        tokens=np.array(response, dtype=np.int64),
        generated=np.ones(len(response), dtype=np.bool_),
        log_probs=np.zeros(len(response), dtype=np.float32),
        first_version=0,
        last_version=0,
        finish="stop",
        turns=1,
        env_seconds=0.0,
        preemptions=0,
    )


def test_verdicts_come_in_order_with_the_task_as_their_component() -> None:
    task = task_of(SORT)
    (prompt,) = task.prompts(1, "0")
    right, wrong = answered(prompt, task.answer(prompt)), answered(prompt, [END], "0/0/1")
    verdicts = RewardWorker(SORT, 0).score([right, wrong])
    assert [v.trajectory for v in verdicts] == ["0/0/0", "0/0/1"]
    assert verdicts[0].value == 1.0 > verdicts[1].value
    assert {(v.component, v.outcome) for v in verdicts} == {("sort", "ok")}
    assert RewardWorker(SORT, 0).score([]) == []


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (subprocess.TimeoutExpired("sh", 10), "timeout"),
        (FileNotFoundError("sh"), "error"),
        (PermissionError("sh"), "error"),
        (subprocess.CalledProcessError(1, "sh"), "error"),
    ],
)
def test_a_verifier_that_fails_gives_no_verdict_and_the_next_sample_is_judged(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, outcome: str
) -> None:
    worker = RewardWorker(SORT, 0)
    (prompt,) = worker.task.prompts(1, "0")
    sample = answered(prompt, worker.task.answer(prompt))

    def fails(*_: object) -> float:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(worker.task, "reward", fails)
        (none,) = worker.score([sample])
    assert (none.outcome, none.trajectory) == (outcome, sample.id)
    assert math.isnan(none.value)
    assert worker.score([sample])[0].value == 1.0


def test_a_verdict_takes_at_least_the_latency_and_no_less_when_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    worker = RewardWorker(TrainerConfig(task="sort", reward_latency=5.0), 0)
    worker.score([answered((2, 1), [2, END])] * 2)
    monkeypatch.setattr(worker.task, "reward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # a fault of the task's own is no verdict
        worker.verify(answered((2, 1), [2, END]))
    assert len(slept) == 2
    assert all(0 < seconds <= 5.0 for seconds in slept)


def test_the_program_that_judges_expressions_is_run_for_every_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = TrainerConfig(task="expression", symbols=5)
    worker = RewardWorker(config, 0)
    (prompt,) = worker.task.prompts(1, "0")
    samples = [answered(prompt, worker.task.answer(prompt))] * 3
    commands: list[object] = []
    really = subprocess.run

    def counted(command: object, **options: object) -> object:
        commands.append(command)
        return really(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", counted)
    assert [v.value for v in worker.score(samples)] == [1.0] * 3
    assert len(commands) == 3
    monkeypatch.setattr(worker.task, "shell", "/nowhere/sh")
    assert [v.outcome for v in worker.score(samples)] == ["error"] * 3
