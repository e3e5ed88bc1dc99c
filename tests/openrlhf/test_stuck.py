"""A judge that no longer answers over HTTP: the job waits, and who for is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.framework_jobs import FULL_FORM, PLUGIN, free_port, hung
from tests.hooks.conftest import clean_environment
from tests.openrlhf.jobs import Job, train

pytestmark = FULL_FORM


def test_a_judge_that_does_not_answer_is_named(assets: Path, tmp_path: Path) -> None:
    port = free_port()
    around = {"JOB_STAMPS": str(tmp_path / "stamps"), "JOB_HANGS": "judge:20"}
    judge = subprocess.Popen(
        [sys.executable, str(PLUGIN / "judge_server.py"), str(port)],
        env=clean_environment(**around),
    )
    try:
        job = Job(environment=(("REWARD", f"http://127.0.0.1:{port}"),))
        ended, _, found = hung(train, job, assets, tmp_path)
    finally:
        judge.kill()
        judge.wait()
    culprit = found.culprit
    assert (culprit.kind, culprit.role, found.step) == ("open work", "rollout", 3)
    assert "_fetch_rewards_via_http" in culprit.says
    assert culprit.place == ""  # a coroutine that waits has no stack
    assert ended.rows("SELECT step FROM steps WHERE end_ns IS NOT NULL") == [1, 2, 3, 4]
