"""Who is in a stage in the background, and who works there on samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.background import Background
from rltrace.testing.inside.analysis import read_activity
from rltrace.testing.inside.trace import Stage
from rltrace.testing.made import process, rows, run_of
from tests.analysis.walls.walled import STEPS, job, samples

PER_STEP = 2


def verdicts_at(after_s: float, missing: int = 0) -> dict[str, list[Any]]:
    """Verdicts without a duration, so long after the begin of their step; the last ones missing."""
    places = [(n, i) for n in range(STEPS) for i in range(PER_STEP)]
    places = places[: len(places) - missing]
    moments = [10 * n + after_s for n, _ in places]
    return {
        "start_s": moments,
        "end_s": moments,
        "trajectory": [1000 * n + i + 1 for n, i in places],
        "value": [1.0] * len(places),
        "outcome": [0] * len(places),
    }


ALL_THE_TIME = [(Stage.REWARD, 0, 10 * STEPS)]
IN_TURN = [(Stage.REWARD, 10 * n + 3, 10 * n + 7) for n in range(STEPS)]
AFTER_IT = [(Stage.REWARD, 10 * n + 5, 10 * n + 9) for n in range(STEPS)]


@pytest.mark.parametrize(
    ("spans", "judged_s", "missing", "left_out"),
    [
        (ALL_THE_TIME, 7.0, 0, True),
        ([(Stage.REWARD, 0, -1), (Stage.WAIT, 10 * STEPS - 1, 10 * STEPS)], 7.0, 0, True),
        (IN_TURN, 7.0, 0, False),
        (AFTER_IT, 7.0, 0, False),
        (ALL_THE_TIME, 3.0, 0, False),  # verdicts that were put where the samples end
        (ALL_THE_TIME, 13.0, 0, False),  # some sample waits for its verdict at all times
        (ALL_THE_TIME, 7.0, STEPS, False),  # half of the samples say nothing
        ([], 7.0, 0, False),
    ],
    ids=["always", "open", "in-turn", "late", "at-once", "no-rest", "few-verdicts", "nothing"],
)
def test_who_is_in_a_stage_while_no_sample_waits_for_it_is_in_the_background(
    tmp_path: Path, spans: list[Any], judged_s: float, missing: int, left_out: bool
) -> None:
    driver = samples(job(rollout=3, train=7), [3.0] * PER_STEP)
    rows(driver, "rewards", **verdicts_at(judged_s, missing))
    run = run_of(tmp_path, driver, process("verifier", *spans))
    (verifier,) = (p.number for p in run.processes if p.role == "verifier")
    activity = read_activity(run)
    assert activity.background == ((Background(Stage.REWARD, verifier),) if left_out else ())
    assert activity.spans_of_stage.get(Stage.REWARD, 0) == (0 if left_out else len(spans))


def test_who_recorded_a_verdict_is_at_work(tmp_path: Path) -> None:
    driver = samples(job(rollout=3, train=7), [3.0] * PER_STEP)
    verifier = rows(process("verifier", *ALL_THE_TIME), "rewards", **verdicts_at(7.0))
    assert read_activity(run_of(tmp_path, driver, verifier)).background == ()


def test_generation_in_the_background_is_left_out_too(tmp_path: Path) -> None:
    driver = samples(job(rollout=3, train=7), [3.0] * PER_STEP)
    other = process("other", (Stage.ROLLOUT, 0, 10 * STEPS))
    activity = read_activity(run_of(tmp_path, driver, other))
    assert [one.stage for one in activity.background] == [Stage.ROLLOUT]
