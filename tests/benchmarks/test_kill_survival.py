"""A process that is killed while it records loses no row that was stored."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.kill_survival import kill_once, read_with_pyarrow


def test_what_was_stored_before_a_kill_is_there_and_a_cut_file_is_noticed(
    tmp_path: Path,
) -> None:
    survived = kill_once(tmp_path, random.Random(3))
    assert (survived.missing, survived.unreadable) == ([], [])
    assert survived.acknowledged > 0
    [spans] = (tmp_path / "run/spans").glob("*.arrows")
    whole, _ = read_with_pyarrow(tmp_path / "run")
    spans.write_bytes(spans.read_bytes()[: spans.stat().st_size // 2])
    left, unreadable = read_with_pyarrow(tmp_path / "run")
    assert len(left["spans"]) < len(whole["spans"])
    assert len(unreadable) == 1
