"""Walls that are stages: what they cost, where stages take turns and where chains overlap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.handmade_runs import process, rows
from rltrace.testing.inside.analysis import (
    ENV_REWARD,
    FRESHNESS,
    LEARNER,
    ROLLOUT,
    SPARSE_REWARD,
    TAIL,
    WEIGHTS,
    ProbedStage,
    Summary,
)
from rltrace.testing.inside.report import sentences
from rltrace.testing.inside.trace import Fate, Stage
from tests.analysis.probed import probed
from tests.analysis.walls.walled import (
    STEPS,
    first,
    in_steps,
    job,
    samples,
    summary_of,
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
    found = summary_of(tmp_path, job(**seconds))
    walls, verdict = walls_of(found), found.verdict
    assert first(found) == name
    assert walls[name].cost.share == pytest.approx(share)
    # Weak: nobody recorded whether the tokens are of any use.
    assert (verdict.confidence, verdict.co_walls) == ("weak", ())
    assert any("tail" in one for one in walls[ROLLOUT].missing)


def beside(actors_s: float, learner_s: float) -> list[Any]:
    """Steps of 10 s in which both chains begin together; the longer one takes all of them."""
    return [
        process("controller", *in_steps(10, (("step", 0), 0, 10))),
        process("rollout", *in_steps(10, (Stage.ROLLOUT, 0, actors_s))),
        process("learner", *in_steps(10, (Stage.TRAIN, 0, learner_s))),
    ]


def test_beside_another_chain_a_wall_costs_what_it_is_longer_by(tmp_path: Path) -> None:
    found = summary_of(tmp_path, *beside(10, 4))
    walls = walls_of(found)
    assert first(found) == ROLLOUT
    assert walls[ROLLOUT].cost.share == pytest.approx(0.6)
    assert walls[LEARNER].cost.share == 0


def ahead(linked: bool) -> list[Any]:
    """Steps of 10 s: the learner trains for 9 of them on samples of two steps before, so that it
    waits for none; generation runs through each pause of the learner's. `linked`: which sample was
    used in which step was recorded."""
    controller, _, learner = beside(10, 9)
    actors = rows(
        process("rollout"), "trajectories", start_s=[10 * n + 6.0 for n in range(STEPS)],
        end_s=[10 * n + 10.5 for n in range(STEPS)], trajectory=[n + 1 for n in range(STEPS)],
        response_tokens=[450] * STEPS,
    )  # fmt: skip
    if linked:
        used = range(STEPS - 2)
        rows(
            controller, "uses", time_s=[10 * n + 29.5 for n in used], step=[n + 2 for n in used],
            trajectory=[n + 1 for n in used], fate=[int(Fate.TRAINED)] * len(used),
        )  # fmt: skip
    return [controller, learner, actors]


def test_a_wall_costs_no_more_than_its_part_of_the_critical_path_and_what_the_other_chain_allows(
    tmp_path: Path,
) -> None:
    by_exposed = walls_of(summary_of(tmp_path / "exposed", *ahead(linked=False)))[ROLLOUT]
    assert by_exposed.cost.share == pytest.approx(0.1, abs=0.01)
    assert "by the critical path" not in by_exposed.because
    found = summary_of(tmp_path / "path", *ahead(linked=True))
    by_path, learner = walls_of(found)[ROLLOUT], walls_of(found)[LEARNER]
    assert by_path.cost.share == 0
    assert "by the critical path" in by_path.because
    assert found.critical_path is not None
    train = next(one for one in found.critical_path.shares if one.stage == "train")
    assert train.share == pytest.approx(0.9)
    alone_s = 5.5  # of the learner in a step, since generation takes 4.5
    assert learner.cost.share == pytest.approx(alone_s / 10, abs=0.01)
    assert learner.evidence[0].name == "train on the critical path"


def test_chains_of_the_same_length_are_balanced(tmp_path: Path) -> None:
    found = summary_of(tmp_path, *beside(10, 9.6), predict=True).verdict
    assert found.first is None
    assert not found.balanced  # what nobody recorded may be the wall
    assert all(wall in found.because for wall in (SPARSE_REWARD, FRESHNESS))
    assert found.fixes == ()


def test_stages_that_are_level_are_walls_together(tmp_path: Path) -> None:
    found = summary_of(tmp_path, job(rollout=5.1, train=4.9)).verdict
    assert [wall.name for wall in found.binding] == [ROLLOUT, LEARNER]


@pytest.mark.parametrize(
    ("lengths_s", "idle"),
    [([1.0] * 15 + [8.0], 7 * 15 / 16 / 8), ([8.0] * 16, 0)],
    ids=["one is long", "all are equal"],
)
def test_a_batch_that_drains_is_the_tails_and_not_decodings(
    tmp_path: Path, lengths_s: list[float], idle: float
) -> None:
    """Of 16 slots 15 are idle for 7 of 8 seconds: nothing is there to fill them."""
    made = samples(process("rollout"), lengths_s)
    found = summary_of(tmp_path, job(rollout=8, train=2), made)
    walls = walls_of(found)
    assert walls[TAIL].cost.share == pytest.approx(0.8 * idle, abs=0.03)
    assert walls[ROLLOUT].cost.share == pytest.approx(0.8 * (1 - idle), abs=0.03)
    assert first(found) == (TAIL if idle else ROLLOUT)


def test_pieces_of_an_update_are_named_with_what_each_takes(tmp_path: Path) -> None:
    sync = rows(
        process("learner"), "syncs", start_s=[10 * n + 6 for n in range(STEPS)],
        end_s=[10 * n + 10 for n in range(STEPS)], version=list(range(STEPS)), role=[0] * STEPS,
        bytes=[8_000_000] * STEPS, buckets=[400] * STEPS,
    )  # fmt: skip
    found = summary_of(tmp_path, job(rollout=3, train=3, sync=4), sync)
    told = {one.name: one.value for one in walls_of(found)[WEIGHTS].evidence}
    assert told["pieces (RPCs) of an update"] == 400
    assert told["for each piece (RPC)"] == pytest.approx(0.01)
    assert told["bytes of a piece"] == pytest.approx(20_000)


def test_what_is_said_to_be_seen_was_seen(tmp_path: Path) -> None:
    """Engines are full only where their slots are; nobody speaks of tools that were not seen."""
    for name, lengths_s in (("idle", [6.0, 1.0, 1.0, 1.0]), ("full", [6.0] * 4)):
        made = samples(job(rollout=6, train=4), lengths_s)
        symptom = walls_of(summary_of(tmp_path / name, made))[ROLLOUT].symptom
        assert ("full" in symptom) == (name == "full")
    slow = walls_of(summary_of(tmp_path / "slow", job(reward=6, train=4)))[ENV_REWARD]
    assert slow.symptom.startswith("rewards take long")


@pytest.mark.parametrize("verdict_s", [1.0, 0.0], ids=["timed", "events"])
def test_a_process_in_the_background_hides_no_wall(tmp_path: Path, verdict_s: float) -> None:
    """Stages take turns, for 3 s, 4 s and 3 s, beside an audit that is in `reward` all the time, or
    again and again; verdicts come with how long they took, or without."""
    all_the_time = [(Stage.REWARD, 0, 10 * STEPS)]
    again = [(Stage.REWARD, at, at + 1.9) for at in range(0, 10 * STEPS, 2)]
    ends = [10 * n + 4.0 + i for n in range(STEPS) for i in range(4)]
    for name, audit in (("without", []), ("with", all_the_time), ("again", again)):
        driver = uses(samples(job(rollout=3, reward=4, train=3), [3.0] * 4), 4)
        rows(
            driver, "rewards", start_s=[end - verdict_s for end in ends], end_s=ends,
            trajectory=[1000 * n + i + 1 for n in range(STEPS) for i in range(4)],
            value=[0.0, 1.0] * 2 * STEPS, outcome=[0] * len(ends),
        )  # fmt: skip
        found = summary_of(tmp_path / name, driver, process("auditor", *audit))
        walls = walls_of(found)
        costs = [walls[wall].cost.share for wall in (LEARNER, ENV_REWARD, ROLLOUT)]
        assert costs == pytest.approx([0.3, 0.4, 0.3], abs=0.01)
        assert [wall.name for wall in found.verdict.binding] == [ENV_REWARD]
        exposed = {row.name: row.exposed_s.mean for row in found.stages}
        assert exposed == pytest.approx({"rollout": 3.0, "reward": 4.0, "train": 3.0}, abs=0.05)
        assert found.composition is not None
        assert found.composition.placement == "colocated"
        told = [(one.targets, "in the background" in one.detail) for one in found.coverage.problems]
        assert told == [(("auditor",), True)] * bool(audit)


def measured(found: Summary) -> dict[str, ProbedStage]:
    return {} if found.probe is None else {s.name: s for s in found.probe.stages if s.tells}


def test_a_stage_that_runs_all_the_time_and_holds_nothing_up_is_no_wall(tmp_path: Path) -> None:
    found = probed(tmp_path, "train", beside=True)
    told = measured(found)
    assert told["rollout"].computed_share == pytest.approx(
        1, abs=0.02
    )  # the longer chain is charged
    assert told["rollout"].contradicts
    assert told["train"].contradicts
    assert told["train"].share.contains(0.9)
    wall = found.verdict.first
    assert wall is not None
    assert (wall.name, wall.confidence) == (LEARNER, "likely")
    assert wall.cost.share == pytest.approx(told["train"].share.value)
    assert wall.cost.half_width >= told["train"].share.half_width
    assert "train as measured by delaying it" in found.verdict.because
    assert LEARNER in next(sentences(found))


def test_what_the_probe_confirms_stands_as_it_was_computed(tmp_path: Path) -> None:
    found = probed(tmp_path, "both", beside=False)
    told = measured(found)
    assert not any(one.contradicts for one in told.values())
    wall = found.verdict.first
    assert wall is not None
    assert wall.name == ROLLOUT
    assert wall.cost.share == pytest.approx(told["rollout"].computed_share)
    assert "delaying" not in found.verdict.because


def test_doses_that_were_given_in_part_only_put_nothing_right(tmp_path: Path) -> None:
    found = probed(tmp_path, "train", beside=True, given=0.4)
    assert found.probe is not None
    assert "train" not in measured(found)


def test_without_a_probe_nothing_is_measured(tmp_path: Path) -> None:
    found = summary_of(tmp_path, job(train=10))
    assert measured(found) == {}


# --- a loop whose steps are of one lane, beside work in the background

HIDDEN = [("reward", 0, 3), ("train", 3, 7), ("sync", 7, 10)]
WAITS = [("reward", 2, 4), ("train", 4, 8), ("sync", 8, 10)]
JOINED = [("train", 0, 3), ("reward", 6, 9), ("sync", 9, 10)]


def looped(own: list[Any], *background: list[Any], apart: bool = False) -> list[Any]:
    """Steps of 10 s in one lane, with spans of each step in `background` lanes: of the process that
    takes the steps, or `apart`, in others."""
    beside = [[(*span, 7 + n) for span in spans] for n, spans in enumerate(background)]
    there = [span for spans in beside for span in spans]
    main = in_steps(10, (("step", 0), 0, 10), *own, *([] if apart else there))
    others = [process("worker", *in_steps(10, *spans), rank=n) for n, spans in enumerate(beside)]
    return [process("trainer", *main), *(others if apart else [])]


@pytest.mark.parametrize("apart", [False, True], ids=["threads", "processes"])
@pytest.mark.parametrize(
    ("own", "background", "costs"),
    [
        # Without any of its stages the lane of the steps takes no less than the background.
        pytest.param(HIDDEN, [[("rollout", 0, 8)]], [0.0, 0.2, 0.2, 0.2], id="hidden"),
        pytest.param(HIDDEN, [[("rollout", 0, 8)], [("rollout", 1, 6)]], [0.0, 0.2, 0.2, 0.2],
                     id="two in the background"),
        pytest.param(HIDDEN, [[("rollout", 0, 10)]], [0.0] * 4, id="level"),
        pytest.param(WAITS, [[("rollout", 0, 10)]], [0.2, 0.0, 0.0, 0.0], id="it waits"),
        pytest.param([("wait", 0, 2), *WAITS], [[("rollout", 0, 10)]], [0.2, 0.0, 0.0, 0.0],
                     id="it says that it waits"),
        pytest.param(JOINED, [[("rollout", 0, 6)]], [0.3, 0.3, 0.0, 0.1], id="it waits within"),
        pytest.param([("rollout", 0, 4), ("reward", 4, 9)], [[("train", 0, 8)]],
                     [0.1, 0.1, 0.0, None], id="training in the background"),
    ],
)  # fmt: skip
def test_what_the_lane_of_the_steps_does_adds_up(
    tmp_path: Path, own: list[Any], background: list[Any], costs: list[float | None], apart: bool
) -> None:
    """Costs of rollout, rewards, training and weights: by how much a step would be shorter."""
    found = summary_of(tmp_path, *looped(own, *background, apart=apart))
    walls = walls_of(found)
    for name, cost in zip((ROLLOUT, ENV_REWARD, LEARNER, WEIGHTS), costs, strict=True):
        if cost is not None:
            assert walls[name].cost.share == pytest.approx(cost, abs=0.01), name
            assert walls[name].cost.low - 0.01 <= cost <= walls[name].cost.high + 0.01, name
            # How many of several in the background a step needs is unknown.
            if not apart and len(background) == 1:
                assert walls[name].cost.high <= cost + 0.01, name
    exposed_s = sum(row.exposed_s.mean for row in found.stages if row.name != "wait")
    assert exposed_s <= 10.001


def test_where_the_lane_of_the_steps_is_unknown_nothing_is_surer(tmp_path: Path) -> None:
    unknown = in_steps(10, (("step", 0), 0, 10, -1), *HIDDEN, ("rollout", 0, 8, 7))
    found = summary_of(tmp_path, process("trainer", *unknown))
    walls = walls_of(found)
    for name, cost in ((ROLLOUT, 0.0), (ENV_REWARD, 0.2), (LEARNER, 0.2)):
        assert walls[name].cost.low <= cost <= walls[name].cost.high + 0.01, name
        assert walls[name].confidence == "weak"


def test_weights_that_others_take_meanwhile_are_no_part_of_what_the_lane_adds_up(
    tmp_path: Path,
) -> None:
    """Generation waits for them: without training it would still take its 6 s, and they theirs."""
    own, takes = [("train", 0, 8), ("sync", 8, 10)], [("rollout", 0, 6), ("sync", 8, 10)]
    walls = walls_of(summary_of(tmp_path, *looped(own, takes, apart=True)))
    costs = [walls[name].cost.share for name in (ROLLOUT, LEARNER, WEIGHTS)]
    assert costs == pytest.approx([0.0, 0.2, 0.2], abs=0.01)
