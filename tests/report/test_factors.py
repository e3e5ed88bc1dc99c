"""The sections on goodput's factors, freshness, tail, reward and health, in words."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rltrace.report.sections.goodput_section import goodput_section
from rltrace.testing.handmade_runs import at, process, rows, run_of, turns
from rltrace.testing.inside.analysis import ALARM, Alarm, Health, LagBound, summarize
from rltrace.testing.inside.report import to_json
from rltrace.testing.inside.trace import Stage
from rltrace.testing.run_files import Process
from tests.report.summaries import Summaries, words_of


def words(path: Path, driver: Process, **meta: object) -> str:
    """The report on a run of this process."""
    return words_of(summarize(run_of(path, driver, **meta), predict=False))


def test_each_factor_is_shown_and_their_product(summary: Summaries) -> None:
    found = summary("async")
    text = words_of(found)
    assert found.cascade is not None
    for factor in found.cascade.factors:
        assert factor.name in text
    assert re.search(r"Busy in the steps: 4 devices of learner \d+ %", text)
    stated = replace(found, freshness=replace(found.freshness, overall=None))
    assert "Not measured:" in words_of(stated)


def test_what_is_unknown_is_not_zero_and_a_crash_is_said_once(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 0, 10), (Stage.TRAIN, 0, 10))
    text = words(tmp_path, driver, exit_code=1, end_real_ns=at(20))
    assert "goodput the product –" in text
    assert text.count("the job failed") == 1


def test_a_price_for_devices_that_nobody_counted_gives_no_dollars(summary: Summaries) -> None:
    found = summary("colocated")
    assert found.goodput is not None
    uncounted = replace(found.goodput, devices=replace(found.goodput.devices, count=0))
    assert "US$" in " ".join(goodput_section(found).lines)
    assert "US$" not in " ".join(goodput_section(replace(found, goodput=uncounted)).lines)


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ((True, 2, 2, "lag 3 is beyond the limits"), "A lag bound of 2 keeps ESS at least 50 %"),
        ((True, 2, 4, "lag 5 is beyond the limits"), "is at least 2 and at most 4: lag 5"),
        ((True, -1, 4, "lag 5 is beyond the limits"), "is at most 4: lag 5"),
        ((True, -1, -1, "lag 0 is beyond the limits"), "No lag keeps"),
        ((True, 3, None, "the oldest samples"), "Lag 3 keeps"),
        ((False, -1, None, "each lag has too few"), "cannot be told: each lag has too few"),
    ],
)
def test_a_bound_says_how_sure_it_is(
    summary: Summaries, bound: tuple[bool, int, int | None, str], words: str
) -> None:
    found = summary("async")
    told, sure, most, because = bound
    made = LagBound(told, sure, most, 0.5, 0.15, because)
    assert words in words_of(replace(found, freshness=replace(found.freshness, bound=made)))


def test_alarms_stand_at_the_top(summary: Summaries) -> None:
    found = summary("colocated")
    assert found.health.ok
    ill = replace(found, health=Health((Alarm(ALARM, "the reward fell at step 7", kind="reward"),)))
    text = words_of(ill)
    assert text.index("! the reward fell at step 7") < text.index("Stages")
    assert "the reward fell at step 7" in to_json.render(ill)["warnings"]


@pytest.mark.parametrize(
    ("components", "told"), [(["format", "math"], True), (["math"] * 2, False)]
)
def test_rewards_of_components_are_not_the_trainers_reward(
    tmp_path: Path, components: list[str], told: bool
) -> None:
    driver = process("driver", *turns(5.0, 5.0, 5.0))
    rows(driver, "rewards", start_s=[3.0, 13.0], end_s=[4.0, 14.0], trajectory=[1, 1],
         component=components, value=[0.0, 1.0])  # fmt: skip
    text = words(tmp_path, driver)
    assert "Mean reward 0 → 1.00 over 2 steps" in text
    assert ("2 reward components" in text) == told


def test_a_reward_that_is_always_the_same_does_not_change(tmp_path: Path) -> None:
    # A third of 0.1 + 0.2 + 0.3 and of 0.3 + 0.2 + 0.1 are not the same number.
    driver = process("driver", *turns(6, 6, 6, 6))
    starts_s = [10 * n + 6.0 + i for n in range(4) for i in range(3)]
    rows(driver, "rewards", start_s=starts_s, end_s=[start_s + 1 for start_s in starts_s],
         trajectory=list(range(12)), value=[0.1, 0.2, 0.3, 0.3, 0.2, 0.1] * 2)  # fmt: skip
    text = words(tmp_path, driver)
    assert "over 4 steps" in text
    assert "It does not change." in text
