"""Predictions for jobs whose samples call tools, held against the same jobs played with the change:
a sample keeps its place at its worker while its tool works, or another one has it meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rltrace.testing.inside.analysis import (
    Constants,
    Engine,
    OffTheRun,
    Prediction,
    places_of,
    predict,
    workload_of,
)
from rltrace.testing.inside.trace import RltraceError
from tests.analysis.whatif.played import batch, workload
from tests.analysis.whatif.tooled import Tooled, gain, traced

KEEPING = {
    "several places": Tooled(),
    "one place": Tooled(places=1, workers=8),
    "one worker of many places": Tooled(places=8, workers=1),
    "tools at the end, of all lengths": Tooled(before=1.0, tool_sigma=0.6),
    "short tools": Tooled(tool_s=0.1),
    "verdicts bind": Tooled(verdict_s=0.12),
    "the learner binds": Tooled(train_s=2.0),
    "on policy": Tooled(ahead=0, places=3),
}
GIVING = {
    "several places": Tooled(keeps=False),
    "one place": Tooled(keeps=False, places=1),
    "tools at the end": Tooled(keeps=False, before=1.0),
    "on policy": Tooled(keeps=False, places=2, ahead=0),
    "no limit": Tooled(keeps=False, places=1000),
    "on policy, no limit": Tooled(keeps=False, places=1000, ahead=0),
}


def holds(found: Prediction, true: float) -> None:
    """The range has the true gain, to what a short run scatters by."""
    assert found.gain.low - 0.02 <= true <= found.gain.high + 0.02, (found.gain, true)


@pytest.mark.parametrize("name", KEEPING)
def test_samples_that_keep_their_places_are_replayed_so(tmp_path: Path, name: str) -> None:
    job = KEEPING[name]
    source = workload_of(traced(tmp_path, job))
    load = source(Constants())
    assert (load.engine.slots, load.engine.tools_hold) == (job.places, True)
    assert load.model_error == pytest.approx(0, abs=0.03)
    true = gain(job, replace(job, tool_s=job.tool_s / 2))
    found = predict(source, [("env_latency", "0.5")])
    holds(found, true)
    assert found.gain.middle == pytest.approx(true, rel=0.05)
    fastest = gain(job, replace(job, decode_s=1e-6))
    assert predict(source, [("speculative", "1")]).gain.middle <= fastest + 0.02


@pytest.mark.parametrize("name", GIVING)
def test_places_that_others_have_meanwhile_are_not_taken_to_be_kept(
    tmp_path: Path, name: str
) -> None:
    job = GIVING[name]
    source = workload_of(traced(tmp_path, job))
    assert not source(Constants()).engine.tools_hold
    try:
        found = predict(source, [("env_latency", "0.5")])
    except OffTheRun:
        return
    holds(found, gain(job, replace(job, tool_s=job.tool_s / 2)))


@pytest.mark.parametrize("keeps", [True, False])
def test_samples_that_wait_for_a_place_in_their_own_time_are_replayed_by_their_turns(
    tmp_path: Path, keeps: bool
) -> None:
    """Their rows begin with the step, whoever has a place."""
    job = Tooled(keeps=keeps, early=True, ahead=0, places=3, workers=1, decode_s=0.4)
    source = workload_of(traced(tmp_path, job))
    load = source(Constants())
    assert (load.engine.slots, load.engine.tools_hold) == (3, keeps)
    assert load.model_error == pytest.approx(0, abs=0.08)
    for lever, value, other in (
        ("env_latency", "0.5", replace(job, tool_s=job.tool_s / 2)),
        ("slots", "x2", replace(job, places=6)),
    ):
        holds(predict(source, [(lever, value)]), gain(job, other))


def test_more_workers_are_not_predicted_where_nobody_knows_which_samples_have_a_place(
    tmp_path: Path,
) -> None:
    source = workload_of(traced(tmp_path, GIVING["several places"]))
    with pytest.raises(RltraceError, match="rollout_workers cannot be moved here"):
        predict(source, [("rollout_workers", "x2")])


def test_more_places_gain_what_samples_that_keep_them_waited_for(tmp_path: Path) -> None:
    job = Tooled(ahead=0)
    found = predict(workload_of(traced(tmp_path, job)), [("slots", "x2")])
    holds(found, gain(job, replace(job, places=2 * job.places)))
    assert any("keep their places" in one for one in found.rests_on)


def test_places_of_which_only_those_that_run_have_one_are_not_counted(tmp_path: Path) -> None:
    """What waits after its tool for a place and what runs look alike."""
    source = workload_of(traced(tmp_path, GIVING["one place"]))
    with pytest.raises(RltraceError, match="slots cannot be moved here"):
        predict(source, [("slots", "x2")])


def test_where_it_cannot_be_told_whether_places_are_kept_nothing_is_predicted() -> None:
    """A worker that has two samples at once, and then four: each begins as another one ends, though
    four were there at once."""
    begin_s = np.concatenate([np.arange(60) / 2, 30 + np.arange(90) / 4])
    found = places_of(np.zeros(150, np.int64), begin_s, begin_s + 1)
    assert not found.sure
    unsure = workload(
        batch([4.0] * 4, env_s=9), engine=Engine(1.0, np.inf, 1.0, 0.0, sure=False), steps=9
    )
    with pytest.raises(OffTheRun, match="whether a sample keeps its place"):
        predict(lambda constants: unsure, [("env_latency", "0.5")])
