"""Predictions for jobs that send weights while they generate, held against the same jobs played
with the change: generation goes on meanwhile, or stands still, and where nobody can tell the range
has both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rltrace.testing.inside.analysis import AT_ONCE, GOES_ON, Constants, predict, workload_of
from tests.analysis.walls.queued import Queued, of_own_loop, processes, step_s

TOLD = Queued(generate_s=1.5, sync_s=3, at_once=2)
UNTOLD = Queued(generate_s=6, generators=1, at_once=2, sync_s=1.5, batch=1, room=4, steps=14)


def changed(job: Queued, lever: str) -> Queued:
    """The job with the lever moved."""
    if lever == "sync_speed":
        return replace(job, sync_s=job.sync_s / 4)
    if lever == "rollout_workers":
        return replace(job, generators=2 * job.generators)
    return replace(job, train_s=job.train_s / 1.5)


@pytest.mark.parametrize("pauses", [False, True], ids=["goes on", "stands still"])
@pytest.mark.parametrize("name", ["told", "untold"])
def test_weights_for_which_generation_stands_still_are_replayed_so(
    tmp_path: Path, name: str, pauses: bool
) -> None:
    job = replace(TOLD if name == "told" else UNTOLD, pauses=pauses)
    source = workload_of(of_own_loop(tmp_path, *processes(job)))
    load = source(Constants())
    if name == "told":
        assert load.weights_stop == (AT_ONCE if pauses else GOES_ON)
    assert (load.instead is None) == (name == "told")
    for lever, value in (("sync_speed", "4"), ("rollout_workers", "x2"), ("train_speed", "1.5")):
        found = predict(source, [(lever, value)])
        true = step_s(job) / step_s(changed(job, lever))
        assert found.gain.low - 0.03 <= true <= found.gain.high + 0.03, (lever, found.gain, true)
        assert any("the range has both" in one for one in found.rests_on) or name == "told"
