"""Time in stages: unions, nesting, and which stage a moment is charged to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.stages import Breakdown, break_down, stage_rows
from rltrace.testing.inside.analysis import find_steps, read_activity
from rltrace.testing.inside.trace import Stage, word
from rltrace.testing.made import at, process, rows, run_of

ROLLOUT, REWARD, ENV, TRAIN = Stage.ROLLOUT, Stage.REWARD, Stage.ENV, Stage.TRAIN
SYNC, WAIT, OTHER = Stage.SYNC, Stage.WAIT, Stage.OTHER

WORKLOADS = [
    {},
    {"placement": "disaggregated"},
    {"placement": "disaggregated", "train_s": 15.0, "reward_streamed": True},
    {"placement": "one-step-off"},
    {"placement": "one-step-off", "train_s": 7.0, "env_s": 0.2, "nodes": 3},
    {"placement": "async"},
    {"placement": "async", "train_s": 6.0},
    {"placement": "async", "train_s": 4.0, "sync_s": 2.0, "mixed": 0.3},
    {"reward_streamed": True, "spans": 60_000},
    {"placement": "async", "kill_step": 5, "torn": True},
]


def breakdown_of(run: Any) -> Breakdown:
    activity = read_activity(run)
    return break_down(activity, find_steps(run, (activity.first_ns, activity.last_ns)))


@pytest.mark.parametrize("knobs", WORKLOADS, ids=str)
def test_every_second_of_every_step_is_where_the_truth_has_it(
    synthetic: Any, knobs: dict[str, Any]
) -> None:
    run, truth = synthetic(**knobs)
    found = breakdown_of(run)
    assert found.steps_s.tolist() == pytest.approx([step.step_s for step in truth.steps], abs=1e-6)
    for i, step in enumerate(truth.steps):
        tau_s = {word(s): found.tau_s[i, s] for s in Stage if found.tau_s[i, s]}
        exposed_s = {word(s): found.exposed_s[i, s] for s in Stage if found.exposed_s[i, s]}
        assert tau_s == pytest.approx(step.tau_s, abs=1e-6)
        expected = {name: seconds for name, seconds in step.exposed_s.items() if seconds}
        assert exposed_s == pytest.approx(expected, abs=1e-6)
        assert found.unattributed_s[i] == pytest.approx(step.unattributed_s, abs=1e-6)
        assert sum(exposed_s.values()) + found.unattributed_s[i] == pytest.approx(step.step_s)


def one_step(
    path: Path, *processes: tuple[tuple[Any, ...], ...], length_s: float = 10
) -> tuple[dict[str, float], dict[str, float], float]:
    """`(tau, exposed, unattributed)` of a step in which these processes did these things."""
    driver = process("driver", (("step", 0), 0, length_s))
    made = [process("worker", *spans, rank=rank) for rank, spans in enumerate(processes)]
    found = breakdown_of(run_of(path, driver, *made))
    tau_s = {word(s): round(found.tau_s[0, s], 6) for s in Stage if found.tau_s[0, s]}
    exposed_s = {word(s): round(found.exposed_s[0, s], 6) for s in Stage if found.exposed_s[0, s]}
    return tau_s, exposed_s, round(float(found.unattributed_s[0]), 6)


def test_processes_in_one_stage_are_united_and_not_added(tmp_path: Path) -> None:
    tau_s, exposed_s, idle_s = one_step(
        tmp_path, ((ROLLOUT, 0, 4),), ((ROLLOUT, 2, 6),), ((ROLLOUT, 8, 9),)
    )
    assert tau_s == exposed_s == {"rollout": 7}
    assert idle_s == 3


def test_nested_spans_of_a_stage_count_once(tmp_path: Path) -> None:
    tau_s, _, _ = one_step(tmp_path, ((ROLLOUT, 0, 6), (ROLLOUT, 1, 3), (ROLLOUT, 3, 5)))
    assert tau_s == {"rollout": 6}


def test_a_stage_within_another_in_one_lane_takes_its_time(tmp_path: Path) -> None:
    tau_s, exposed_s, _ = one_step(tmp_path, ((ROLLOUT, 0, 8), (REWARD, 5, 7)))
    assert tau_s == exposed_s == {"rollout": 6, "reward": 2}


def test_tools_within_generation_take_its_time_in_tasks_of_one_process_too(tmp_path: Path) -> None:
    """Two agents of one process: while both wait for tools, nothing is generated."""
    tau_s, exposed_s, _ = one_step(
        tmp_path,
        ((ROLLOUT, 0, 8, 1), (ROLLOUT, 0, 8, 2), (Stage.ENV, 1, 7, 1), (Stage.ENV, 2, 7, 2)),
    )
    assert tau_s == {"rollout": 3, "env": 6}
    assert exposed_s == {"rollout": 2, "env": 6}


def test_a_stage_beside_another_in_the_chain_is_hidden(tmp_path: Path) -> None:
    tau_s, exposed_s, _ = one_step(tmp_path, ((ROLLOUT, 0, 8),), ((REWARD, 5, 9),))
    assert tau_s == {"rollout": 8, "reward": 4}
    assert exposed_s == {"rollout": 8, "reward": 1}


def test_the_longer_chain_hides_the_shorter(tmp_path: Path) -> None:
    actors = ((ROLLOUT, 0, 6), (REWARD, 6, 8))
    _, exposed_s, _ = one_step(tmp_path / "a", actors, ((TRAIN, 0, 3),))
    assert exposed_s == {"rollout": 6, "reward": 2}
    # Reward alone shows that the actors' chain is the longer one, though rollout never is alone.
    _, exposed_s, _ = one_step(tmp_path / "b", actors, ((TRAIN, 0, 7),))
    assert exposed_s == {"rollout": 6, "reward": 2}
    _, exposed_s, _ = one_step(tmp_path / "c", actors, ((TRAIN, 0, 9.5),))
    assert exposed_s == {"train": 9.5}


def test_a_learner_that_never_waits_is_charged(tmp_path: Path) -> None:
    # Rollout never stops; alone for 0.1 s between two spans of training it is not what binds.
    _, exposed_s, _ = one_step(tmp_path, ((ROLLOUT, 0, 10),), ((TRAIN, 0, 5), (TRAIN, 5.1, 10)))
    assert exposed_s == {"train": 9.9, "rollout": 0.1}


def test_weights_that_move_beside_generation_are_hidden(tmp_path: Path) -> None:
    _, exposed_s, _ = one_step(tmp_path, ((ROLLOUT, 0, 8),), ((SYNC, 7, 9),))
    assert exposed_s == {"rollout": 8, "sync": 1}


def test_wait_and_other_yield_to_work(tmp_path: Path) -> None:
    tau_s, exposed_s, idle_s = one_step(
        tmp_path, ((OTHER, 0, 6),), ((WAIT, 0, 8),), ((TRAIN, 2, 3),)
    )
    assert tau_s == {"other": 6, "wait": 8, "train": 1}
    assert exposed_s == {"other": 5, "wait": 2, "train": 1}
    assert idle_s == 2


def test_structure_beside_work_is_no_overlap_of_chains(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 0, 10), (OTHER, 0, 6))
    found = breakdown_of(run_of(tmp_path, driver, process("rollout", (ROLLOUT, 0, 8))))
    assert found.overlap_s.tolist() == [0]


def test_a_span_around_everything_explains_nothing(tmp_path: Path) -> None:
    _, exposed_s, _ = one_step(tmp_path, ((OTHER, 0, 10), (ROLLOUT, 1, 4), (TRAIN, 4, 9)))
    assert exposed_s == {"other": 2, "rollout": 3, "train": 5}


def test_spans_are_cut_at_the_edges_of_a_step(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 1, 3), (("step", 1), 3, 7))
    found = breakdown_of(run_of(tmp_path, driver, process("worker", (ROLLOUT, 0, 5))))
    assert found.tau_s[:, ROLLOUT].tolist() == pytest.approx([2, 2])
    assert found.unattributed_s.tolist() == pytest.approx([0, 2])


def test_spans_without_length_change_nothing(tmp_path: Path) -> None:
    tau_s, _, idle_s = one_step(tmp_path, ((TRAIN, 4, 4), (ROLLOUT, 0, 4)))
    assert tau_s == {"rollout": 4}
    assert idle_s == 6


def test_an_open_span_lasts_until_its_process_was_last_heard_of(tmp_path: Path) -> None:
    tau_s, _, _ = one_step(tmp_path, ((ROLLOUT, 0, -1), (ENV, 2, 3, 9), (ENV, 5, 6, 9)))
    assert tau_s == {"rollout": 6, "env": 2}


def test_a_stage_without_spans_is_taken_from_its_table(tmp_path: Path) -> None:
    engine = process("rollout")
    rows(engine, "trajectories", start_s=[0, 1, 2], end_s=[3, 4, -1], trajectory=[1, 2, 3])
    run = run_of(tmp_path, process("driver", (("step", 0), 0, 6), (TRAIN, 4, 6)), engine)
    activity = read_activity(run)
    assert activity.from_tables == (ROLLOUT,)
    steps = find_steps(run, (at(0), at(6)))
    found = break_down(activity, steps)
    assert found.tau_s[0, ROLLOUT] == pytest.approx(4)
    assert [row.name for row in stage_rows(activity, steps, found)] == ["rollout", "train"]


def test_rows_leave_warmup_out(synthetic: Any) -> None:
    run, truth = synthetic(sigma=0.3)
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    assert [w.warmup for w in steps.windows] == [step.warmup for step in truth.steps]
    steady = [step for step in truth.steps if not step.warmup]
    by_name = {row.name: row for row in stage_rows(activity, steps, break_down(activity, steps))}
    for name in ("rollout", "reward", "reference", "logprob", "train", "sync", "switch"):
        row = by_name[name]
        mean = sum(step.tau_s[name] for step in steady) / len(steady)
        assert row.tau_s.n == len(steady)
        assert row.tau_s.mean == pytest.approx(mean, abs=1e-6)
        exposed = sum(step.exposed_s[name] for step in steady)
        assert row.share == pytest.approx(exposed / sum(step.step_s for step in steady))
        assert row.tau_s.low < mean < row.tau_s.high
