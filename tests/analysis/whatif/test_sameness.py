"""Which workloads a replay takes for the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from rltrace.testing.inside.analysis import (
    NOT_PLAYED,
    PLACEMENTS,
    Play,
    Sync,
    Workload,
    played,
    replay,
)
from tests.analysis.whatif.played import batch, workload

LENGTHS = [3.0, 5.0, 2.0, 9.0]


def job(**more: Any) -> Workload:
    return workload(batch(LENGTHS, group=2, env_s=1.0, verdict_s=0.5), **more)


class Read:
    """A workload that knows which of its figures were read."""

    def __init__(self, load: Workload) -> None:
        self.load, self.names = load, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self.load, name)


def test_a_job_of_equal_samples_is_played_once() -> None:
    assert replay(job(rests_on=("one",))) is replay(job(rests_on=("another",), steps=7))


@pytest.mark.parametrize(
    "change",
    [
        {"batches": (batch([*LENGTHS[:3], 8.0], group=2, env_s=1.0, verdict_s=0.5),)},
        {"batches": (batch(LENGTHS, group=4, env_s=1.0, verdict_s=0.5),)},
        {"rest_s": 1.0},
        {"train_s": 3.0},
        {"reward_workers": 2},
        {"placement": "async"},
        {"sync": Sync(1.0)},
    ],
)
def test_a_job_with_anything_else_in_it_is_played_anew(change: dict[str, Any]) -> None:
    changed = job(**{k: v for k, v in change.items() if k != "batches"})
    changed = replace(changed, batches=change.get("batches", changed.batches))
    assert played(changed) != played(job())


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_what_does_not_tell_workloads_apart_is_never_read(placement: str, keeps: bool) -> None:
    kept = keeps and placement in ("colocated", "disaggregated")
    load = Read(job(placement=placement, keeps_unfinished=kept, drops_stale=True))
    Play(cast(Workload, load)).result()
    assert "batches" in load.names
    assert not load.names & NOT_PLAYED
