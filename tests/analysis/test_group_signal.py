"""Groups whose rewards differ teach something; the others were generated for nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.followed import follow
from rltrace.analysis.generated import read_generated
from rltrace.analysis.group_signal import group_signal
from rltrace.testing.inside.analysis import (
    CANNOT_TELL,
    SPARSE_REWARD,
    LiveState,
    RunMeters,
    find_steps,
    named_query,
    summarize,
    trained_in,
)
from rltrace.testing.inside.trace import Fate, Run
from rltrace.testing.inside.trace import run as run_module
from rltrace.testing.made import process, rows, run_of, turns


def test_a_group_needs_two_verdicts_and_a_difference(tmp_path: Path) -> None:
    actor = process("rollout")
    n = 9
    rows(
        actor,
        "trajectories",
        start_s=[1.0] * n,
        end_s=[2.0] * n,
        trajectory=list(range(n)),
        group=[1, 1, 2, 2, 3, 3, 4, 5, -1],
    )
    value = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, math.nan, 0.5]
    rows(actor, "rewards", start_s=[3.0] * n, end_s=[3.0] * n, trajectory=list(range(n)),
         value=value)  # fmt: skip
    found = group_signal(run_of(tmp_path, actor))
    assert found is not None
    assert (found.groups, found.with_signal) == (3, 1)
    assert found.share == pytest.approx(1 / 3)
    assert 0 < found.low < found.share < found.high < 1
    assert found.reward_without == pytest.approx(0.5)


def test_the_interval_holds_what_few_groups_can_tell(tmp_path: Path) -> None:
    actor = process("rollout")
    ids = list(range(10))
    rows(actor, "trajectories", start_s=[1.0] * 10, end_s=[2.0] * 10, trajectory=ids,
         group=[i // 2 for i in ids])  # fmt: skip
    rows(actor, "rewards", start_s=[3.0] * 10, end_s=[3.0] * 10, trajectory=ids,
         value=[float(i % 2) for i in ids])  # fmt: skip
    found = group_signal(run_of(tmp_path, actor))
    assert found is not None
    # Wilson's interval of 5 out of 5.
    assert (found.share, found.high) == (1.0, pytest.approx(1.0))
    assert found.low == pytest.approx(5 / (5 + 1.96**2))
    assert math.isnan(found.reward_without)


def test_a_group_with_a_reward_that_is_no_number_carries_no_signal(tmp_path: Path) -> None:
    actor = process("rollout")
    rows(actor, "trajectories", start_s=[1.0] * 6, end_s=[2.0] * 6, trajectory=list(range(6)),
         group=[1, 1, 2, 2, 3, 3])  # fmt: skip
    value = [math.nan, math.nan, math.nan, 1.0, 0.0, 1.0]
    rows(actor, "rewards", start_s=[3.0] * 6, end_s=[3.0] * 6, trajectory=list(range(6)),
         value=value, outcome=[0] * 6)  # fmt: skip
    found = group_signal(run_of(tmp_path, actor))
    assert found is not None
    assert (found.groups, found.with_signal) == (3, 1)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_group_is_that_of_whichever_row_of_a_sample_has_one(tmp_path: Path, sign: int) -> None:
    """Ids are hashes, and half of them negative: below the -1 of a row that knows none."""
    driver, engine = process("driver", *turns(5.0)), process("engine")
    ids = list(range(4))
    many: dict[str, list[Any]]
    many = {"end_s": [2.0] * 4, "trajectory": ids, "response_tokens": [7] * 4}
    rows(
        driver, "trajectories", start_s=[1.0] * 4, group=[sign * (5 + i // 2) for i in ids], **many
    )
    rows(engine, "trajectories", start_s=[1.5] * 4, group=[-1] * 4, **many)
    rows(driver, "rewards", start_s=[3.0] * 4, end_s=[3.0] * 4, trajectory=ids,
         value=[0.0, 1.0, 1.0, 1.0])  # fmt: skip
    rows(driver, "uses", time_s=[6.0] * 4, trajectory=ids, tokens=[7] * 4, step=[0] * 4,
         fate=[Fate.TRAINED] * 4)  # fmt: skip
    run = run_of(tmp_path, driver, engine)
    found = group_signal(run)
    assert found is not None
    assert (found.groups, found.with_signal, found.samples) == (2, 1, 4)
    assert trained_in(run, 0, 1 << 62, math.inf).zero_advantage_tokens == 2 * 7
    steps = find_steps(run, (0, 1 << 62))
    assert set(follow(run, steps).samples.group.tolist()) == {sign * 5, sign * 6}
    assert set(read_generated(run, steps).group.tolist()) == {sign * 5, sign * 6}
    window = LiveState(run.path).snapshot().window
    assert window is not None
    assert window.trained is not None
    assert window.trained.useful_tokens == 2 * 7
    assert RunMeters(run.path).samples.useful_tokens == 2 * 7


def test_without_verdicts_or_groups_nothing_is_said(tmp_path: Path) -> None:
    assert group_signal(run_of(tmp_path)) is None


def _by_prompt(
    path: Path, begins_s: list[float], used_s: list[float], value: list[float], steps: int
) -> Run:
    """Steps of 10 s, two groups of two samples in each, and ids that are the prompts': they come
    again in every step. Samples take 2 s; a use of -1 was not recorded."""
    made = process("driver", *turns(*[5.0] * steps))
    n = len(begins_s)
    ids, group = list(range(n)), [1, 1, 2, 2] * (n // 4)
    rows(made, "trajectories", start_s=begins_s, end_s=[s + 2 for s in begins_s], trajectory=ids,
         group=group, response_tokens=[7] * n)  # fmt: skip
    rows(made, "rewards", start_s=[s + 3 for s in begins_s], end_s=[s + 3 for s in begins_s],
         trajectory=ids, value=value)  # fmt: skip
    used = [i for i in ids if used_s[i] != -1]
    rows(made, "uses", time_s=[used_s[i] for i in used], trajectory=used, tokens=[7] * len(used),
         fate=[Fate.TRAINED] * len(used), step=[int(used_s[i] // 10) for i in used])  # fmt: skip
    return run_of(path, made)


def _batches_of_four() -> tuple[list[float], list[float]]:
    """When the samples of six steps begin, and their rewards."""
    steps = [step for step in range(6) for _ in range(4)]
    return [10.0 * step + 1 for step in steps], [float(step % 2) for step in steps]


def test_groups_named_by_their_prompt_are_told_apart_by_step(tmp_path: Path) -> None:
    # All rewards of a step are equal; between the steps they differ.
    begins, value = _batches_of_four()
    run = _by_prompt(tmp_path, begins, [b + 6 for b in begins], value, 6)
    found = group_signal(run)
    assert found is not None
    assert found.known
    assert (found.groups, found.with_signal, found.unclear) == (12, 0, 0)
    assert trained_in(run, 0, 1 << 62, math.inf).zero_advantage_tokens == 24 * 7
    assert [row[2] for row in run.sql(named_query("signal_by_step").sql).fetchall()] == [0] * 6
    window = LiveState(run.path).snapshot().window
    assert window is not None
    assert window.trained is not None
    assert window.trained.useful_tokens == 0
    assert RunMeters(run.path).samples.useful_tokens == 0


def test_so_are_those_that_are_generated_ahead_of_their_step(tmp_path: Path) -> None:
    # Each batch is generated while the one before trains, and used when the next has begun.
    begins, value = _batches_of_four()
    run = _by_prompt(tmp_path, begins, [b + 14 for b in begins], value, 8)
    found = group_signal(run)
    assert found is not None
    assert (found.groups, found.with_signal) == (12, 0)


def test_a_group_that_is_begun_in_several_steps_and_used_in_one_stays_whole(
    tmp_path: Path,
) -> None:
    # Partial rollout: half of each group is begun, and has ended, a step before the other half.
    begins = [1.0, 11.0, 1.0, 11.0]
    run = _by_prompt(tmp_path, begins, [18.0] * 4, [0.0, 1.0, 1.0, 1.0], 2)
    found = group_signal(run)
    assert found is not None
    assert (found.groups, found.with_signal) == (2, 1)
    assert run.sql("FROM regrouped").fetchall() == []


def test_a_question_that_was_interrupted_can_be_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, value = _batches_of_four()
    run = _by_prompt(tmp_path, begins, [b + 6 for b in begins], value, 6)

    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run_module, "regrouped", pressed)
        with pytest.raises(KeyboardInterrupt):
            run.sql("FROM grouped_trajectories")
    assert len(run.sql("FROM grouped_trajectories").fetchall()) == 24


def test_where_nobody_says_how_samples_were_used_it_cannot_be_told(tmp_path: Path) -> None:
    begins = [10.0 * step + 1 for step in range(6) for _ in range(4)]
    value = [float(step % 2) for step in range(6) for _ in range(4)]
    run = _by_prompt(tmp_path, begins, [-1.0] * 24, value, 6)
    found = group_signal(run)
    assert found is not None
    assert not found.known
    assert (found.groups, found.unclear, found.samples) == (0, 24, 24)
    wall = next(w for w in summarize(run, predict=False).verdict.walls if w.name == SPARSE_REWARD)
    assert wall.confidence == CANNOT_TELL
    assert "come again in later steps" in wall.because
