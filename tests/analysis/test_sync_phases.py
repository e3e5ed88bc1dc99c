"""Phases of weight updates that overlap: each update keeps its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.analysis import sync_phases
from rltrace.testing.inside.analysis import Syncs, find_steps, syncs
from rltrace.testing.inside.trace import Phase, Stage, SyncRole
from rltrace.testing.made import at, between, process, rows, run_of
from rltrace.testing.played import Process


@pytest.fixture(autouse=True, params=["all at once", "as few as can be"])
def together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Phases of a long run are looked at in parts, which changes nothing."""
    if request.param == "as few as can be":
        monkeypatch.setattr(sync_phases, "_TOGETHER", 1)


def syncs_of(path: Path, *processes: Process) -> Syncs:
    run = run_of(path, *processes)
    found = syncs(run, find_steps(run, (at(0), at(100))))
    assert found is not None
    return found


def works(made: Process, phase: Phase, start_s: float, end_s: float, lane: int = 0) -> None:
    made.span(between(start_s, end_s), "part", Stage.SYNC, -1, phase=phase, lane=lane)


def takes_part(made: Process, role: SyncRole, *updates: tuple[int, float, float]) -> None:
    version, start_s, end_s = (list(column) for column in zip(*updates, strict=True))
    rows(made, "syncs", version=version, start_s=start_s, end_s=end_s, role=[role] * len(version))


def test_a_slow_transfer_is_kept_while_newer_versions_are_published(tmp_path: Path) -> None:
    """One link takes 9 s a version; meanwhile the learner publishes two more, in 0.5 s each."""
    learner, worker = process("learner"), process("rollout")
    takes_part(learner, SyncRole.SOURCE, (1, 0, 0.5), (2, 4, 4.5), (3, 8, 8.5))
    for since in (0, 4, 8):
        works(learner, Phase.GATHER, since, since + 0.5)
    takes_part(worker, SyncRole.SINK, (1, 1, 11), (3, 11, 21))
    for since in (1, 11):
        works(worker, Phase.TRANSFER, since, since + 9)
        works(worker, Phase.LOAD, since + 9, since + 10)
    found = syncs_of(tmp_path, learner, worker)
    assert found.updates == 3
    assert found.update_s.mean * 3 == pytest.approx(10.5 + 0.5 + 10.5)
    parts_s = {name: spent.mean * 3 for name, spent in found.phases}
    assert parts_s == pytest.approx({"gather": 1.5, "transfer": 18, "load": 2})


def test_two_versions_on_the_way_to_one_worker_at_once(tmp_path: Path) -> None:
    worker = process("rollout")
    takes_part(worker, SyncRole.SINK, (1, 0, 10), (2, 4, 6))
    works(worker, Phase.TRANSFER, 0, 9, lane=1)
    works(worker, Phase.TRANSFER, 4, 6, lane=2)
    works(worker, Phase.LOAD, 9, 10)
    (transfer, transfer_s), (load, load_s) = syncs_of(tmp_path, worker).phases
    assert (transfer, load) == ("transfer", "load")
    assert transfer_s.largest == pytest.approx(9)
    assert (transfer_s.mean, load_s.mean) == (pytest.approx(5.5), pytest.approx(0.5))


def test_a_phase_in_a_process_without_a_part_is_of_the_update_then_at_work(tmp_path: Path) -> None:
    learner, relay = process("learner"), process("relay")
    takes_part(learner, SyncRole.SOURCE, (1, 0, 4), (2, 10, 14))
    works(relay, Phase.CONVERT, 11, 12)
    works(relay, Phase.CONVERT, 6, 8)  # nobody works on an update
    ((name, spent),) = syncs_of(tmp_path, learner, relay).phases
    assert (name, spent.largest, spent.mean) == ("convert", pytest.approx(1), pytest.approx(0.5))
