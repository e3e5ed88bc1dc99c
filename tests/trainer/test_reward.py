"""The reward worker: a verdict for every trajectory, and what is said when there is none."""

from __future__ import annotations

import math
import subprocess
import time
from unittest.mock import Mock

import pytest

from rltrace.testing.inside.trainer import END, TrainerConfig, task_of
from rltrace.trainer.reward import RewardWorker
from tests.trainer.local import trajectory

SORT = TrainerConfig(task="sort")


def test_verdicts_come_in_order_with_the_task_as_their_component() -> None:
    task = task_of(SORT)
    (prompt,) = task.prompts(1, "0")
    right, wrong = (
        trajectory(f"0/0/{i}", prompt, answer)
        for i, answer in enumerate((task.answer(prompt), [END]))
    )
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
def test_a_verifier_that_fails_gives_no_verdict_which_takes_as_long_as_one(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, outcome: str
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    worker = RewardWorker(TrainerConfig(task="sort", reward_latency=5.0), 0)
    verdict = Mock(side_effect=[failure, 1.0, ZeroDivisionError])
    monkeypatch.setattr(worker.task, "reward", verdict)
    none, one = worker.score([trajectory("0/0/0"), trajectory("0/0/1")])
    assert (none.outcome, none.trajectory) == (outcome, "0/0/0")
    assert math.isnan(none.value)
    assert (one.outcome, one.value) == ("ok", 1.0)
    with pytest.raises(ZeroDivisionError):  # a fault of the task's own is no verdict
        worker.verify(trajectory())
    assert len(slept) == 2
    assert all(0 < seconds <= 5.0 for seconds in slept)
