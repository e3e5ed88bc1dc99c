"""Which stages are tied with the candidate where the candidate's own time varies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.binding import Binding
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.trace import Stage
from rltrace.testing.made import process, run_of


def binding_of(path: Path, *steps: tuple[float, float]) -> Binding:
    """Steps of `(rollout, train)` seconds, in which an env call, a sync and a checkpoint are too,
    each beside generation for nearly all of its time."""
    spans: list[tuple[Any, ...]] = []
    beside: list[tuple[Any, ...]] = []
    now = 0.0
    for n, (rollout_s, train_s) in enumerate(steps):
        cut, end = now + rollout_s, now + rollout_s + train_s
        spans += [(("step", n), now, end), (Stage.ROLLOUT, now, cut), (Stage.TRAIN, cut, end)]
        beside += [(Stage.ENV, now, now + 0.1), (Stage.SYNC, now + 0.1, now + 0.2)]
        beside += [(Stage.CHECKPOINT, now + 0.2, now + 0.3)]
        now = end
    return summarize(
        run_of(path, process("driver", *spans), process("actor", *beside)), predict=False
    ).binding


def test_stages_without_exposure_are_never_tied(tmp_path: Path) -> None:
    """Three steps of very different lengths: the lead's interval holds 0, and that is all."""
    binding = binding_of(tmp_path, (2, 0.02), (3, 0.02), (30, 0.1))
    assert binding.stage is not None
    assert binding.stage.name == "rollout"
    assert binding.margin_s.low < 0
    assert (binding.agreeing_steps, binding.steps) == (3, 3)
    assert binding.tied == ()
    assert binding.confidence == "likely"


@pytest.mark.parametrize(
    "steps",
    [
        [(2, 1.5), (3, 2.5), (30, 20)],  # behind in every step, but by no small part of it
        [(2, 0.02), (0.1, 0.2), (30, 0.1)],  # hardly exposed, but ahead in one step
    ],
)
def test_a_stage_that_matters_or_leads_once_stays_tied(
    tmp_path: Path, steps: list[tuple[float, float]]
) -> None:
    binding = binding_of(tmp_path, *steps)
    assert [row.name for row in binding.tied] == ["train"]
    assert binding.confidence == "weak"
