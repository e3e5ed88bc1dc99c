"""How a run is placed: what it states, else which chains overlap; and weight updates: each lasts
while somebody works on it, moves its sources' bytes, and keeps its own phases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.timeline.placement import Composition
from rltrace.testing import Process, between, process, run_of, stating, turns
from rltrace.testing.inside.analysis import Syncs, summarize, syncs
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import Phase, Stage, SyncRole, Transport
from tests.analysis.made import not_none, rows, steps_of
from tests.analysis.walls.walled import summary_of

ROLLOUT, REWARD, REFERENCE = Stage.ROLLOUT, Stage.REWARD, Stage.REFERENCE
TRAIN, SYNC = Stage.TRAIN, Stage.SYNC


def composition_of(run: Run) -> Composition:
    return not_none(summarize(run, predict=False).composition)


@pytest.mark.parametrize(
    ("roles", "overlap_share", "placement"),
    [
        # Strictly on policy: training begins when all verdicts and reference log-probs are in.
        ([[(ROLLOUT, 0, 5)], [(REWARD, 1, 6)], [(REFERENCE, 2, 6.5)], [(TRAIN, 6.5, 10)]],
         0, "colocated"),
        ([[(ROLLOUT, 0, 6)], [(REFERENCE, 6, 10)], [(TRAIN, 0, 9)]], 1, "disaggregated"),
        # Beside generation of the next batch, but so is training.
        ([[(ROLLOUT, 0, 9)], [(REFERENCE, 0, 3)], [(TRAIN, 3, 10)]], 1, "disaggregated"),
        ([[(ROLLOUT, 0, 6)], [(REFERENCE, 3, 6), (TRAIN, 6, 10)]], 0.5, "disaggregated"),
        # Two ranks of a learner: one moves weights while the other still trains.
        ([[(TRAIN, 0, 6), (SYNC, 6, 9.5)], [(TRAIN, 0, 9), (SYNC, 9, 9.5)]],
         0, "placement unknown"),
    ],
    ids=["streamed with generation: the actors'", "beside training: the actors'",
         "before training: the learner's", "where training runs: the learner's", "no actors"],
)  # fmt: skip
def test_chains_that_overlap_show_the_placement(
    tmp_path: Path, roles: list[Any], overlap_share: float, placement: str
) -> None:
    """Of four steps of 10 s, in each of which the roles do these things."""
    made = [process("driver", *((("step", n), 10 * n, 10 * n + 10) for n in range(4)))]
    for role, spans in enumerate(roles):
        again = [(s, 10 * n + a, 10 * n + b) for n in range(4) for s, a, b in spans]
        made.append(process(f"role {role}", *again))
    found = composition_of(run_of(tmp_path, *made))
    assert (found.overlap_share, found.placement) == (pytest.approx(overlap_share), placement)


@pytest.mark.parametrize(
    ("knobs", "placement"),
    [
        ({}, "colocated"),
        ({"placement": "one-step-off"}, "one-step-off"),
        ({"placement": "async", "train_s": 6.0}, "async"),
    ],
)
def test_the_placement_is_found(synthetic: Any, knobs: dict[str, Any], placement: str) -> None:
    assert composition_of(synthetic(sigma=0.3, **knobs)[0]).placement == placement


def test_who_knows_the_placement_states_it(tmp_path: Path) -> None:
    """A job that is strictly on policy looks like a colocated one, whatever its placement."""
    driver, stated = process("driver", *turns(4, 4, 4)), {"placement": "disaggregated"}
    run = run_of(tmp_path / "seen", driver)
    assert composition_of(run).placement == "colocated"
    found = composition_of(stating(run, stated))
    assert (found.placement, found.placement_source) == ("disaggregated", "as the job states")
    found = composition_of(run_of(tmp_path / "set", driver, settings=stated))
    assert (found.placement, found.placement_source) == ("disaggregated", "the run's settings")


def syncs_of(path: Path, *processes: Process) -> Syncs:
    run = run_of(path, *processes)
    return not_none(syncs(run, steps_of(run)))


def works(made: Process, phase: Phase, start_s: float, end_s: float, lane: int = 1) -> None:
    made.span(between(start_s, end_s), "part", Stage.SYNC, -1, phase=phase, lane=lane)


def takes_part(made: Process, role: SyncRole, *updates: tuple[int, float, float]) -> None:
    version, start_s, end_s = (list(column) for column in zip(*updates, strict=True))
    rows(made, "syncs", version=version, start_s=start_s, end_s=end_s, role=role, bytes=9 * 10**9)


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
    parts_s = {name: spent.mean * 3 for name, spent in found.phases_s}
    assert parts_s == pytest.approx({"gather": 1.5, "transfer": 18, "load": 2})


def test_two_versions_on_the_way_to_one_worker_at_once(tmp_path: Path) -> None:
    worker = process("rollout")
    takes_part(worker, SyncRole.SINK, (1, 0, 10), (2, 4, 6))
    works(worker, Phase.TRANSFER, 0, 9, lane=2)
    works(worker, Phase.TRANSFER, 4, 6, lane=3)
    works(worker, Phase.LOAD, 9, 10)
    (transfer, transfer_s), (load, load_s) = syncs_of(tmp_path, worker).phases_s
    assert (transfer, load) == ("transfer", "load")
    assert transfer_s.largest == pytest.approx(9)
    assert (transfer_s.mean, load_s.mean) == (pytest.approx(5.5), pytest.approx(0.5))
    # A phase in a process without a part is of the update that is then at work.
    learner, relay = process("learner"), process("relay")
    takes_part(learner, SyncRole.SOURCE, (1, 0, 4), (2, 10, 14))
    works(relay, Phase.CONVERT, 11, 12)
    works(relay, Phase.CONVERT, 6, 8)  # nobody works on an update
    ((name, spent),) = syncs_of(tmp_path / "relay", learner, relay).phases_s
    assert (name, spent.largest, spent.mean) == ("convert", pytest.approx(1), pytest.approx(0.5))


def test_an_update_lasts_while_somebody_works_on_it(tmp_path: Path) -> None:
    """A learner publishes; 5 s later two workers load. The stage, the update and its phases are the
    time in which anybody worked, and phases of different processes are not counted twice."""
    learner, workers = process("learner"), [process("rollout", rank=rank) for rank in range(2)]
    for n in range(4):
        now = 20.0 * n
        learner.span(between(now, now + 20), "step", Stage.STEP, n)
        learner.span(between(now, now + 2), "publish", Stage.SYNC, n)
        works(learner, Phase.GATHER, now, now + 0.5)
        works(learner, Phase.TRANSFER, now + 0.5, now + 1.8)
        for late, worker in enumerate(workers):
            since = now + 7 + 0.5 * late
            worker.span(between(since, since + 2), "load", Stage.SYNC, n)
            works(worker, Phase.TRANSFER, since, since + 1)
            works(worker, Phase.LOAD, since + 1, since + 2)
    sinks = [(worker, SyncRole.SINK, 7 + 0.5 * late) for late, worker in enumerate(workers)]
    for made, role, since in [(learner, SyncRole.SOURCE, 0.0), *sinks]:
        takes_part(made, role, *((n + 1, 20 * n + since, 20 * n + since + 2) for n in range(4)))
    found = summary_of(tmp_path, learner, *workers)
    (stage,) = (row for row in found.stages if row.name == "sync")
    assert stage.tau_s.mean == pytest.approx(4.5)  # 2 + 2.5
    moved = syncs_of(tmp_path / "parts", learner, *workers)
    assert moved.update_s.mean == pytest.approx(4.5)
    assert moved.bytes_per_s == pytest.approx(2e9)
    parts = {name: spent.mean for name, spent in moved.phases_s}
    assert parts == pytest.approx({"gather": 0.5, "transfer": 1.3 + 1.5, "load": 1.0})
    for row in moved.participants:
        assert row.bytes_per_s == pytest.approx(row.bytes.mean / row.update_s.mean)


def test_bytes_of_an_update_are_its_sources_and_never_added_up_over_sinks(tmp_path: Path) -> None:
    sources = [process("learner", rank=rank) for rank in range(2)]
    sinks = [process("rollout", rank=rank) for rank in range(4)]
    for made, role, size, took_s in (
        *((source, SyncRole.SOURCE, 5 * 10**9, 1.0) for source in sources),
        *((sink, SyncRole.SINK, 10**10, 2.0) for sink in sinks),
    ):
        rows(made, "syncs", start_s=[1.0, 11.0], end_s=[1 + took_s, 11 + took_s], version=[1, 2],
             role=role, bytes=size, stall_ns=100_000_000, transport=Transport.NCCL)  # fmt: skip
    found = syncs_of(tmp_path, *sources, *sinks)
    assert (found.updates, found.transports) == (2, ("nccl",))
    assert found.update_s.mean == pytest.approx(2)
    assert found.bytes_per_update.mean == 10_000_000_000
    assert found.bytes_per_s == pytest.approx(5e9)
    by_role = {row.role: row for row in found.participants}
    assert by_role["source"].bytes_per_s == by_role["sink"].bytes_per_s == pytest.approx(5e9)
    assert by_role["sink"].processes == 4
    assert by_role["source"].stall_s.mean == pytest.approx(0.1)


def test_updates_of_the_synthetic_run_are_the_truth(synthetic: Any, tmp_path: Path) -> None:
    run, truth = synthetic()
    found = not_none(syncs(run, steps_of(run)))
    assert found.recorded_updates == truth.sync_count
    assert found.bytes_per_update.mean == truth.sync_bytes
    seconds = [step.tau_s["sync"] for step in truth.steps if not step.warmup]
    assert found.updates == len(seconds)
    assert found.update_s.mean == pytest.approx(sum(seconds) / len(seconds))
    assert found.bytes_per_s == pytest.approx(truth.sync_bytes * len(seconds) / sum(seconds))
    phases = dict(found.phases_s)
    assert list(phases) == ["gather", "convert", "transfer", "load", "visible"]
    assert sum(p.mean for p in phases.values()) == pytest.approx(found.update_s.mean)
    none = run_of(tmp_path, process("learner", (Stage.SYNC, 0, 1)))
    assert syncs(none, steps_of(none)) is None
