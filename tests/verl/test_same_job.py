"""A traced job does what it would have done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.verl.jobs import Finished
from tests.verl.test_runs import BATCH

EXACT = (
    "response_length/mean", "response_length/max", "response_length/min",
    "response_length/clip_ratio", "perf/total_num_tokens", "critic/score/max", "critic/score/min",
)  # fmt: skip
LONGEST = 64  # tokens


@pytest.fixture
def pair(finished: Callable[..., Finished]) -> tuple[Finished, Finished]:
    """The same job, traced and not."""
    return finished("sync"), finished("sync", traced=False)


def test_the_first_step_draws_and_learns_the_same(pair: tuple[Finished, Finished]) -> None:
    traced, plain = (job.metrics[1] for job in pair)
    for name in EXACT:
        assert traced[name] == plain[name]
    # Rows come to the trainer in any order, and sums of floats depend on it.
    for name in ("critic/score/mean", "actor/pg_loss", "actor/kl_loss", "actor/grad_norm"):
        assert traced[name] == pytest.approx(plain[name], rel=5e-3, abs=1e-6)


def test_later_steps_differ_by_no_more_than_one_draw(pair: tuple[Finished, Finished]) -> None:
    """Rounding in one step's sums may tip one token of the next."""
    traced, plain = (job.metrics for job in pair)
    assert traced.keys() == plain.keys()
    for step, metrics in traced.items():
        one_row = LONGEST / BATCH
        assert metrics["response_length/mean"] == pytest.approx(
            plain[step]["response_length/mean"], abs=one_row
        )
        assert metrics["critic/score/mean"] == pytest.approx(
            plain[step]["critic/score/mean"], abs=2 / BATCH
        )


def test_the_same_metrics_are_logged(pair: tuple[Finished, Finished]) -> None:
    traced, plain = (job.metrics for job in pair)
    assert {step: set(found) for step, found in traced.items()} == {
        step: set(found) for step, found in plain.items()
    }
