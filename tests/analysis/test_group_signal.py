"""Groups whose rewards differ teach something, and the others were generated for nothing: what
differs in the sum of rewards, of which a job may state the weights, is the signal."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.timeline.path_events import follow
from rltrace.analysis.trajectories.reward_signal import GroupSignal, group_signal
from rltrace.testing import Process, process, run_of, stating, turns
from rltrace.testing.inside.analysis import CANNOT_TELL, SPARSE_REWARD, summarize
from rltrace.testing.inside.trace import Fate, Outcome
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import sql_views as tables
from tests.analysis.asking import ask, told
from tests.analysis.made import compacted, not_none, rows, steps_of, trained_of

NAN = math.nan
SLOW = pytest.mark.slow


def judged(made: Process, group: list[int], value: list[float], **uses: Any) -> Process:
    """Samples of 7 tokens in these groups, with these rewards; `uses` of them in step 0."""
    ids = list(range(len(group)))
    rows(made, "trajectories", start_s=1.0, end_s=2.0, trajectory=ids, group=group,
         response_tokens=7)  # fmt: skip
    rows(made, "rewards", start_s=3.0, end_s=3.0, trajectory=ids, value=value, outcome=0)
    if uses:
        rows(made, "uses", trajectory=ids, tokens=7, step=0, fate=Fate.TRAINED, **uses)
    return made


def signal_of(path: Path, group: list[int], value: list[float]) -> GroupSignal:
    return not_none(group_signal(run_of(path, judged(process("rollout"), group, value))))


def test_a_group_needs_two_verdicts_and_a_difference(tmp_path: Path) -> None:
    value = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, NAN, 0.5]
    found = signal_of(tmp_path, [1, 1, 2, 2, 3, 3, 4, 5, -1], value)
    assert (found.groups, found.with_signal) == (3, 1)
    assert found.share == pytest.approx(1 / 3)
    assert 0 < found.low < found.share < found.high < 1
    assert found.reward_without_signal == pytest.approx(0.5)
    assert group_signal(run_of(tmp_path / "empty")) is None


def test_the_interval_holds_what_few_groups_can_tell(tmp_path: Path) -> None:
    found = signal_of(tmp_path, [i // 2 for i in range(10)], [float(i % 2) for i in range(10)])
    # Wilson's interval of 5 out of 5.
    assert (found.share, found.high) == (1.0, pytest.approx(1.0))
    assert found.low == pytest.approx(5 / (5 + 1.959964**2))
    assert math.isnan(found.reward_without_signal)


def test_a_group_with_a_reward_that_is_no_number_carries_no_signal(tmp_path: Path) -> None:
    driver = judged(process("driver", *turns(5.0)), [1, 1, 2, 2, 3, 3],
                    [NAN, NAN, NAN, 1.0, 0.0, 1.0], time_s=6.0)  # fmt: skip
    run = run_of(tmp_path, driver)
    for is_compacted in (False, True):
        one = compacted(run) if is_compacted else run
        found, trained = not_none(group_signal(one)), trained_of(one)
        assert (found.groups, found.with_signal) == (3, 1)
        assert (trained.tokens, trained.useful_tokens, trained.useful_known_tokens) == (42, 14, 14)


ESTIMATORS = [
    ("rloo", 14, 14), (None, 14, 14), ("REINFORCE++", 42, 42), ("of_my_own", 14, 42),
]  # fmt: skip
"""What is useful for sure, and perhaps, of six samples of 7 tokens in three groups."""


@pytest.mark.parametrize(("estimator", "known", "useful"), ESTIMATORS)
def test_equal_rewards_are_no_signal_only_where_advantages_are_relative_to_the_group(
    tmp_path: Path, estimator: str | None, known: int, useful: int
) -> None:
    group, value = [1, 1, 2, 2, 3, 3], [0.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    made = judged(process("driver", *turns(5.0)), group, value, time_s=6.0)
    run = stating(run_of(tmp_path, made), {"advantage": estimator} if estimator else {})
    trained, signal = trained_of(run), group_signal(run)
    assert (trained.useful_known_tokens, trained.useful_tokens) == (known, useful)
    assert trained.zero_advantage_tokens == (28 if useful == 14 else 0)
    assert trained.unknown_advantage_tokens == useful - known
    assert (None if signal is None else signal.with_signal) == (1 if useful == 14 else None)
    wall = next(one for one in summarize(run).verdict.walls if one.name == SPARSE_REWARD)
    assert (wall.confidence == CANNOT_TELL) == (useful == 42)


def test_each_estimator_is_known_by_its_baseline(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", *turns(5.0)))
    of_group = {"grpo": True, "dr_grpo": True, "group_norm": True, "rloo": True, "opo": True,
                "reinforce_plus_plus_baseline": True, "gae": False, "remax": False,
                "reinforce": False, "flash_reinforce": False, "of_my_own": None}  # fmt: skip
    found = {
        name: stating(run, {"advantage": name})
        .sql("SELECT of_group FROM advantage_baseline")
        .fetchall()
        for name in of_group
    }
    assert found == {name: [(known,)] for name, known in of_group.items()}


def test_a_critics_advantages_need_no_group(tmp_path: Path) -> None:
    made = judged(process("driver", *turns(5.0)), [1, 1, -1], [1.0, 1.0, 1.0], time_s=6.0)
    assert trained_of(run_of(tmp_path, made)).useful_tokens == 7
    critic = process("critic", ("value", 5.0, 6.0))
    trained = trained_of(run_of(tmp_path / "critic", made, critic))
    assert trained.useful_tokens == trained.useful_known_tokens == 21


@pytest.mark.parametrize("sign", [1, -1])
def test_a_group_is_that_of_whichever_row_of_a_sample_has_one(tmp_path: Path, sign: int) -> None:
    """Ids are hashes, and half of them negative: below the -1 of a row that knows none."""
    driver, engine = process("driver", *turns(5.0)), process("engine")
    judged(driver, [sign * (5 + i // 2) for i in range(4)], [0.0, 1.0, 1.0, 1.0], time_s=6.0)
    rows(engine, "trajectories", start_s=1.5, end_s=2.0, trajectory=[0, 1, 2, 3], group=-1,
         response_tokens=7)  # fmt: skip
    run = run_of(tmp_path, driver, engine)
    found = not_none(group_signal(run))
    assert (found.groups, found.with_signal, found.samples) == (2, 1, 4)
    trained, steps = trained_of(run), steps_of(run)
    assert trained.zero_advantage_tokens == trained.useful_tokens == 2 * 7
    assert set(follow(run, steps).samples.group.tolist()) == {sign * 5, sign * 6}


BEGINS = [10.0 * step + 1 for step in range(6) for _ in range(4)]
"""When the samples of six steps begin."""
ALIKE = [float(step % 2) for step in range(6) for _ in range(4)]
"""Rewards that are equal in each step, and differ between the steps."""


def by_prompt(path: Path, used_after_s: float, steps: int = 6, **samples: list[float]) -> Run:
    """Steps of 10 s, two groups of two samples in each, and ids that are the prompts': they come
    again in every step. Samples take 2 s, and are used so long after they began; -1: unknown."""
    begins_s, value = samples.get("begins_s", BEGINS), samples.get("value", ALIKE)
    made = process("driver", *turns(*[5.0] * steps))
    ids, group = list(range(len(begins_s))), [1, 1, 2, 2] * (len(begins_s) // 4)
    judged_s = [s + 3 for s in begins_s]
    rows(made, "trajectories", start_s=begins_s, end_s=[s + 2 for s in begins_s], trajectory=ids,
         group=group, response_tokens=7)  # fmt: skip
    rows(made, "rewards", start_s=judged_s, end_s=judged_s, trajectory=ids, value=value)
    if used_after_s != -1:
        used_s = [max(begins_s[i // 4 * 4 : i // 4 * 4 + 4]) + used_after_s for i in ids]
        rows(made, "uses", time_s=used_s, trajectory=ids, tokens=7, fate=Fate.TRAINED,
             step=[int(s // 10) for s in used_s])  # fmt: skip
    return run_of(path, made)


def test_groups_named_by_their_prompt_are_told_apart_by_step(tmp_path: Path) -> None:
    run = by_prompt(tmp_path, used_after_s=6)
    found = not_none(group_signal(run))
    assert found.known
    assert (found.groups, found.with_signal, found.unclear) == (12, 0, 0)
    trained = trained_of(run)
    assert (trained.zero_advantage_tokens, trained.useful_tokens) == (24 * 7, 0)
    assert told(run, "signal_by_step", "with_signal") == [(0,)] * 6
    # So are those that are generated while the step before trains.
    found = not_none(group_signal(by_prompt(tmp_path / "ahead", used_after_s=14, steps=8)))
    assert (found.groups, found.with_signal) == (12, 0)


def test_a_group_that_is_begun_in_several_steps_and_used_in_one_stays_whole(
    tmp_path: Path,
) -> None:
    # Partial rollout: half of each group is begun, and has ended, a step before the other half.
    value = [0.0, 1.0, 1.0, 1.0]
    run = by_prompt(tmp_path, 7.0, 2, begins_s=[1.0, 11.0, 1.0, 11.0], value=value)
    found = not_none(group_signal(run))
    assert (found.groups, found.with_signal) == (2, 1)
    assert run.sql("FROM regrouped").fetchall() == []


def test_a_question_that_was_interrupted_can_be_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = by_prompt(tmp_path, used_after_s=6)

    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tables, "regrouped", pressed)
        with pytest.raises(KeyboardInterrupt):
            run.sql("FROM grouped_trajectories")
    assert len(run.sql("FROM grouped_trajectories").fetchall()) == 24


def test_where_nobody_says_how_samples_were_used_it_cannot_be_told(tmp_path: Path) -> None:
    run = by_prompt(tmp_path, used_after_s=-1)
    found = not_none(group_signal(run))
    assert not found.known
    assert (found.groups, found.unclear, found.samples) == (0, 24, 24)
    wall = next(w for w in summarize(run, predict=False).verdict.walls if w.name == SPARSE_REWARD)
    assert wall.confidence == CANNOT_TELL
    assert "come again in later steps" in wall.because


Given = dict[str, list[float | None]]
"""What each component gave the samples of a group; None: it did not apply."""

BOTH = {"a": 1.0, "b": 0.5}
UNKNOWN = struct.unpack("d", b"\xff" * 8)[0]


def one_group(path: Path, given: Given, *stated: object) -> Run:
    """A group whose samples have 7 tokens each and were trained on. A sample that no component
    applied to has an error of each. Each process states weights."""
    made = process("driver", *turns(5.0))
    n = len(next(iter(given.values())))
    ids = list(range(n))
    rows(made, "trajectories", start_s=1.0, end_s=2.0, trajectory=ids, group=5, response_tokens=7)
    judged = [
        (i, name, math.nan if value is None else value)
        for name, values in given.items()
        for i, value in enumerate(values)
        if value is not None or all(of[i] is None for of in given.values())
    ]
    failed = [math.isnan(value) and value is not UNKNOWN for _, _, value in judged]
    rows(made, "rewards", start_s=3.0, end_s=3.5, trajectory=[i for i, _, _ in judged],
         component=[name for _, name, _ in judged], value=[value for _, _, value in judged],
         outcome=[Outcome.ERROR if bad else Outcome.OK for bad in failed])  # fmt: skip
    rows(made, "uses", time_s=6.0, trajectory=ids, tokens=7, step=0, fate=Fate.TRAINED)
    run = run_of(path, made, *(process("rollout") for _ in stated[1:]))
    return stating(run, *({"reward_weights": weights} for weights in stated))


def carries(run: Run) -> bool | None:
    """Whether the group carries a signal, which all that look at it say; None: unknown."""
    found = group_signal(run)
    told = None if found is None else bool(found.with_signal)
    tokens = run.sql("SELECT sum(tokens) FROM uses").fetchall()[0][0]
    trained = trained_of(run)
    assert trained.useful_tokens == (0 if told is False else tokens)
    assert trained.useful_known_tokens == (tokens if told else 0)
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
        pytest.param(
            {"a": [1, 0], "b": [1, 1]}, {"a": -1, "b": 0}, True, marks=SLOW, id="weight below 0"
        ),
        pytest.param({"a": [1, 0]}, {"a": 0}, False, marks=SLOW, id="nothing else"),
        pytest.param({"a": [1, None], "b": [1, 1]}, BOTH, True, marks=SLOW, id="none is not 1"),
        pytest.param({"a": [-1, None], "b": [1, 1]}, BOTH, True, id="none is not -1"),
        pytest.param({"a": [0, None], "b": [1, 1]}, BOTH, False, marks=SLOW, id="none is 0"),
        pytest.param(
            {"a": [1, None], "b": [None, 1]}, BOTH, True, marks=SLOW, id="none of the same"
        ),
        pytest.param(
            {"a": [1, None], "b": [1, 1]}, {"a": 0, "b": 1}, False, marks=SLOW, id="none of 0"
        ),
        pytest.param({"a": [1, 1, None], "b": [2, 2, None]}, BOTH, False, id="nobody judged it"),
        pytest.param(
            {"a": [1, 1, None], "b": [2, 2, 2]}, {"b": 1}, False, marks=SLOW, id="not stated"
        ),
        pytest.param({"a": [1, 1, None], "b": [2, 2, 2]}, {"c": 0}, False, id="of another"),
    ],
)
def test_what_is_stated_of_components_makes_the_signal(
    tmp_path: Path, given: Given, weights: dict[str, float], expected: bool
) -> None:
    run = one_group(tmp_path, given, weights)
    assert carries(run) is expected
    assert carries(compacted(run)) is expected


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
        *((), ({"a": None, "b": 1},), ({"a": 0, "b": 1}, {"a": 1, "b": 0})),
        *(
            pytest.param(stated, marks=SLOW)
            for stated in (
                (None,),
                (["a", 0.0],),
                ({"a": "0", "b": 1},),
                ({"a": False, "b": 1},),
                ({"a": math.nan, "b": 1},),
                ({"a": math.inf, "b": 1},),
                ({"a": 10**400, "b": 1},),
                ({"\ud800": 1.0},),
            )
        ),
    ],
    ids=lambda stated: repr(stated)[:20],
)
def test_without_weights_that_can_be_told_components_are_compared_as_they_are(
    tmp_path: Path, given: Given, expected: bool | None, stated: tuple[Any, ...]
) -> None:
    assert carries(one_group(tmp_path, given, *stated)) is expected


def test_processes_that_agree_are_as_one_and_no_weight_solves_no_prompt(tmp_path: Path) -> None:
    run = one_group(tmp_path, {"a": [1, 1], "b": [0, 0]}, {"a": 0.0}, {"a": 0, "b": 2.0})
    assert carries(run) is False
    found = run.sql("FROM reward_weights ORDER BY component").fetchall()
    assert found == [("a", 0.0), ("b", 2.0)]
    wall = next(w for w in summarize(run, predict=False).verdict.walls if w.name == SPARSE_REWARD)
    shares = {figure.name: figure.value for figure in wall.evidence}
    assert shares["groups in which all fail"] == 1
    assert [row["best_reward"] for row in ask(run, "prompts_never_solved")] == [0]


@pytest.mark.parametrize(("known", "signal"), [((1.0, 1.0), None), ((1.0, 0.0), True)])
def test_a_verdict_that_nobody_recorded_may_be_another(
    tmp_path: Path, known: tuple[float, ...], signal: bool | None
) -> None:
    for weights in ({}, {"a": 1.0}):
        run = one_group(tmp_path / str(weights), {"a": [*known, UNKNOWN]}, weights)
        assert carries(run) is signal
