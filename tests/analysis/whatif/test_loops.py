"""Loops of a user's own: what their stages' spans tell, held against the same loop changed."""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.testing.handmade_runs import process, rows, run_of
from rltrace.testing.inside.analysis import baseline, predict, workload_of
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import Stage

STEPS, SAMPLES, SLOTS, TRAIN_S = 12, 24, 8, 0.6


def served(ready_s: list[float], lasts_s: list[float], at_once: int) -> list[tuple[float, float]]:
    """When each begins and ends, first come first served, by so many at once."""
    free, found = [0.0] * at_once, []
    for ready, lasts in zip(ready_s, lasts_s, strict=True):
        begin = max(ready, free[0])
        heapq.heapreplace(free, begin + lasts)
        found.append((begin, begin + lasts))
    return found


def judged(path: Path, judges: int) -> tuple[Run, float]:
    """A loop in which each sample is generated, then judged, in spans of their own; and the mean
    seconds of its steps."""
    draw, spans, now = np.random.default_rng(3), [], 0.0
    for step in range(STEPS):
        lengths = (0.3 * draw.lognormal(0, 0.6, SAMPLES)).tolist()
        verdicts = (0.3 * draw.lognormal(0, 0.9, SAMPLES)).tolist()
        made = sorted(served([0.0] * SAMPLES, lengths, SLOTS), key=lambda one: one[1])
        scored = served([end for _, end in made], verdicts, judges)
        last = max(end for _, end in scored)
        for place, (own, verdict) in enumerate(zip(made, scored, strict=True)):
            spans += [(Stage.ROLLOUT, now + own[0], now + own[1], place)]
            spans += [(Stage.REWARD, now + verdict[0], now + verdict[1], place)]
        end = now + last + TRAIN_S
        spans += [(Stage.TRAIN, now + last, end, SAMPLES), (("step", step), now, end, SAMPLES)]
        now = end
    return run_of(path, process("driver", *spans)), now / STEPS


def test_judges_are_replayed_with_the_durations_of_their_own_spans(tmp_path: Path) -> None:
    run, now_s = judged(tmp_path, judges=3)
    _, then_s = judged(tmp_path / "then", judges=12)
    base = baseline(workload_of(run))
    assert base.replayed_s == pytest.approx(now_s, rel=0.03)
    found = predict(workload_of(run), [("reward_parallel", "x4")])
    assert found.gain.low <= now_s / then_s <= found.gain.high
    assert found.gain.value == pytest.approx(now_s / then_s, rel=0.06)


def with_resets(path: Path, reset_s: float) -> Run:
    """A loop that makes its environments anew before it generates; no sample tells that time."""
    spans: list[tuple[Any, ...]] = []
    starts = []
    step_s = reset_s + 5 + 4
    for step in range(STEPS):
        now = step * step_s
        starts.append(now + reset_s)
        spans += [(("step", step), now, now + step_s), (Stage.ENV, now, now + reset_s)]
        spans += [(Stage.ROLLOUT, now + reset_s, now + reset_s + 5)]
        spans += [(Stage.TRAIN, now + reset_s + 5, now + step_s)]
    places = [(step, k) for step in range(STEPS) for k in range(8)]
    driver = process("driver", *spans)
    rows(
        driver, "trajectories",
        trajectory=[f"{n}/{k}" for n, k in places], group=[f"{n}/{k // 4}" for n, k in places],
        start_s=[starts[n] for n, _ in places],
        end_s=[starts[n] + 4.3 + 0.1 * k for n, k in places],
        response_tokens=[43 + k for _, k in places],
    )  # fmt: skip
    return run_of(path, driver)


def test_environment_time_outside_of_samples_is_in_the_replay(tmp_path: Path) -> None:
    source = workload_of(with_resets(tmp_path, 8.0))
    assert baseline(source).replayed_s == pytest.approx(17, rel=0.02)
    found = predict(source, [("env_latency", "0.375")])
    assert found.step_s.low <= 12 <= found.step_s.high
    assert found.step_s.value == pytest.approx(12, rel=0.03)
