"""What the benchmarks of rltrace.sync find out beside times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import environments, sync_pulls, sync_restarts


def test_pulls_under_versions_without_a_pause_are_whole_and_updates_allocate_nothing() -> None:
    found = {check.what: check for check in sync_pulls.measure(pulls=50, megabytes=1).checks}
    for what in ("torn pulls", "pulls that went back", "shared memory that 20 updates add"):
        assert found[what].holds


@pytest.mark.slow
def test_no_worker_stays_with_old_weights_in_silence_whatever_is_restarted() -> None:
    """Once each kind. `python -m benchmarks.sync_restarts` makes two hundred."""
    found = sync_restarts.measure(restarts=len(sync_restarts.KINDS), seed=1)
    assert len(found.rows) == len(sync_restarts.KINDS)
    assert [check.figure for check in found.checks] == [0, 0, 0], found.notes


def test_a_torn_copy_and_one_that_went_back_are_counted() -> None:
    counts, whole = sync_pulls.Counts(), np.full(4, 7, np.int32)
    counts.note(0, whole, version=7, before=6)
    counts.note(0, whole, version=7, before=8)
    counts.note(1, whole, version=8, before=7)
    whole[3] = 8
    counts.note(1, whole, version=7, before=7)
    assert [list(found) for found in (counts.pulls, counts.torn, counts.back)] == [
        [2, 2],
        [0, 2],
        [1, 0],
    ]


@pytest.mark.parametrize("framework", ["verl", "openrlhf"])
def test_the_environment_is_the_one_that_the_makefile_makes(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makefile, big = (environments.ROOT / "Makefile").read_text("utf-8"), framework.upper()
    line = f"{big} := .venvs/{framework}-$(shell sha256sum < $({big}_PINS) | cut -c1-12)\n"
    assert line in makefile
    (tmp_path / "pins").mkdir()
    (tmp_path / "pins" / f"{framework}.txt").write_text("torch==2.0\n")
    made = tmp_path / ".venvs" / f"{framework}-979661477c76"
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    assert environments.python_of(framework) is None
    made.mkdir(parents=True)
    (made / ".ready").touch()
    assert environments.python_of(framework) == made / "bin" / "python"
