"""Why p95 is p95, what a draining batch leaves idle, and what is not said without evidence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.analysis.tail import Tail, tail
from rltrace.testing.inside.analysis import find_steps
from rltrace.testing.inside.trace import Finish, Run
from rltrace.testing.made import at, process, rows, run_of

USUAL, SLOW = 190, 10
N = USUAL + SLOW


def tail_of(run: Run, placement: str = "") -> Tail:
    return tail(run, find_steps(run, (at(0), at(1000))), placement)


def of_slow(usual: float, slow: float) -> list[float]:
    return [usual] * USUAL + [slow] * SLOW


def made(path: Path, latency_s: list[float], **columns: list[Any]) -> Tail:
    """Trajectories that begin together, outside of any step; the last `SLOW` are the slow ones."""
    actor = process("rollout")
    n = len(latency_s)
    defaults: dict[str, list[Any]] = {"response_tokens": [100] * n, "trajectory": list(range(n))}
    rows(actor, "trajectories", start_s=[1.0] * n, **{**defaults, **columns},
         end_s=[1 + s for s in latency_s])  # fmt: skip
    return tail_of(run_of(path, actor))


@pytest.mark.parametrize(
    ("cause", "columns"),
    [
        ("length", {"response_tokens": [int(t) for t in of_slow(100, 300)]}),
        ("tools", {"env_ns": [int(s * 1e9) for s in of_slow(0, 2)]}),
        ("to the first token", {"first_token_s": [1 + s for s in of_slow(0.5, 2.5)]}),
        ("preempted", {"preemptions": [int(n) for n in of_slow(0, 1)]}),
        ("cut short", {"finish": [int(f) for f in of_slow(Finish.STOP, Finish.TIMEOUT)]}),
        (
            "new weights under way",
            {"first_version": [3] * N, "last_version": [int(v) for v in of_slow(3, 4)]},
        ),
        ("slower decoding", {}),
    ],
)
def test_the_cause_is_what_the_slowest_differ_in(
    tmp_path: Path, cause: str, columns: dict[str, list[Any]]
) -> None:
    found = made(tmp_path, of_slow(1, 3), **columns).causes
    assert found is not None
    assert (found.slowest, found.usual) == (SLOW, USUAL)
    assert found.gap_s == pytest.approx(2)
    assert [(one.name, one.share) for one in found.causes] == [(cause, pytest.approx(1))]


def test_verdicts_are_a_cause_and_what_many_share_adds_up(tmp_path: Path) -> None:
    actor = process("rollout")
    rng = np.random.default_rng(0)
    tokens = np.ceil(np.exp(4 + rng.standard_normal(1000))).astype(int)
    first = rng.random(1000)
    latency = first + 0.01 * tokens
    ids = list(range(1000))
    rows(
        actor,
        "trajectories",
        start_s=[1.0] * 1000,
        first_token_s=(1 + first).tolist(),
        end_s=(1 + latency).tolist(),
        trajectory=ids,
        response_tokens=tokens.tolist(),
    )
    verdict = rng.exponential(1, 1000)
    rows(actor, "rewards", start_s=[50.0] * 1000, end_s=(50 + verdict).tolist(), trajectory=ids)
    found = tail_of(run_of(tmp_path, actor)).causes
    assert found is not None
    total = latency + verdict
    slow = total > np.quantile(total, 0.95)
    low, high = np.quantile(total, (0.4, 0.6))
    usual = (total >= low) & (total <= high)
    assert sum(one.seconds for one in found.causes) == pytest.approx(found.gap_s)
    seconds = {one.name: one.seconds for one in found.causes}
    assert seconds["verdict"] == pytest.approx(verdict[slow].mean() - verdict[usual].mean())
    assert seconds["to the first token"] == pytest.approx(first[slow].mean() - first[usual].mean())
    length = 0.01 * (tokens[slow].mean() - tokens[usual].mean())
    assert seconds["length"] == pytest.approx(length, rel=1e-6)
    assert found.unknown == ("wait to begin", "tools")


def test_without_lengths_decoding_is_one_cause_and_that_is_said(tmp_path: Path) -> None:
    found = made(tmp_path, of_slow(1, 3), response_tokens=[-1] * N).causes
    assert found is not None
    assert [one.name for one in found.causes] == ["slower decoding"]
    assert "response tokens" in found.unknown


@pytest.mark.parametrize("latencies", [[1.0] * 300, [1.0, 2.0, 5.0], []])
def test_no_tail_no_causes(tmp_path: Path, latencies: list[float]) -> None:
    assert made(tmp_path, latencies).causes is None


def batches(path: Path, placement: str = "") -> Tail:
    """Two steps; in each, four trajectories of 1, 2, 3 and 8 s on two slots, in this order."""
    actor = process("rollout")
    for step in range(2):
        start = 20.0 * step
        actor.spans += process("rollout", (("step", step), start, start + 20)).spans
        rows(
            actor,
            "trajectories",
            start_s=[start, start, start + 1, start + 2],
            end_s=[start + 1, start + 2, start + 4, start + 10],
            trajectory=[10 * step + i for i in range(4)],
            group=[step, step, 7 + step, 7 + step],
            response_tokens=[10, 20, 30, 80],
        )
    return tail_of(run_of(path, actor), placement)


def test_slots_of_a_batch_that_drains(tmp_path: Path) -> None:
    found = batches(tmp_path).slots
    assert found is not None
    assert found.batches == 2
    assert (found.slots.mean, found.samples.mean, found.waves.mean) == (2, 4, 2)
    assert found.span_s.mean == pytest.approx(10)
    assert found.used_share.mean == pytest.approx(14 / 20)
    # The last one begins after 2 s: 8 s of draining, in which another still runs for 2.
    assert found.draining_s.mean == pytest.approx(8)
    assert found.used_while_draining.mean == pytest.approx(10 / 16)
    assert found.perfect_s == pytest.approx(7)
    assert found.perfect_s < found.expected_s
    assert found.expected_longest_s == pytest.approx(sum(
        x * ((i / 8) ** 4 - ((i - 1) / 8) ** 4)
        for i, x in enumerate(sorted([1, 2, 3, 8] * 2), 1)
    ))  # fmt: skip


def test_the_last_tenth_of_a_batch(tmp_path: Path) -> None:
    actor = process("rollout", (("step", 0), 0, 20))
    n = 20
    ends = [1 + 0.1 * i for i in range(18)] + [5.0, 10.0]
    rows(actor, "trajectories", start_s=[0.5] * n, end_s=ends, trajectory=list(range(n)))
    found = tail_of(run_of(tmp_path, actor)).slots
    assert found is not None
    assert found.last_tenth_s.mean == pytest.approx(10 - 2.7)
    assert found.last_tenth_share.mean == pytest.approx((10 - 2.7) / 9.5)


def test_the_last_tenth_of_a_small_batch_is_its_slowest_sample(tmp_path: Path) -> None:
    actor = process("rollout", (("step", 0), 0, 20))
    ends = [*(1.0 + 0.5 * i for i in range(7)), 10.0]
    rows(actor, "trajectories", start_s=[0.0] * 8, end_s=ends, trajectory=list(range(8)))
    found = tail_of(run_of(tmp_path, actor)).slots
    assert found is not None
    assert found.last_tenth_s.mean == pytest.approx(10 - 4)


def test_waits_to_begin_show_where_a_batch_has_more_samples_than_slots(tmp_path: Path) -> None:
    actor = process("rollout", (("step", 0), 0, 100))
    start = [float(i // 20) for i in range(N)]  # waves of 20, one second each
    ends = [s + 1 for s in start]
    columns: dict[str, list[Any]] = {"trajectory": list(range(N)), "response_tokens": [100] * N}
    rows(actor, "trajectories", start_s=start, end_s=ends, **columns)
    found = tail_of(run_of(tmp_path, actor)).causes
    assert found is not None
    assert [one.name for one in found.causes] == ["wait to begin"]


def test_an_async_placement_has_no_batches(tmp_path: Path) -> None:
    found = batches(tmp_path, "async")
    assert found.slots is not None
    assert found.slots.batches == 0
    assert found.slots.slots.mean == 2
    assert found.slots.used_share.mean == pytest.approx(28 / (2 * 30))
    assert math.isnan(found.slots.expected_s)
    assert found.lengths is not None
    assert math.isnan(found.lengths.longest_of_batch)


def test_lengths_within_and_between_groups(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    level = np.repeat(rng.normal(5, 0.8, 500), 8)
    tokens = np.exp(level + rng.normal(0, 0.3, 4000)).round().astype(int)
    groups = np.repeat(np.arange(500), 8).tolist()
    found = made(tmp_path, [1.0] * 4000, response_tokens=tokens.tolist(), group=groups).lengths
    assert found is not None
    assert found.within_group == pytest.approx(0.3, rel=0.05)
    assert found.between_groups == pytest.approx(0.8, rel=0.1)
    assert found.group_size == 8
    longest = tokens.reshape(500, 8).max(axis=1).mean() / tokens.mean()
    assert found.longest_in_groups == pytest.approx(longest)
    assert found.longest_in_groups < found.longest_of_group  # a group's lengths are alike
    assert found.s == pytest.approx(math.hypot(0.3, 0.8), rel=0.1)
