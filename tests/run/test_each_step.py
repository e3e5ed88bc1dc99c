"""Telling of the steps of a job: the job comes first."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rltrace.run.each_step import EachStep
from tests.report.everything import STEPS, everything


def test_each_step_is_told_once(tmp_path: Path) -> None:
    told: list[int] = []
    said: list[str] = []
    steps = EachStep(
        everything(tmp_path / "run"), [lambda step: told.append(step.step)], said.append
    )
    steps.start()
    steps.finish()
    assert told == sorted(set(told))
    assert len(told) == STEPS
    assert said == []


def test_what_goes_wrong_is_said_and_ends_the_telling(tmp_path: Path) -> None:
    said: list[str] = []

    def fails(step: object) -> None:
        raise OSError("no space left")

    steps = EachStep(everything(tmp_path / "run"), [fails], said.append)
    steps.start()
    steps.finish()
    assert said == ["no more is said of steps: OSError: no space left"]


def test_no_thread_to_spare_costs_the_telling_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    said: list[str] = []
    steps = EachStep(tmp_path, [], said.append)
    steps.start()
    steps.finish()
    assert said == ["nothing is said of steps: can't start new thread"]
