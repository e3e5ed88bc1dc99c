"""A job that states the weights of its rewards: what differs in their sum is a signal, for all."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.analysis import (
    SPARSE_REWARD,
    LiveState,
    RunMeters,
    group_signal,
    summarize,
    trained_in,
)
from rltrace.testing.inside.trace import Fate, Outcome, Run, compact, delete_segments, open_run
from rltrace.testing.made import process, rows, run_of, stating, turns
from tests.analysis.asking import ask

Given = dict[str, list[float | None]]
"""What each component gave the samples of a group; None: it did not apply."""

BOTH = {"a": 1.0, "b": 0.5}


def one_group(path: Path, given: Given, *stated: object) -> Run:
    """A group whose samples have 7 tokens each and were trained on. A sample that no component
    applied to has an error of each. Each process states weights."""
    made = process("driver", *turns(5.0))
    n = len(next(iter(given.values())))
    ids = list(range(n))
    rows(made, "trajectories", start_s=[1.0] * n, end_s=[2.0] * n, trajectory=ids,
         group=[5] * n, response_tokens=[7] * n)  # fmt: skip
    judged = [
        (i, name, math.nan if value is None else value)
        for name, values in given.items()
        for i, value in enumerate(values)
        if value is not None or all(of[i] is None for of in given.values())
    ]
    failed = [math.isnan(value) for _, _, value in judged]
    rows(made, "rewards", start_s=[3.0] * len(judged), end_s=[3.5] * len(judged),
         trajectory=[i for i, _, _ in judged], component=[name for _, name, _ in judged],
         value=[value for _, _, value in judged],
         outcome=[Outcome.ERROR if bad else Outcome.OK for bad in failed])  # fmt: skip
    rows(made, "uses", time_s=[6.0] * n, trajectory=ids, tokens=[7] * n, step=[0] * n,
         fate=[Fate.TRAINED] * n)  # fmt: skip
    run = run_of(path, made, *(process("rollout") for _ in stated[1:]))
    return stating(run, *({"reward_weights": weights} for weights in stated))


def carries(run: Run) -> bool | None:
    """Whether the group carries a signal, which all that look at it say; None: unknown."""
    found = group_signal(run)
    told = None if found is None else bool(found.with_signal)
    tokens = run.sql("SELECT sum(tokens) FROM uses").fetchall()[0][0]
    useful = 0 if told is False else tokens
    trained = trained_in(run, 0, 1 << 62, math.inf)
    assert (trained.useful_tokens, trained.useful_known_tokens) == (useful, tokens if told else 0)
    window = LiveState(run.path).snapshot().window
    assert window is not None
    assert window.trained == trained
    assert RunMeters(run.path).samples.useful_tokens == useful
    reason = {True: "useful", False: "trained, no signal in its group"}
    (by_reason,) = ask(run, "useful_tokens_by_reason")
    assert by_reason["reason"] == reason.get(told, "trained, signal not known")
    by_step = [row["with_signal"] for row in ask(run, "signal_by_step")]
    assert by_step == ([] if told is None else [int(told)])
    assert len(ask(run, "groups_without_signal")) == (told is False)
    return told


@pytest.mark.parametrize(
    ("given", "weights", "expected"),
    [
        pytest.param({"a": [1, 0], "b": [1, 1]}, {"a": 0, "b": 1}, False, id="weight 0"),
        pytest.param({"a": [1, 0], "b": [1, 1]}, {"a": -1, "b": 0}, True, id="weight below 0"),
        pytest.param({"a": [1, 0]}, {"a": 0}, False, id="nothing else"),
        pytest.param({"a": [1, None], "b": [1, 1]}, BOTH, True, id="none is not 1"),
        pytest.param({"a": [-1, None], "b": [1, 1]}, BOTH, True, id="none is not -1"),
        pytest.param({"a": [0, None], "b": [1, 1]}, BOTH, False, id="none is 0"),
        pytest.param({"a": [1, None], "b": [None, 1]}, BOTH, True, id="none of the same"),
        pytest.param({"a": [1, None], "b": [1, 1]}, {"a": 0, "b": 1}, False, id="none of 0"),
        pytest.param({"a": [1, 1, None], "b": [2, 2, None]}, BOTH, False, id="nobody judged it"),
        pytest.param({"a": [1, 1, None], "b": [2, 2, 2]}, {"b": 1}, False, id="not stated"),
        pytest.param({"a": [1, 1, None], "b": [2, 2, 2]}, {"c": 0}, False, id="of another"),
    ],
)
def test_what_is_stated_of_components_makes_the_signal(
    tmp_path: Path, given: Given, weights: dict[str, float], expected: bool
) -> None:
    run = one_group(tmp_path, given, weights)
    assert carries(run) is expected
    compact(run)
    delete_segments(run.path)
    assert carries(open_run(run.path)) is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"a": [1, 0], "b": [1, 1]}, True),
        ({"a": [1, None], "b": [1, 1]}, False),
        ({"a": [1, None], "b": [None, 1]}, None),
    ],
)
@pytest.mark.parametrize(
    "stated",
    [
        (),
        (None,),
        (["a", 0.0],),
        ({"a": "0", "b": 1},),
        ({"a": False, "b": 1},),
        ({"a": None, "b": 1},),
        ({"a": math.nan, "b": 1},),
        ({"a": math.inf, "b": 1},),
        ({"a": 10**400, "b": 1},),
        ({"a": 0, "b": 1}, {"a": 1, "b": 0}),
        ({"\ud800": 1.0},),
    ],
    ids=lambda stated: repr(stated)[:20],
)
def test_without_weights_that_can_be_told_components_are_compared_as_they_are(
    tmp_path: Path, given: Given, expected: bool | None, stated: tuple[Any, ...]
) -> None:
    assert carries(one_group(tmp_path, given, *stated)) is expected


def test_processes_that_agree_are_as_one(tmp_path: Path) -> None:
    run = one_group(tmp_path, {"a": [1, 0], "b": [1, 1]}, {"a": 0.0}, {"a": 0, "b": 2.0})
    assert carries(run) is False
    found = run.sql("FROM reward_weights ORDER BY component").fetchall()
    assert found == [("a", 0.0), ("b", 2.0)]


def test_a_reward_of_no_weight_solves_no_prompt(tmp_path: Path) -> None:
    run = one_group(tmp_path, {"format": [1, 1], "math": [0, 0]}, {"format": 0, "math": 1})
    wall = next(w for w in summarize(run, predict=False).verdict.walls if w.name == SPARSE_REWARD)
    shares = {figure.name: figure.value for figure in wall.evidence}
    assert shares["groups in which all fail"] == 1
    assert [row["best_reward"] for row in ask(run, "prompts_never_solved")] == [0]
