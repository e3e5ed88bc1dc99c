"""Oversized and odd inputs, each read by a command; `benchmarks.hostile` tries thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.hostile_runs import make_good, tried


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    make_good(folder)
    return folder


A_MILLION_IN_A_GROUP = 918


@pytest.mark.parametrize("seed", [*range(12), A_MILLION_IN_A_GROUP])
def test_a_command_ends_in_bounds_with_an_answer_or_a_sentence(
    seed: int, good: Path, tmp_path: Path
) -> None:
    found = tried(seed, good, tmp_path)
    assert not found.wrong, found
