"""What a framework logs, held against what ran in the same steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.analysis.own_figures import ComparedFigure
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.hooks import OwnFigure
from rltrace.testing.inside.trace import Stage, SyncRole
from rltrace.testing.made import process, rows, run_of, turns
from rltrace.testing.played import Process

GEN = OwnFigure(("time/gen",), ("rollout",), "a poll ends it")


def logging(*readings: tuple[str, float, float], spans: list[Any] | None = None) -> Process:
    """A driver of steps of 10 s, 6 of them generation, which logs `(name, at_s, value)`."""
    driver = process("driver", *(turns(6, 6, 6) if spans is None else spans))
    if not readings:
        return driver
    names, times, values = map(list, zip(*readings, strict=True))
    return rows(driver, "samples", time_s=times, counter=names, value=values)


def compared(
    path: Path, *processes: Process, figures: tuple[OwnFigure, ...] = (GEN,), **meta: Any
) -> tuple[ComparedFigure, ...]:
    """What the analysis of their run says of the figures."""
    return summarize(run_of(path, *processes, **meta), figures=figures, predict=False).own_figures


def test_medians_of_the_same_steps(tmp_path: Path) -> None:
    driver = logging(("time/gen", 9.9, 9.0), ("time/gen", 20.0, 12.0))  # before, and at, its end
    (found,) = compared(tmp_path, driver)
    assert found == ComparedFigure(
        name="time/gen",
        unit="s",
        stages=("rollout",),
        is_logged=True,
        own=10.5,
        true=6.0,
        steps=2,
        ratio=1.75,
        misleads=True,
        reason="a poll ends it",
    )


def test_the_true_figure_is_a_union_over_processes_and_stages(tmp_path: Path) -> None:
    workers = [
        process("rollout", (Stage.ROLLOUT, 1, 4), (Stage.ROLLOUT, 12, 13)),
        process("rollout", (Stage.ROLLOUT, 2, 5), (Stage.REWARD, 4, 6)),
        process("reward", (Stage.REWARD, 8, 12)),  # over the end of a step
    ]
    both = OwnFigure(("a", "b"), ("rollout", "reward"), "added up")
    steps = [(("step", n), 10 * n, 10 * n + 10) for n in range(2)]
    driver = logging(("a", 10, 3), ("b", 10, 4), ("a", 20, 3), spans=steps)
    (found,) = compared(tmp_path, driver, *workers, figures=(both,))
    # 1 to 6 and 8 to 10 in the first step, 10 to 13 in the second: medians of 7, 3 and of 7, 3
    assert (found.name, found.own, found.true, found.steps) == ("a + b", 5.0, 5.0, 2)
    assert not found.misleads


def test_of_a_step_that_logs_twice_the_last_reading_counts(tmp_path: Path) -> None:
    driver = logging(("time/gen", 9, 1), ("time/gen", 10, 7))
    (found,) = compared(tmp_path, driver)
    assert (found.own, found.steps) == (7.0, 1)


def test_a_mean_is_held_against_the_steps_since_it_was_logged_before(tmp_path: Path) -> None:
    """Two steps of 2 s and 10 s, and two of 4 s and 8 s: every second one logs their mean."""
    ends = [2, 12, 16, 24]
    steps = [
        (("step", n), end - took, end)
        for n, (end, took) in enumerate(zip(ends, (2, 10, 4, 8), strict=True))
    ]
    driver = logging(("time/total", 12, 6.0), ("time/total", 24, 6.0), spans=steps)
    total = OwnFigure(("time/total",), ("step",), "a mean", since_last=True)
    (found,) = compared(tmp_path, driver, figures=(total,))
    assert (found.own, found.true, found.steps) == (6.0, 6.0, 2)


def test_the_step_itself(tmp_path: Path) -> None:
    total = OwnFigure(("time/total",), ("step",), "a sum")
    (found,) = compared(tmp_path, logging(("time/total", 30, 8.0)), figures=(total,))
    assert (found.own, found.true) == (8.0, 10.0)


def test_a_stage_that_nobody_saw_is_unknown_and_misleads_nobody(tmp_path: Path) -> None:
    reward = OwnFigure(("time/reward",), ("reward",), "elsewhere")
    (found,) = compared(tmp_path, logging(("time/reward", 10, 1e-5)), figures=(reward,))
    assert found.own == 1e-5
    assert math.isnan(found.true)
    assert math.isnan(found.ratio)
    assert not found.misleads


def test_what_is_not_logged_is_left_out_unless_it_has_a_name(tmp_path: Path) -> None:
    size = OwnFigure(("sent_mb",), ("sync",), "not told", name="bytes", unit="B", scale=1e6)
    mover = process("learner")
    rows(mover, "syncs", version=[1, 2], start_s=[9, 19], end_s=[9.5, 19.5], bytes=[400, 400],
         role=[int(SyncRole.SOURCE)] * 2)  # fmt: skip
    (found,) = compared(tmp_path / "none", logging(), mover, figures=(GEN, size))
    assert (found.name, found.is_logged, found.true) == ("bytes", False, 400.0)
    assert math.isnan(found.own)
    (found,) = compared(tmp_path / "some", logging(("sent_mb", 10, 2.0)), mover, figures=(size,))
    assert (found.name, found.own, found.true) == ("sent_mb", 2e6, 400.0)


def test_where_nobody_knows_a_figure_there_is_none(tmp_path: Path) -> None:
    size = OwnFigure((), ("sync",), "not told", name="bytes", unit="B")
    assert compared(tmp_path, logging(), figures=(size,)) == ()


def test_those_of_several_metrics_that_are_logged_give_the_name(tmp_path: Path) -> None:
    train = OwnFigure(("time/actor", "time/critic"), ("train",), "the driver's call")
    (found,) = compared(tmp_path, logging(("time/actor", 10, 4.5)), figures=(train,))
    assert (found.name, found.own, found.true) == ("time/actor", 4.5, 4.0)


@pytest.mark.parametrize(
    ("condition", "fits"),
    [
        ({}, True),
        ({"versions": ">=0.9"}, True),
        ({"versions": "<0.9"}, False),
        ({"placements": ("colocated",)}, True),
        ({"placements": ("async",)}, False),
        ({"beside": "lag"}, True),
        ({"beside": "never logged"}, False),
        ({"at_most": 9.0}, True),
        ({"at_most": 8.9}, False),
    ],
)
def test_the_first_that_fits_counts(tmp_path: Path, condition: Any, fits: bool) -> None:
    first = OwnFigure(("time/gen",), ("rollout",), "first", **condition)
    driver = logging(("time/gen", 10, 9.0), ("lag", 10, 0.0))
    meta = {"framework": "trainer", "framework_version": "0.9.1", "settings": {}}
    (found,) = compared(tmp_path, driver, figures=(first, GEN), **meta)
    assert found.reason == ("first" if fits else GEN.reason)


def test_an_imported_run_has_nothing_to_hold_its_figures_against(tmp_path: Path) -> None:
    """Its spans were laid out from them."""
    (found,) = compared(tmp_path, logging(("time/gen", 10, 9.0)), imported={"trainer": "one"})
    assert found.own == 9.0
    assert np.isnan([found.true, found.ratio]).all()


def test_without_a_step_nothing_is_compared(tmp_path: Path) -> None:
    driver = logging(("time/gen", 5, 9.0), spans=[(Stage.ROLLOUT, 0, 6)])
    (found,) = compared(tmp_path, driver)
    assert math.isnan(found.true)


def test_readings_before_the_first_step_are_of_none(tmp_path: Path) -> None:
    steps = [(("step", 1), 10, 20), (Stage.ROLLOUT, 10, 15)]
    driver = logging(("time/gen", 5, 9.0), ("time/gen", 20, 6.0), spans=steps)
    (found,) = compared(tmp_path, driver)
    assert (found.own, found.true, found.steps) == (6.0, 5.0, 1)
