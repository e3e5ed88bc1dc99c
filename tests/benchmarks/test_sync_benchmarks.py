"""What the benchmarks of rltrace.sync find out beside times."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import environments, sync_pulls, sync_restarts, sync_verl
from rltrace.testing.inside.sync import Row, VerlBuckets


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


def row(receivers: int = 1) -> Row:
    return Row(VerlBuckets.name, receivers, 0, missing="verl is not installed")


def test_the_row_of_verl_says_how_to_get_it_where_nobody_has_verl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pins").mkdir()
    (tmp_path / "pins" / "verl.txt").touch()
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    found = sync_verl.measured_elsewhere(row(), megabytes=1.0, rounds=1)
    assert "`make test-verl` installs it" in found.missing
    assert "one receiver" in sync_verl.measured_elsewhere(row(2), 1.0, 1).missing


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


def test_the_row_is_what_the_other_python_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_verl, "python_of", lambda framework: Path(sys.executable))
    found = sync_verl.measured_elsewhere(row(), megabytes=1.0, rounds=1)
    assert found.way == VerlBuckets.name
    assert found.rounds or found.missing == "verl is not installed"  # as this Python has it or not
