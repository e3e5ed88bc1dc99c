"""A reward function that hangs in one process of a job: who is waited for is said, and in which
line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.framework_jobs import hung
from tests.trl.jobs import JOBS, train


@pytest.mark.parametrize(
    ("name", "call", "kind", "says"),
    [("grpo", 3, "open work", "“identity”"), ("ranks", 2, "absent", "where 1 other rank waits")],
)
def test_a_reward_function_that_hangs_is_named(
    name: str, call: int, kind: str, says: str, assets: Path, tmp_path: Path
) -> None:
    job = replace(JOBS[name], environment=(("JOB_HANGS", f"reward:{call}"),))
    ended, stamp, found = hung(train, job, assets, tmp_path)
    culprit = found.culprit
    assert (found.step, culprit.kind, culprit.pid) == (3, kind, stamp["pid"])
    assert says in culprit.says
    assert culprit.place.endswith(" may_hang")
    assert ended.rows("SELECT step FROM steps WHERE end_ns IS NOT NULL") == [1, 2, 3, 4]
