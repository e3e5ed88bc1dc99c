"""Curves of plans, drawn by the real matplotlib."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import invoke

SHAPE = ("--model", "Qwen2.5-7B", "--gpus", "16xH100", "--mean-tokens", 1000)
FIRST = {"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doctype html>"}


@pytest.mark.parametrize("kind", FIRST)
@pytest.mark.parametrize("sweep", [(), ("--sweep", "gpus=8,16,64")], ids=["split", "sweep"])
def test_a_plan_is_drawn(tmp_path: Path, kind: str, sweep: tuple[str, ...]) -> None:
    path = tmp_path / f"plan.{kind}"
    result = invoke("plan", *SHAPE, *sweep, "--plot", path)
    assert result.exit_code == 0, result.output
    drawn = path.read_bytes()
    assert drawn.startswith(FIRST[kind])
    assert len(drawn) > 5000


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    large = ("--params", "405B", "--gpus", "8xH100", "--mean-tokens", 1000, "--sweep", "gpus=8,16")
    result = invoke("plan", *large, "--plot", tmp_path / "plan.png")
    assert result.exit_code == 2
    assert "does not fit" in result.output
    result = invoke("plan", *SHAPE, "--plot", tmp_path / "nowhere" / "plan.png")
    assert result.exit_code == 4
    assert "cannot write" in result.output
