"""Walls that are stages: what they cost, where stages take turns and where chains overlap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.analysis import ENV_REWARD, LEARNER, ROLLOUT, TAIL, WEIGHTS
from rltrace.testing.inside.trace import Fate, Stage
from rltrace.testing.made import process, rows
from tests.analysis.walls.walled import (
    STEP_S,
    STEPS,
    job,
    samples,
    summary_of,
    turns,
    uses,
    walls_of,
)


@pytest.mark.parametrize(
    ("seconds", "name", "share"),
    [
        ({"rollout": 7, "train": 3}, ROLLOUT, 0.7),
        ({"rollout": 2, "env": 5, "train": 3}, ENV_REWARD, 0.5),
        ({"rollout": 2, "reward": 6, "train": 2}, ENV_REWARD, 0.6),
        ({"rollout": 2, "reference": 3, "train": 5}, LEARNER, 0.8),
        ({"rollout": 2, "train": 2, "sync": 4, "switch": 2}, WEIGHTS, 0.6),
    ],
)
def test_in_turns_a_wall_costs_its_part_of_the_step(
    tmp_path: Path, seconds: dict[str, float], name: str, share: float
) -> None:
    found = summary_of(tmp_path, job(**seconds)).verdict
    assert found.first is not None
    assert found.first.name == name
    assert found.first.cost.share == pytest.approx(share)
    assert found.confidence == "likely"
    assert found.co_walls == ()


def beside(actors_s: float, learner_s: float) -> list[Any]:
    """Steps of 10 s in which both chains begin together; the longer one takes all of them."""
    controller = process("controller", *((("step", n), 10 * n, 10 * n + 10) for n in range(STEPS)))
    generates = [(Stage.ROLLOUT, 10 * n, 10 * n + actors_s) for n in range(STEPS)]
    trains = [(Stage.TRAIN, 10 * n, 10 * n + learner_s) for n in range(STEPS)]
    return [controller, process("rollout", *generates), process("learner", *trains)]


def test_beside_another_chain_a_wall_costs_what_it_is_longer_by(tmp_path: Path) -> None:
    found = summary_of(tmp_path, *beside(10, 4))
    walls = walls_of(found)
    assert found.verdict.first is walls[ROLLOUT] or found.verdict.first == walls[ROLLOUT]
    assert walls[ROLLOUT].cost.share == pytest.approx(0.6)
    assert walls[LEARNER].cost.share == 0


def ahead(linked: bool) -> list[Any]:
    """Steps of 10 s: the learner trains for 9 of them on samples of two steps before, so that it
    waits for none; generation runs through each pause of the learner's. `linked`: which sample was
    used in which step was recorded."""
    controller, learner, actors = beside(10, 9)
    actors = rows(
        process("rollout"),
        "trajectories",
        start_s=[10 * n + 6.0 for n in range(STEPS)],
        end_s=[10 * n + 10.5 for n in range(STEPS)],
        trajectory=[n + 1 for n in range(STEPS)],
        response_tokens=[450] * STEPS,
    )
    learner = process("learner", *((Stage.TRAIN, 10 * n, 10 * n + 9) for n in range(STEPS)))
    if linked:
        used = range(STEPS - 2)
        rows(
            controller,
            "uses",
            time_s=[10 * n + 29.5 for n in used],
            trajectory=[n + 1 for n in used],
            step=[n + 2 for n in used],
            fate=[int(Fate.TRAINED)] * len(used),
        )
    return [controller, learner, actors]


def test_what_is_not_on_the_critical_path_costs_nothing(tmp_path: Path) -> None:
    by_exposed = walls_of(summary_of(tmp_path / "exposed", *ahead(linked=False)))[ROLLOUT]
    by_path = walls_of(summary_of(tmp_path / "path", *ahead(linked=True)))[ROLLOUT]
    assert by_exposed.cost.share == pytest.approx(0.1, abs=0.01)
    assert by_path.cost.share == 0
    assert "by the critical path" in by_path.because
    assert "by the critical path" not in by_exposed.because


def test_what_is_on_the_critical_path_costs_no_more_than_the_other_chain_allows(
    tmp_path: Path,
) -> None:
    found = summary_of(tmp_path, *ahead(linked=True))
    learner = walls_of(found)[LEARNER]
    assert found.critical_path is not None
    train = next(one for one in found.critical_path.shares if one.stage == "train")
    assert train.share == pytest.approx(0.9)
    alone_s = 5.5  # of the learner in a step, since generation takes 4.5
    assert learner.cost.share == pytest.approx(alone_s / 10, abs=0.01)
    assert learner.evidence[0].name == "train on the critical path"


def test_chains_of_the_same_length_are_balanced(tmp_path: Path) -> None:
    found = summary_of(tmp_path, *beside(10, 9.6), predict=True).verdict
    assert found.balanced
    assert found.first is None
    assert found.fixes == ()


def test_stages_that_are_level_are_walls_together(tmp_path: Path) -> None:
    found = summary_of(tmp_path, job(rollout=5.1, train=4.9)).verdict
    assert [wall.name for wall in found.binding] == [ROLLOUT, LEARNER]
    assert found.confidence == "likely"


def test_a_batch_that_drains_is_the_tails_and_not_decodings(tmp_path: Path) -> None:
    """Of 16 slots 15 are idle for 7 of 8 seconds: nothing is there to fill them."""
    long = samples(process("rollout"), [1.0] * 15 + [8.0])
    walls = walls_of(summary_of(tmp_path, job(rollout=8, train=2), long))
    idle = 7 * 15 / 16 / 8
    assert walls[TAIL].cost.share == pytest.approx(0.8 * idle, abs=0.03)
    assert walls[ROLLOUT].cost.share == pytest.approx(0.8 * (1 - idle), abs=0.03)


def test_equal_lengths_have_no_tail(tmp_path: Path) -> None:
    found = summary_of(tmp_path, job(rollout=8, train=2), samples(process("rollout"), [8.0] * 16))
    assert walls_of(found)[TAIL].cost.share < 0.03
    assert found.verdict.first is not None
    assert found.verdict.first.name == ROLLOUT


def test_without_trajectories_the_tail_cannot_be_told(tmp_path: Path) -> None:
    walls = walls_of(summary_of(tmp_path, job(rollout=8, train=2)))
    assert walls[TAIL].confidence == "cannot tell"
    assert walls[TAIL].missing
    assert any("tail" in one for one in walls[ROLLOUT].missing)


def test_pieces_of_an_update_are_named_with_what_each_takes(tmp_path: Path) -> None:
    sync = rows(
        process("learner"),
        "syncs",
        start_s=[10 * n + 6 for n in range(STEPS)],
        end_s=[10 * n + 10 for n in range(STEPS)],
        version=list(range(STEPS)),
        role=[0] * STEPS,
        bytes=[8_000_000] * STEPS,
        buckets=[400] * STEPS,
    )
    found = summary_of(tmp_path, job(rollout=3, train=3, sync=4), sync)
    told = {one.name: one.value for one in walls_of(found)[WEIGHTS].evidence}
    assert told["pieces (RPCs) of an update"] == 400
    assert told["for each piece (RPC)"] == pytest.approx(0.01)
    assert told["bytes of a piece"] == pytest.approx(20_000)
    reload = found.verdict.lints[1]
    assert reload.verdict == "found"
    assert "400 pieces" in reload.says


def test_what_is_said_to_be_seen_was_seen(tmp_path: Path) -> None:
    """Engines are full only where their slots are; nobody speaks of tools that were not seen."""
    idle = samples(job(rollout=6, train=4), [6.0, 1.0, 1.0, 1.0])
    assert "full" not in walls_of(summary_of(tmp_path / "idle", idle))[ROLLOUT].symptom
    full = samples(job(rollout=6, train=4), [6.0, 6.0, 6.0, 6.0])
    assert "full" in walls_of(summary_of(tmp_path / "full", full))[ROLLOUT].symptom
    slow = walls_of(summary_of(tmp_path / "slow", job(reward=6, train=4)))[ENV_REWARD]
    assert slow.symptom.startswith("verdicts take long")


def test_verdicts_beside_generation_cost_what_a_step_loses_without_them(tmp_path: Path) -> None:
    """Verdicts of 3 s follow samples that end after 2 to 5 s: without them training begins after 5
    and not after 8. By the exposed rule they would have all the time beside generation, too."""
    ends_s = [2.0, 3.0, 4.0, 5.0]
    spans = turns(rollout=5)
    spans += [(Stage.TRAIN, n * STEP_S + 8, n * STEP_S + 10) for n in range(STEPS)]
    driver = samples(process("driver", *spans), ends_s)
    judge = rows(
        process("judge"),
        "rewards",
        start_s=[n * STEP_S + end_s for n in range(STEPS) for end_s in ends_s],
        end_s=[n * STEP_S + end_s + 3 for n in range(STEPS) for end_s in ends_s],
        trajectory=[1000 * n + i + 1 for n in range(STEPS) for i in range(len(ends_s))],
    )
    found = summary_of(tmp_path, driver, judge)
    wall = walls_of(found)[ENV_REWARD]
    (row,) = [row for row in found.stages if row.name == "reward"]
    assert row.exposed_s.mean == pytest.approx(6)
    assert wall.cost.share == pytest.approx(0.3, abs=0.03)
    assert "replay" in wall.because


@pytest.mark.parametrize("verdict_s", [1.0, 0.0], ids=["timed", "events"])
def test_a_process_in_the_background_hides_no_wall(tmp_path: Path, verdict_s: float) -> None:
    """Stages take turns, for 3 s, 4 s and 3 s, beside an audit that is in `reward` all the time, or
    again and again; verdicts come with how long they took, or without."""
    costs, found = {}, {}
    all_the_time = [(Stage.REWARD, 0, 10 * STEPS)]
    again = [(Stage.REWARD, at, at + 1.9) for at in range(0, 10 * STEPS, 2)]
    for name, audit in (("without", []), ("with", all_the_time), ("again", again)):
        driver = samples(job(rollout=3, reward=4, train=3), [3.0, 3.0, 3.0, 3.0])
        begins = [10 * n + 3.0 + i for n in range(STEPS) for i in range(4)]
        rows(
            uses(driver, 4),
            "rewards",
            start_s=[begin + 1 - verdict_s for begin in begins],
            end_s=[begin + 1 for begin in begins],
            trajectory=[1000 * n + i + 1 for n in range(STEPS) for i in range(4)],
            value=[float(i % 2) for _ in range(STEPS) for i in range(4)],
            outcome=[0] * len(begins),
        )
        found[name] = summary_of(tmp_path / name, driver, process("auditor", *audit))
        walls = walls_of(found[name])
        costs[name] = {wall: walls[wall].cost.share for wall in (LEARNER, ENV_REWARD, ROLLOUT)}
    assert costs["without"] == pytest.approx(
        {LEARNER: 0.3, ENV_REWARD: 0.4, ROLLOUT: 0.3}, abs=0.01
    )
    for name in ("with", "again"):
        assert costs[name] == pytest.approx(costs["without"], abs=0.01)
        assert [wall.name for wall in found[name].verdict.binding] == [ENV_REWARD]
        exposed = {row.name: row.exposed_s.mean for row in found[name].stages}
        assert exposed == pytest.approx({"rollout": 3.0, "reward": 4.0, "train": 3.0}, abs=0.05)
        composed = found[name].composition
        assert composed is not None
        assert composed.placement == "colocated"
        (told,) = found[name].coverage.problems
        assert told.targets == ("auditor",)
        assert "in the background" in told.detail


def test_what_generation_costs_without_its_tail_is_said(tmp_path: Path) -> None:
    """With the tail taken off it is not what would fall away without any generation."""
    tailed = summary_of(tmp_path / "tailed", samples(job(rollout=8, train=2), [8.0, 7.0, 6.0, 5.0]))
    unseen = summary_of(tmp_path / "unseen", job(rollout=8, train=2))
    told, whole = (
        next(wall.because for wall in one.verdict.walls if wall.name == ROLLOUT)
        for one in (tailed, unseen)
    )
    assert told.endswith("but the time in which a batch drains, which is the long tail's")
    assert whole.endswith("if rollout took no time")
