"""Whoever is killed, and whenever: a version is whole or not there, and the others go on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from rltrace.sync import Publisher, layout_of
from tests.patience import PATIENCE_S


def counted(case: str, where: str, count: int) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.sync.killing", case, where, str(count)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return dict(json.loads(done.stdout))


def test_no_pull_is_torn_or_goes_back_under_versions_without_a_pause(
    where: str, memory: Path
) -> None:
    seen = counted("readers", where, 1500)
    assert seen["pulls"] == 3000
    assert seen["versions"] > 100
    assert (seen["torn"], seen["backward"]) == (0, 0)
    assert list(memory.iterdir()) == []


def test_a_killed_publisher_leaves_a_whole_version_and_is_taken_over_from(
    where: str, memory: Path
) -> None:
    seen = counted("publishers", where, 25)
    assert seen["pulls"] == seen["versions"] == 25
    assert (seen["torn"], seen["backward"]) == (0, 0)
    assert seen["in_copy"] > 0
    assert seen["slots"] <= 3
    # What the last one has left goes when the next policy is opened beside it.
    assert [folder.name for folder in memory.iterdir()] == ["policy"]
    with Publisher.open(layout_of({"w": np.zeros(1)}), f"shm://{memory}/another"):
        assert [folder.name for folder in memory.iterdir()] == ["another"]
    assert list(memory.iterdir()) == []


def test_a_killed_subscriber_holds_nothing_up(where: str, memory: Path) -> None:
    seen = counted("subscribers", where, 25)
    assert seen["published_after"] == 1
    assert (seen["torn"], seen["backward"]) == (0, 0)
    assert list(memory.iterdir()) == []


def test_a_lease_ends_with_its_process(where: str, memory: Path) -> None:
    seen = counted("leases", where, 5)
    assert seen == {"skipped": 5, "published_after": 5}
    assert list(memory.iterdir()) == []


def test_ranks_change_together_or_not_at_all_though_one_is_killed(where: str) -> None:
    seen = counted("ranks", where, 12)
    assert seen["none"] + seen["others"] > 0
    assert seen["mixed"] == 0
