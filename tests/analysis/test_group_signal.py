"""Groups whose rewards differ teach something; the others were generated for nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rltrace.analysis.group_signal import group_signal
from tests.analysis.handmade import process, rows, run_of


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


def test_without_verdicts_or_groups_nothing_is_said(tmp_path: Path) -> None:
    assert group_signal(run_of(tmp_path)) is None
