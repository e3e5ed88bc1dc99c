"""A reward that is never given, and an answer that never ends: who is waited for is said, and in
which line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.framework_jobs import FULL_FORM, hung
from tests.verl.jobs import JOBS, train

pytestmark = FULL_FORM


@pytest.mark.parametrize(
    ("where", "role", "says"),
    [("reward", "reward", "reward “reward function”"), ("answer", "CpuServer", "a call is open")],
)
def test_the_process_that_hangs_is_named(
    where: str, role: str, says: str, assets: Path, tmp_path: Path
) -> None:
    job = replace(JOBS["sync"], environment=(("JOB_HANGS", f"{where}:70"),))  # 32 a step
    ended, stamp, found = hung(train, job, assets, tmp_path)
    culprit = found.culprit
    assert (found.step, culprit.kind, culprit.pid) == (3, "open work", stamp["pid"])
    assert culprit.role == role
    assert says in culprit.says
    assert culprit.place.endswith(" may_hang")
    assert ended.rows("SELECT step FROM steps WHERE end_ns IS NOT NULL") == [1, 2, 3]
