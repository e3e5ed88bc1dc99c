"""A process that is killed while it records loses no row that was stored."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.kill_survival import kill_once, read_with_pyarrow


def test_rows_stored_before_a_kill_are_in_files_that_pyarrow_reads(tmp_path: Path) -> None:
    chance = random.Random(1)
    acknowledged = 0
    for trial in range(6):
        folder = tmp_path / str(trial)
        folder.mkdir()
        left = kill_once(folder, chance)
        assert left.missing == []
        assert left.unreadable == []
        acknowledged += left.acknowledged
    assert acknowledged > 0


def test_a_cut_file_would_be_noticed(tmp_path: Path) -> None:
    kill_once(tmp_path, random.Random(3))
    [spans] = (tmp_path / "run/spans").glob("*.arrows")
    whole, _ = read_with_pyarrow(tmp_path / "run")
    spans.write_bytes(spans.read_bytes()[: spans.stat().st_size // 2])
    left, unreadable = read_with_pyarrow(tmp_path / "run")
    assert len(left["spans"]) < len(whole["spans"])
    assert len(unreadable) == 1
