"""A traced job does what it would have done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.verl.jobs import Finished

EXACT = (
    "response_length/mean", "response_length/max", "response_length/min",
    "response_length/clip_ratio", "perf/total_num_tokens", "critic/score/max", "critic/score/min",
)  # fmt: skip


def test_the_first_step_draws_and_learns_the_same_and_all_log_the_same(
    finished: Callable[..., Finished],
) -> None:
    """Later steps may differ: rounding in one step's sums may tip one token of the next."""
    traced, plain = finished("sync").metrics, finished("sync", traced=False).metrics
    names = [{step: set(logged) for step, logged in metrics.items()} for metrics in (traced, plain)]
    assert names[0] == names[1]
    assert [traced[1][name] for name in EXACT] == [plain[1][name] for name in EXACT]
    # Rows come to the trainer in any order, and sums of floats depend on it.
    for name in ("critic/score/mean", "actor/pg_loss", "actor/kl_loss", "actor/grad_norm"):
        assert traced[1][name] == pytest.approx(plain[1][name], rel=5e-3, abs=1e-6)
