"""Which steps there are, and which of them are warm-up; and what a framework logs, held against
what ran in the same steps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.figures.framework_figures import ComparedFigure
from rltrace.analysis.timeline.steps import Steps, find_steps
from rltrace.testing import Process, at, process, run_of, turns
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.trace import OwnFigure, Stage, SyncRole
from tests.analysis.made import rows


def steps_of(path: Path, *processes: list[tuple[int, float, float]], ranks: int = 9) -> Steps:
    """Steps `(number, start_s, end_s)` as recorded by each process, of so many ranks."""
    made = [
        process("learner", *((("step", n), a, b) for n, a, b in steps), rank=place % ranks)
        for place, steps in enumerate(processes)
    ]
    return find_steps(run_of(path, *made), (at(0), at(100)))


def in_a_row(*lengths: float) -> list[tuple[int, float, float]]:
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    return [
        (i, end - length, end) for i, (end, length) in enumerate(zip(ends, lengths, strict=True))
    ]


@pytest.mark.parametrize(
    ("lengths", "warmup"),
    [
        ((9, 5, 2, 2.1, 1.9, 2, 2.05, 1.95, 2, 2.1), 2),
        ((2, 2.1, 1.9, 2, 2.05, 1.95, 2, 2.1), 0),
        ((2.1, 2, 2, 2, 2, 2, 2, 2), 0),  # no deviation at all, but hardly slower
        ((5, 2, 2, 2), 0),  # too few to tell
        ((9, 2, 2, 2), 1),  # few, but far beyond all the others
        ((9, 2), 0),
        ((9, 8, 7, 6, 5, 4, 3, 2, 2, 2), 0),  # a trend, not a warm-up
        ((2, 2, 9, 2, 2, 2, 2, 2, 2), 0),  # a slow step later on is no warm-up
        ((1, 2, 2, 2, 2, 2, 2, 2), 0),  # nor is a fast first one
    ],
)
def test_slow_leading_steps_are_warmup(
    tmp_path: Path, lengths: tuple[float, ...], warmup: int
) -> None:
    steps = steps_of(tmp_path, in_a_row(*lengths))
    assert [w.warmup for w in steps.windows] == [i < warmup for i in range(len(lengths))]
    assert steps.steady == tuple(range(warmup, len(lengths)))


LATE = [(n, a + 0.3, b + 0.3) for n, a, b in in_a_row(2, 2, 2)]
MUCH_LATER = [(n, a + 5, b + 5) for n, a, b in in_a_row(2, 2, 2)]
AGAIN = [(n + 2, a + 10, b + 10) for n, a, b in in_a_row(2, 2, 2, 2)]


@pytest.mark.parametrize(
    ("recorded", "windows", "between", "in_progress", "failed"),
    [
        pytest.param([in_a_row(2, 2, 2), LATE], in_a_row(2, 2, 2), (0, 0), [], [],
                     id="the ranks of a learner count as one"),
        pytest.param([in_a_row(2, 2, 2), MUCH_LATER], in_a_row(2, 2, 2), (0, 0), [], [],
                     id="also one that began seconds later"),
        pytest.param([in_a_row(2, 2, 2), MUCH_LATER, [*MUCH_LATER, (3, 11, 13)]],
                     [*MUCH_LATER, (3, 11, 13)], (0, 0), [], [], id="as the one with the most"),
        pytest.param([in_a_row(2, 2, 2), AGAIN[1:]], [*in_a_row(2, 2, 2), *AGAIN[1:]], (0, 6), [],
                     [], id="another rank adds what no rank has done"),
        pytest.param([[(0, 0, 5), (1, 3, 8), (2, 6, 11)]], [(0, 0, 3), (1, 3, 6), (2, 6, 11)],
                     (0, 0), [], [], id="steps that overlap end where the next begins"),
        pytest.param([[(0, 0, 5), (0, 1, 4), (1, 5, 9), (1, 5, 8)]], [(0, 0, 5), (1, 5, 9)],
                     (0, 0), [], [], id="a step that two hooks recorded counts once"),
        pytest.param([[(0, 0, 9), (1, 1, 3), (2, 3, 5), (3, 5, 8)]],
                     [(1, 1, 3), (2, 3, 5), (3, 5, 8)], (0, 0), [], [],
                     id="a step that holds others is their loop"),
        pytest.param([[(0, 0, 2), (1, 2, -1)]], [(0, 0, 2)], (0, 0), [(1, 2)], [],
                     id="a step that did not end is in progress"),
        pytest.param([[(0, 0, 2), (1, 2, -1), (1, 3, 5), (2, 5, -1)]], [(0, 0, 2), (1, 3, 5)],
                     (0, 1), [(2, 5)], [(1, 2, 3)], id="unless it was done again"),
        pytest.param([[(0, 0, 2), (1, 2, -1), (2, 4, 6), (3, 6, -1), (3, 7, 9)]],
                     [(0, 0, 2), (2, 4, 6), (3, 7, 9)], (0, 3), [], [(1, 2, 4), (3, 6, 7)],
                     id="a step after which its process began another has failed"),
        pytest.param([[(0, 0, 5), (1, 3, 8), (2, 6, -1), (3, 9, -1)]], [(0, 0, 3), (1, 3, 8)],
                     (0, 0), [(2, 6), (3, 9)], [], id="not where steps begin before others end"),
    ],
)  # fmt: skip
def test_what_is_recorded_of_steps_is_put_together(
    tmp_path: Path, recorded: Any, windows: Any, between: Any, in_progress: Any, failed: Any
) -> None:
    steps = steps_of(tmp_path, *recorded)
    found = [(w.step, w.start_ns, w.end_ns) for w in steps.windows]
    assert found == [(n, at(start), at(end)) for n, start, end in windows]
    assert (steps.repeated, steps.between_s) == (between[0], pytest.approx(between[1]))
    assert steps.in_progress == tuple((n, at(start)) for n, start in in_progress)
    assert steps.failed == tuple((n, at(start), at(end)) for n, start, end in failed)


def test_a_process_of_the_same_rank_that_goes_on_after_a_restart_adds_its_steps(
    tmp_path: Path,
) -> None:
    first = in_a_row(2, 2, 2)
    for recorded in ([first, AGAIN], [first, LATE, AGAIN, AGAIN]):
        ranks = len(recorded) // 2
        steps = steps_of(tmp_path / str(ranks), *recorded, ranks=ranks)
        assert [w.step for w in steps.windows] == [0, 1, 2, 2, 3, 4, 5]
        assert (steps.repeated, steps.between_s) == (1, pytest.approx(4))


def test_the_views_of_steps_go_on_after_a_restart_as_the_report_does(tmp_path: Path) -> None:
    def learner(rank: int, *steps: tuple[int, float, float]) -> Process:
        spans = [(("step", n), a, b) for n, a, b in steps]
        trains = [(Stage.TRAIN, a, b) for _, a, b in steps if b >= 0]
        return process("learner", *spans, *trains, rank=rank)

    before = [(0, 0, 2), (1, 2, 4), (2, 4, -1)]  # killed in step 2
    after = [(n, 10 + 2 * n, 12 + 2 * n) for n in range(1, 6)]
    after.append((6, 22, -1))
    late = [(n, a + 0.3, b if b < 0 else b + 0.3) for n, a, b in before]
    run = run_of(tmp_path, learner(0, *after), learner(0, *before), learner(1, *late))
    steps = run.sql("SELECT step, end_ns FROM steps").fetchall()
    assert steps == [(0, at(2)), (1, at(4)), *((n, at(b)) for n, _, b in after[:-1]), (6, None)]
    windows = [(w.step, w.end_ns) for w in find_steps(run, (at(0), at(100))).windows]
    assert windows == [step for step in steps if step[1] is not None]
    stages = run.sql("SELECT step, seconds FROM stages ORDER BY step").fetchall()
    assert [step for step, _ in stages] == [0, 1, 2, 3, 4, 5]
    # Step 1 was done twice; the other rank is at work for the rest of step 0 in step 1.
    assert dict(stages)[1] == pytest.approx(4)


def test_without_steps_the_run_is_one_window(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", (Stage.TRAIN, 1, 4)))
    steps = find_steps(run, (at(1), at(4)))
    assert steps.whole_run
    assert [(w.start_ns, w.end_ns) for w in steps.windows] == [(at(1), at(4))]
    assert find_steps(run_of(tmp_path / "empty"), (0, 0)).windows == ()


def taking_turns(
    path: Path, lengths: list[float], generating: range | None = None, ahead_s: float = 0.0
) -> Steps:
    """Steps of these lengths of which some, every fourth, generate for half their time, and begin
    to `ahead_s` before the step does."""
    spans: list[tuple[object, ...]] = []
    for n, start, end in in_a_row(*lengths):
        spans.append((("step", n), start, end))
        if n in (generating or range(0, len(lengths), 4)):
            spans.append((Stage.ROLLOUT, start - ahead_s, (start + end) / 2))
    return find_steps(run_of(path, process("learner", *spans)), (at(0), at(500)))


@pytest.mark.parametrize(
    ("lengths", "generating", "ahead_s", "warm", "figures_of"),
    [
        # The first is as long as the other that generates, and far longer than those that train.
        ([8.7, *[0.7] * 7, 10.5, *[0.7] * 7], range(0, 16, 8), 0.0, [], range(16)),
        ([50, *[1] * 3, *[10, 1, 1, 1] * 5], range(0, 24, 4), 0.0, [0], range(4, 24)),
        # One other says nothing of what is usual.
        ([50, *[1] * 3, 10, *[1] * 3], range(0, 8, 4), 0.0, [], range(8)),
        # A generation that begins a moment before its step is not of the one before.
        ([10, 1, 1, 1] * 3, range(0, 12, 4), 0.02, [], range(12)),
        # Generation comes to the first step late, by a buffer that was filled before.
        ([8, *[1] * 5, *[10, 1, 1] * 4], range(6, 18, 3), 0.0, [0], range(1, 18)),
        ([10, 1, 1, 1] * 3, range(0, 12, 4), 0.0, [], range(12)),
        ([10, 1, 1, 1] * 2 + [10, 1], range(0, 10, 4), 0.0, [], range(8)),  # a turn is not over
    ],
)
def test_steps_that_generate_for_several_are_held_against_their_kind(
    tmp_path: Path, lengths: Any, generating: range, ahead_s: float, warm: Any, figures_of: range
) -> None:
    steps = taking_turns(tmp_path, lengths, generating, ahead_s)
    assert [w.step for w in steps.windows if w.generates] == list(generating)
    assert [w.step for w in steps.windows if w.warmup] == warm
    assert steps.per_generation == (generating.step if 0 in generating else 0)
    assert steps.steady == tuple(figures_of)


def test_without_a_whole_generation_what_there_is_counts(tmp_path: Path) -> None:
    steps = replace(taking_turns(tmp_path, [10, 1, 1, 1] * 2), stalled=(4,))
    assert steps.whole_generations == tuple(range(4))
    steps = replace(steps, stalled=(2, 6))
    assert steps.whole_generations == ()
    assert steps.steady == steps.unbroken == (3, 4, 5)
    # A generation without spans is told by its samples.
    learner = process("learner", *((("step", n), a, b) for n, a, b in in_a_row(6, 1, 6, 1)))
    rows(learner, "trajectories", trajectory=[0, 1], start_s=[0, 7], end_s=[5, 12])
    steps = find_steps(run_of(tmp_path / "samples", learner), (at(0), at(20)))
    assert [w.generates for w in steps.windows] == [True, False, True, False]


@pytest.mark.parametrize(
    "rollouts",
    [
        [(0, 105)],
        [(20 * n + 6, 20 * n + 14) for n in range(5)],
        [(10 * n, 10 * n + 5) for n in (0, 1, 4, 7, 8, 9)],
        [(10 * n, 10 * n + 5) for n in (0, 2)],
        [(10 * n, 10 * n + 5) for n in range(10)],
        [],
    ],
    ids=["all the time", "beside training", "now and then", "first", "in each step", "never"],
)
def test_where_steps_do_not_take_turns_all_of_them_count(
    tmp_path: Path, rollouts: list[tuple[float, float]]
) -> None:
    learner = process("learner", *((("step", n), 10 * n, 10 * n + 10) for n in range(11)))
    engine = process("rollout", *((Stage.ROLLOUT, start, end) for start, end in rollouts), rank=1)
    steps = find_steps(run_of(tmp_path, learner, engine), (at(0), at(110)))
    assert steps.per_generation == 0
    assert steps.steady == tuple(range(11))


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
        name="time/gen", unit="s", stages=("rollout",), is_logged=True, own_value=10.5,
        traced_value=6.0, steps=2, ratio=1.75, misleads=True, reason="a poll ends it",
    )  # fmt: skip


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
    assert (found.name, found.own_value, found.traced_value, found.steps) == ("a + b", 5.0, 5.0, 2)
    assert not found.misleads


MEAN = [(("step", 0), 0, 2), (("step", 1), 2, 12), (("step", 2), 12, 16), (("step", 3), 16, 24)]
"""Two steps of 2 s and 10 s, and two of 4 s and 8 s: every second one logs their mean."""
TOTAL = OwnFigure(("time/total",), ("step",), "a sum")
REWARD = OwnFigure(("time/reward",), ("reward",), "elsewhere")
TRAIN = OwnFigure(("time/actor", "time/critic"), ("train",), "the driver's call")


@pytest.mark.parametrize(
    ("readings", "figure", "spans", "own_and_true", "steps"),
    [
        ([("time/gen", 9, 1), ("time/gen", 10, 7)], GEN, None, (7.0, 6.0), 1),
        ([("time/total", 12, 6.0), ("time/total", 24, 6.0)], replace(TOTAL, since_last=True), MEAN,
         (6.0, 6.0), 2),
        ([("time/total", 30, 8.0)], TOTAL, None, (8.0, 10.0), 1),
        ([("time/reward", 10, 1e-5)], REWARD, None, (1e-5, math.nan), 1),
        ([("time/actor", 10, 4.5)], TRAIN, None, (4.5, 4.0), 1),
        ([("time/gen", 5, 9.0)], GEN, [(Stage.ROLLOUT, 0, 6)], (9.0, math.nan), 1),
        ([("time/gen", 5, 9.0), ("time/gen", 20, 6.0)], GEN,
         [(("step", 1), 10, 20), (Stage.ROLLOUT, 10, 15)], (6.0, 5.0), 1),
    ],
    ids=["of a step that logs twice the last reading counts",
         "a mean is held against the steps since it was logged before", "the step itself",
         "a stage that nobody saw is unknown and misleads nobody",
         "those of several metrics that are logged give the name",
         "without a step nothing is compared", "readings before the first step are of none"],
)  # fmt: skip
def test_what_is_logged_is_held_against_what_ran(
    tmp_path: Path, readings: Any, figure: OwnFigure, spans: Any, own_and_true: Any, steps: int
) -> None:
    (found,) = compared(tmp_path, logging(*readings, spans=spans), figures=(figure,))
    assert found.name == readings[0][0]
    assert (found.own_value, found.traced_value) == pytest.approx(own_and_true, nan_ok=True)
    if math.isnan(found.traced_value):
        assert math.isnan(found.ratio)
        assert not found.misleads
    else:
        assert found.steps == steps


def test_what_is_not_logged_is_left_out_unless_it_has_a_name(tmp_path: Path) -> None:
    size = OwnFigure(("sent_mb",), ("sync",), "not told", name="bytes", unit="B", scale=1e6)
    mover = process("learner")
    rows(mover, "syncs", version=[1, 2], start_s=[9, 19], end_s=[9.5, 19.5], bytes=[400, 400],
         role=int(SyncRole.SOURCE))  # fmt: skip
    (found,) = compared(tmp_path / "none", logging(), mover, figures=(GEN, size))
    assert (found.name, found.is_logged, found.traced_value) == ("bytes", False, 400.0)
    assert math.isnan(found.own_value)
    unlogged = OwnFigure((), ("sync",), "not told", name="bytes", unit="B")
    assert compared(tmp_path / "nobody", logging(), figures=(unlogged,)) == ()
    (found,) = compared(tmp_path / "some", logging(("sent_mb", 10, 2.0)), mover, figures=(size,))
    assert (found.name, found.own_value, found.traced_value) == ("sent_mb", 2e6, 400.0)


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
    told = (found.own_value, found.traced_value, found.ratio)
    assert told == pytest.approx((9.0, math.nan, math.nan), nan_ok=True)
