"""Generation around a batch whose samples are in lanes of their own, as with `asyncio.gather`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.analysis import (
    ENV_REWARD,
    ROLLOUT,
    break_down,
    find_steps,
    read_activity,
)
from rltrace.testing.inside.trace import Finish, Run, Stage
from rltrace.testing.made import process, rows, run_of
from rltrace.testing.played import Process
from tests.analysis.walls.walled import STEPS, summary_of, walls_of

SAMPLES = 4


def gathered(tools: list[tuple[float, float]], said: float = 1) -> Process:
    """Steps of 10 s. A span of generation of 8 s in one lane is around samples in lanes of their
    own, whose tools run from so many seconds of the step on; then 2 s of training. `said` over what
    the tools took is what the samples say of them (0: nothing)."""
    spans: list[tuple[Any, ...]] = []
    for n in range(STEPS):
        at = 10 * n
        spans += [(("step", n), at, at + 10), (Stage.ROLLOUT, at, at + 8)]
        spans += [(Stage.TRAIN, at + 8, at + 10)]
        spans += [(Stage.ENV, at + a, at + b, 10 + i) for i, (a, b) in enumerate(tools)]
    places = [(n, i) for n in range(STEPS) for i in range(SAMPLES)]
    took = [b - a for a, b in tools] + [0.0] * SAMPLES
    return rows(
        process("driver", *spans),
        "trajectories",
        start_s=[10 * n for n, _ in places],
        end_s=[10 * n + 8 for n, _ in places],
        trajectory=[100 * n + i + 1 for n, i in places],
        group=[n + 1 for n, _ in places],
        response_tokens=[100 for _ in places],
        env_ns=[round(took[i] * 1e9 * said) or -1 for _, i in places],
        finish=[int(Finish.STOP)] * len(places),
    )


def seconds(run: Run) -> dict[str, float]:
    """Exposed seconds of the first step."""
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    exposed_s = break_down(activity, steps).exposed_s[0]
    return {stage.name.lower(): float(exposed_s[stage]) for stage in Stage if exposed_s[stage]}


def test_while_all_samples_are_in_their_tools_nothing_is_generated(tmp_path: Path) -> None:
    found = summary_of(tmp_path, gathered([(1.0, 7.0)] * SAMPLES))
    walls = walls_of(found)
    assert found.verdict.first is not None
    assert found.verdict.first.name == ENV_REWARD
    assert walls[ENV_REWARD].cost.share == pytest.approx(0.6)
    assert walls[ROLLOUT].cost.share == pytest.approx(0.2, abs=0.01)


def test_while_one_sample_is_decoded_the_step_waits_for_generation(tmp_path: Path) -> None:
    """The tools of all four run from 3 to 6 s, and one is decoded for the rest of the time."""
    tools = [(1.0, 7.0), (1.0, 7.0), (1.0, 7.0), (3.0, 6.0)]
    run = run_of(tmp_path, gathered(tools))
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    tau_s = break_down(activity, steps).tau_s[0]
    assert tau_s[Stage.ROLLOUT] == pytest.approx(5.0)
    assert tau_s[Stage.ENV] == pytest.approx(6.0)


def test_tools_of_some_samples_hide_no_generation(tmp_path: Path) -> None:
    run = run_of(tmp_path, gathered([(1.0, 7.0)] * (SAMPLES - 1)))
    assert seconds(run) == pytest.approx({"rollout": 8.0, "train": 2.0})


def test_tools_that_samples_say_nothing_of_are_theirs(tmp_path: Path) -> None:
    run = run_of(tmp_path, gathered([(1.0, 7.0)] * SAMPLES, said=0))
    assert seconds(run) == pytest.approx({"rollout": 2.0, "env": 6.0, "train": 2.0})


def test_more_tools_than_samples_speak_of_are_of_others(tmp_path: Path) -> None:
    """Environments that are made ready for later samples run beside the decoding of these."""
    made = gathered([(1.0, 1.5)] * SAMPLES)
    for n in range(STEPS):
        for lane in range(20, 20 + SAMPLES):
            made.spans += process("", (Stage.ENV, 10 * n + 2, 10 * n + 7, lane)).spans
    assert seconds(run_of(tmp_path, made)) == pytest.approx({"rollout": 8.0, "train": 2.0})
