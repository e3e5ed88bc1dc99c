"""Which steps there are, and which of them are warm-up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rltrace.analysis.steps import Steps, find_steps
from rltrace.testing.inside.trace import Stage
from rltrace.testing.made import at, process, rows, run_of
from rltrace.testing.played import Process


def steps_of(path: Path, *processes: list[tuple[int, float, float]]) -> Steps:
    """Steps `(number, start_s, end_s)` as recorded by each process."""
    made = [
        process("learner", *((("step", n), a, b) for n, a, b in steps), rank=rank)
        for rank, steps in enumerate(processes)
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


def test_the_ranks_of_a_learner_count_as_one(tmp_path: Path) -> None:
    late = [(n, a + 0.3, b + 0.3) for n, a, b in in_a_row(2, 2, 2)]
    steps = steps_of(tmp_path, in_a_row(2, 2, 2), late)
    assert [(w.step, w.process) for w in steps.windows] == [(0, 0), (1, 0), (2, 0)]
    assert steps.repeated == 0


def test_a_process_that_went_on_after_a_restart_adds_its_steps(tmp_path: Path) -> None:
    again = [(n + 2, a + 10, b + 10) for n, a, b in in_a_row(2, 2, 2, 2)]
    steps = steps_of(tmp_path, in_a_row(2, 2, 2), again)
    assert [w.step for w in steps.windows] == [0, 1, 2, 2, 3, 4, 5]
    assert steps.repeated == 1
    assert steps.between_s == pytest.approx(4)


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


def test_steps_that_overlap_end_where_the_next_begins(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, [(0, 0, 5), (1, 3, 8), (2, 6, 11)])
    found = [(w.step, w.start_ns, w.end_ns) for w in steps.windows]
    assert found == [(0, at(0), at(3)), (1, at(3), at(6)), (2, at(6), at(11))]


def test_a_step_that_two_hooks_recorded_counts_once(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, [(0, 0, 5), (0, 1, 4), (1, 5, 9), (1, 5, 8)])
    assert [(w.step, w.end_ns) for w in steps.windows] == [(0, at(5)), (1, at(9))]


def test_a_step_that_did_not_end_is_in_progress(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, [(0, 0, 2), (1, 2, -1)])
    assert [w.step for w in steps.windows] == [0]
    assert steps.in_progress == ((1, at(2)),)


def test_a_step_that_was_cut_short_and_done_again_is_not_in_progress(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, [(0, 0, 2), (1, 2, -1), (1, 3, 5), (2, 5, -1)])
    assert [w.step for w in steps.windows] == [0, 1]
    assert steps.in_progress == ((2, at(5)),)


def test_a_step_after_which_its_process_began_another_has_failed(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, [(0, 0, 2), (1, 2, -1), (2, 4, 6), (3, 6, -1), (3, 7, 9)])
    assert [w.step for w in steps.windows] == [0, 2, 3]
    assert steps.failed == ((1, at(2), at(4)), (3, at(6), at(7)))
    assert steps.in_progress == ()


def test_in_a_loop_that_begins_steps_before_others_end_an_open_one_is_in_progress(
    tmp_path: Path,
) -> None:
    steps = steps_of(tmp_path, [(0, 0, 5), (1, 3, 8), (2, 6, -1), (3, 9, -1)])
    assert steps.failed == ()
    assert steps.in_progress == ((2, at(6)), (3, at(9)))


def test_without_steps_the_run_is_one_window(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", (Stage.TRAIN, 1, 4)))
    steps = find_steps(run, (at(1), at(4)))
    assert steps.whole_run
    assert [(w.start_ns, w.end_ns) for w in steps.windows] == [(at(1), at(4))]


def test_an_empty_run_has_no_window(tmp_path: Path) -> None:
    assert find_steps(run_of(tmp_path), (0, 0)).windows == ()


def taking_turns(path: Path, *lengths: float, every: int = 4, ahead_s: float = 0.0) -> Steps:
    """Steps of these lengths of which every so many generates for half its time, and begins
    `ahead_s` before the step does."""
    spans: list[tuple[object, ...]] = []
    for n, start, end in in_a_row(*lengths):
        spans.append((("step", n), start, end))
        if n % every == 0:
            spans.append((Stage.ROLLOUT, start - ahead_s, (start + end) / 2))
    return find_steps(run_of(path, process("learner", *spans)), (at(0), at(500)))


def warm(steps: Steps) -> list[int]:
    return [window.step for window in steps.windows if window.warmup]


def test_a_first_step_that_generates_is_no_warmup_where_the_others_do_not(tmp_path: Path) -> None:
    """It is as long as the other that generates, and far longer than those that only train."""
    steps = taking_turns(tmp_path, 8.7, *[0.7] * 7, 10.5, *[0.7] * 7, every=8)
    assert [w.step for w in steps.windows if w.generates] == [0, 8]
    assert warm(steps) == []


def test_a_first_step_that_generates_is_warmup_where_others_that_do_are_shorter(
    tmp_path: Path,
) -> None:
    assert warm(taking_turns(tmp_path, 50, *[1] * 3, *[10, 1, 1, 1] * 5)) == [0]
    few = taking_turns(tmp_path / "few", 50, *[1] * 3, 10, *[1] * 3)
    assert warm(few) == []  # one other says nothing of what is usual


def test_first_steps_that_only_train_are_held_against_their_kind(tmp_path: Path) -> None:
    """Generation comes to the first step late, by a buffer that was filled before."""
    spans: list[tuple[object, ...]] = []
    for n, start, end in in_a_row(8, *[1] * 5, *[10, 1, 1] * 4):
        spans.append((("step", n), start, end))
        if n >= 6 and n % 3 == 0:
            spans.append((Stage.ROLLOUT, start, start + 5))
    assert warm(find_steps(run_of(tmp_path, process("learner", *spans)), (at(0), at(99)))) == [0]


def test_a_generation_that_begins_a_moment_before_its_step_is_not_of_the_one_before(
    tmp_path: Path,
) -> None:
    steps = taking_turns(tmp_path, *[10, 1, 1, 1] * 3, ahead_s=0.02)
    assert [w.step for w in steps.windows if w.generates] == [0, 4, 8]


def test_a_generation_without_spans_is_told_by_its_samples(tmp_path: Path) -> None:
    learner = process("learner", *((("step", n), a, b) for n, a, b in in_a_row(6, 1, 6, 1)))
    samples = rows(learner, "trajectories", trajectory=[0, 1], start_s=[0, 7], end_s=[5, 12])
    steps = find_steps(run_of(tmp_path, samples), (at(0), at(20)))
    assert [w.generates for w in steps.windows] == [True, False, True, False]


@pytest.mark.parametrize(
    ("lengths", "figures_of"),
    [
        ([10, 1, 1, 1] * 3, range(12)),
        ([10, 1, 1, 1] * 2 + [10, 1], range(8)),  # the last turn is not over
        ([50, 1, 1, 1] + [10, 1, 1, 1] * 3, range(4, 16)),  # the first step is warm-up
    ],
)
def test_where_a_generation_serves_several_steps_figures_are_of_whole_ones(
    tmp_path: Path, lengths: list[float], figures_of: range
) -> None:
    steps = taking_turns(tmp_path, *lengths)
    assert steps.per_generation == 4
    assert steps.steady == tuple(figures_of)


def test_without_a_whole_generation_what_there_is_counts(tmp_path: Path) -> None:
    steps = replace(taking_turns(tmp_path, *[10, 1, 1, 1] * 2), stalled=(4,))
    assert steps.whole_generations == tuple(range(4))
    steps = replace(steps, stalled=(2, 6))
    assert steps.whole_generations == ()
    assert steps.steady == steps.unbroken == (3, 4, 5)


def with_rollouts(path: Path, count: int, *rollouts: tuple[float, float]) -> Steps:
    """So many steps of 10 s, and when something was generated."""
    made = [(("step", n), 10 * n, 10 * n + 10) for n in range(count)]
    generated = [(Stage.ROLLOUT, start, end) for start, end in rollouts]
    engine = process("rollout", *generated, rank=1)
    return find_steps(run_of(path, process("learner", *made), engine), (at(0), at(10 * count)))


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
    steps = with_rollouts(tmp_path, 11, *rollouts)
    assert steps.per_generation == 0
    assert steps.steady == tuple(range(11))
