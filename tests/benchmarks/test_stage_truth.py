"""Stages of a trace against the stamps of a job: what is off, and what nobody has seen, is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.measuring import Result
from benchmarks.stage_truth import errors, stage_errors
from rltrace.testing.handmade_runs import at, process, run_of, turns
from rltrace.testing.inside.trace import Stage
from tests.framework_jobs import Ended

STAMPED = {"generate": Stage.ROLLOUT, "reward": Stage.REWARD}


def job(folder: Path, **stamps_s: list[tuple[float, float]]) -> Ended[None]:
    """Three steps of 10 s, of which generation takes 4 s, with these stamps."""
    run_of(folder, process("learner", *turns(4, 4, 4)))
    (folder / "stamps").mkdir()
    for what, moments in stamps_s.items():
        lines = [json.dumps({"start_ns": at(start), "end_ns": at(end)}) for start, end in moments]
        (folder / "stamps" / f"{what}-1.jsonl").write_text("\n".join(lines))
    return Ended(None, folder)


GENERATED = [(0.0, 4.0), (10.0, 14.0), (20.0, 24.0)]
BOTH = ("rollout / stamps, median", "reward / stamps, median")


@pytest.mark.parametrize(
    ("stamps_s", "missed"),
    [
        ({"generate": GENERATED, "reward": [(14.0, 16.0)]}, {BOTH[1]}),
        ({"generate": GENERATED, "reward": [(5.0, 6.0)]}, {BOTH[1]}),  # warms up
        ({}, {*BOTH}),
    ],
)
def test_a_stage_without_stamps_or_spans_is_a_limit_that_is_missed(
    tmp_path: Path, stamps_s: dict[str, list[tuple[float, float]]], missed: set[str]
) -> None:
    result = Result("errors", "1")
    errors(result, stage_errors([job(tmp_path, **stamps_s)], STAMPED))
    assert {check.what for check in result.checks if not check.holds} == missed
    assert {check.what for check in result.checks} == {*BOTH}
