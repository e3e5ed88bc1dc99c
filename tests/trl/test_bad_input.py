"""What may go wrong in a job shows in its trace, and changes nothing of the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.framework_jobs import FULL_FORM
from tests.trl.jobs import FAILS, JOBS, Finished, train
from tests.trl.test_runs import UPDATE

pytestmark = FULL_FORM


@pytest.fixture(scope="module")
def failed(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The job whose second batch of verdicts fails."""
    return train(FAILS, assets, tmp_path_factory.mktemp("fails"), code=1)


def test_verdicts_that_fail_are_errors_and_belong_to_their_samples(failed: Finished) -> None:
    assert "ValueError: no verdict" in failed.log
    found = failed.rows(
        "SELECT outcome, count(*), count(DISTINCT trajectory), count(value) FROM rewards"
        " WHERE component = 'fails' GROUP BY outcome ORDER BY outcome"
    )
    assert found == [("error", UPDATE, UPDATE, 0), ("ok", UPDATE, UPDATE, UPDATE)]


def test_only_the_step_that_was_whole_is_one(failed: Finished) -> None:
    assert failed.rows("SELECT step FROM steps WHERE end_ns IS NOT NULL") == [1]
    assert failed.rows("SELECT count(*), max(step) FROM uses") == [(UPDATE, 1)]
    problems = [(one["what"], one["target"]) for one in failed.problems]
    assert ("step-failed", "2") in problems
    assert "hook-failed" not in dict(problems)


def test_a_traced_job_draws_the_numbers_that_an_untraced_one_draws(
    assets: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing of the job's generator is used up, so that losses and samples are the same."""
    jobs = [
        train(JOBS["reused"], assets, tmp_path_factory.mktemp("job"), traced)
        for traced in (True, False)
    ]
    for figure in ("loss", "grad_norm", "reward"):
        ours, theirs = ([metrics.get(figure) for metrics in job.metrics.values()] for job in jobs)
        assert ours == theirs
    ours, theirs = ([stamp["samples"] for stamp in job.stamps("trained")] for job in jobs)
    assert ours == theirs
