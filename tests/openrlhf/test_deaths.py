"""An engine's actor is killed while it answers: the job ends as it would have ended untraced."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.framework_jobs import FULL_FORM
from tests.openrlhf.jobs import TENSORS, Finished, Job, end_left_over, train
from tests.openrlhf.test_runs import BATCH, trained

pytestmark = FULL_FORM

KILLED = Job((), (("OPENRLHF_CPU_TOKEN_SECONDS", "0.05"),))
WAIT_S = 600


@pytest.fixture(scope="module")
def killed(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Finished]:
    """The job that lost its engine in its second step, traced and not."""

    def go(traced: bool) -> Finished:
        where = tmp_path_factory.mktemp("killed")

        def kill(process: subprocess.Popen[bytes]) -> None:
            begun, deadline = Finished(KILLED, where), time.monotonic() + WAIT_S
            while len(updates := begun.stamps("update")) < TENSORS:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
            time.sleep(1)  # the next batch is under way; it takes three seconds
            os.kill(updates[-1]["pid"], signal.SIGKILL)

        job = train(KILLED, assets, where, traced, code=None, meanwhile=kill)
        end_left_over(job)
        return job

    return go(True), go(False)


def test_the_job_ends_as_it_would_have_ended(killed: tuple[Finished, Finished]) -> None:
    traced, plain = killed
    assert traced.code == plain.code != 0
    assert "ActorDiedError" in traced.log
    assert "ActorDiedError" in plain.log


def test_what_the_engine_did_and_had_begun_is_there(killed: tuple[Finished, Finished]) -> None:
    traced, _ = killed
    assert len(trained(traced, 1, "trajectory")) == BATCH
    assert traced.rows("SELECT version FROM syncs WHERE role = 'sink'") == [1]
    assert 0 < traced.rows("SELECT count(*) FROM trajectories WHERE end_ns IS NULL")[0] <= BATCH
    assert traced.rows("SELECT step FROM steps WHERE end_ns IS NOT NULL") == [1]
