"""Walls of jobs with queues between their processes, and of agents in one loop, held against the
same jobs played without the stage in question."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.handmade_runs import process, rows
from rltrace.testing.inside.analysis import (
    ENV_REWARD,
    LEARNER,
    LIKELY,
    ROLLOUT,
    TAIL,
    WEIGHTS,
    Summary,
    summarize,
)
from rltrace.testing.inside.trace import Fate, Stage, SyncRole
from rltrace.testing.run_files import Process
from tests.analysis.walls.queued import Queued, cost, of_own_loop, processes
from tests.analysis.walls.walled import first, summary_of, walls_of

STAGE_OF = {
    ROLLOUT: Stage.ROLLOUT,
    ENV_REWARD: Stage.REWARD,
    LEARNER: Stage.TRAIN,
    WEIGHTS: Stage.SYNC,
}

BINDING = {
    "weights": (Queued(sync_s=4), WEIGHTS),
    "weights, a little": (Queued(sync_s=2.2), WEIGHTS),
    "learner": (Queued(train_s=4), LEARNER),
    "learner, many samples at once": (Queued(train_s=4, at_once=4), LEARNER),
    "judges": (Queued(judge_s=2, generate_s=0.3), ENV_REWARD),
    "many judges": (Queued(judge_s=2, judges=8, generate_s=0.3), ENV_REWARD),
    "generators": (Queued(generate_s=2), ROLLOUT),
    "generators of many samples at once": (Queued(generate_s=2, at_once=4), ROLLOUT),
}


def holds(found: Summary, job: Queued, name: str) -> None:
    """The said interval has the true cost, and what is said is near it."""
    true, said = cost(job, STAGE_OF[name]), walls_of(found)[name].cost
    assert said.low - 0.01 <= true <= said.high + 0.01, (name, true, said)
    assert said.share == pytest.approx(true, abs=0.1), name


def may_cost(found: Summary, job: Queued, *names: str) -> None:
    """The said intervals have the true costs, however wide they are."""
    for name in names:
        true, said = cost(job, STAGE_OF[name]), walls_of(found)[name].cost
        assert said.low - 0.02 <= true <= said.high + 0.02, (name, true, said)


def own_loop(path: Path, *made: Process) -> Summary:
    """The summary of a run of these in a loop of the user's own, which has no adapter."""
    return summarize(of_own_loop(path, *made), predict=False)


@pytest.mark.parametrize("binding", BINDING)
def test_what_a_stage_costs_is_what_a_step_loses_without_it(tmp_path: Path, binding: str) -> None:
    job, name = BINDING[binding]
    found = summary_of(tmp_path, *processes(job))
    assert first(found) == name
    assert "by a replay" in found.verdict.because
    for wall in STAGE_OF:
        holds(found, job, wall)
    if binding == "weights":  # what falls away is less than the part of the path: half is left
        assert found.critical_path is not None
        (sync,) = [share for share in found.critical_path.shares if share.stage == "sync"]
        assert sync.share > 0.85
        assert walls_of(found)[WEIGHTS].cost.high < 0.65


def test_where_all_are_level_nothing_binds(tmp_path: Path) -> None:
    """Each takes 2 s a step: without one of them the others still do."""
    job = Queued(judge_s=0.5, train_s=1.5, sync_s=0.5)
    found = summary_of(tmp_path, *processes(job))
    assert found.verdict.binding == ()
    for wall in STAGE_OF:
        holds(found, job, wall)


def test_queues_with_little_room_are_queues(tmp_path: Path) -> None:
    """Each sample is trained on by the version after its own, as if a step began its generation;
    but generation goes on as the weights are sent."""
    job = Queued(sync_s=4, room=2)
    found = summary_of(tmp_path, *processes(job))
    assert first(found) == WEIGHTS
    holds(found, job, WEIGHTS)
    holds(found, job, LEARNER)


def test_roles_that_wait_for_each_other_in_turn_have_wide_intervals(tmp_path: Path) -> None:
    """A batch is more than there is room for: while weights are sent generators stand still, and
    the learner waits for the rest of the batch after that. No role sets the pace alone."""
    job = Queued(sync_s=4, room=2, batch=16)
    found = summary_of(tmp_path, *processes(job))
    walls = walls_of(found)
    may_cost(found, job, WEIGHTS, ROLLOUT)
    assert walls[WEIGHTS].confidence == walls[ROLLOUT].confidence == "weak"
    assert found.verdict.confidence == "weak"


@pytest.mark.parametrize("dropped", [False, True], ids=["queued", "dropped"])
def test_samples_that_fill_queues_are_no_work_for_steps_and_dropped_ones_are(
    tmp_path: Path, dropped: bool
) -> None:
    """A run that ends with full queues made more samples than its steps needed. Of samples that no
    step ever used, though later ones were, the steps needed as many: they have to be made."""
    job = Queued(train_s=4, steps=12)
    made = processes(job)
    if dropped:
        _drop_half(made[0])
    found = summary_of(tmp_path, *made)
    without = 1 - 8 * 0.5 / 2 / 4.05
    assert walls_of(found)[LEARNER].cost.share == pytest.approx(without, abs=0.05)


def _drop_half(learner: Process) -> None:
    """Every other sample of a batch is not trained on, and nobody says so."""
    (uses,) = learner.columns.pop("uses")
    rows(learner, "uses", **{name: list(values[::2]) for name, values in uses.items()})


def test_an_audit_beside_the_judges_hides_no_wall(tmp_path: Path) -> None:
    job, name = BINDING["learner"]
    audit = Process("auditor", 0, 0)
    made = processes(job)
    begun, ended = made[0].spans[0][0], made[0].spans[-1][1]
    audit.span((begun, ended), "audit", Stage.REWARD, -1)
    found = summary_of(tmp_path, *made, audit)
    assert walls_of(found)[name].cost.share == pytest.approx(cost(job, STAGE_OF[name]), abs=0.05)


def test_who_writes_verdicts_down_is_not_who_judges(tmp_path: Path) -> None:
    """The learner takes a millisecond for each; the judges have spans and no rows."""
    job, name = BINDING["judges"]
    learner, *others = processes(job)
    for judge in others:
        for columns in judge.columns.pop("rewards", []):
            ends = columns["end_ns"]
            learner.rows("rewards", **{**columns, "start_ns": ends, "end_ns": ends + 10**6})
    found = summary_of(tmp_path, learner, *others)
    assert first(found) == name
    for wall in STAGE_OF:
        holds(found, job, wall)


RARE = Queued(generate_s=3, generators=1, sync_s=1.5, batch=1, room=4, steps=14)
SENDS = {
    "one sample at once": Queued(sync_s=3),
    "many samples at once": Queued(sync_s=3, at_once=4, generate_s=2),
    "few, one at once": RARE,
    "few, two at once": replace(RARE, generate_s=6, at_once=2),
}


@pytest.mark.parametrize("pauses", [False, True], ids=["goes on", "pauses"])
@pytest.mark.parametrize("sends", SENDS)
def test_samples_that_end_while_weights_are_sent_or_do_not_tell_whether_generation_stood_still(
    tmp_path: Path, sends: str, pauses: bool
) -> None:
    """Only the learner records updates. Where no more than a few samples would have ended while
    they are sent nobody can tell."""
    job = replace(SENDS[sends], pauses=pauses)
    found = own_loop(tmp_path, *processes(job))
    walls = walls_of(found)
    if not sends.startswith("few"):
        for name in (WEIGHTS, ROLLOUT):
            holds(found, job, name)
        assert "stood still" not in found.verdict.because
        return
    assert walls[WEIGHTS].confidence == walls[ROLLOUT].confidence == found.verdict.confidence
    assert found.verdict.confidence == "weak"
    assert any('role="sink"' in told for told in found.verdict.would_tell)


def test_where_updates_are_recorded_where_weights_are_taken_it_is_known(tmp_path: Path) -> None:
    job, name = BINDING["weights"]
    made = processes(job)
    generator = next(one for one in made if one.role == "generator")
    (sent,) = made[0].columns["syncs"]
    generator.rows("syncs", **{**sent, "role": 0 * sent["role"] + int(SyncRole.SINK)})
    found = own_loop(tmp_path, *made)
    assert first(found) == name
    assert "stood still" not in found.verdict.because
    holds(found, job, name)


def test_updates_that_take_next_to_no_time_leave_nothing_open(tmp_path: Path) -> None:
    """However generation takes them."""
    job = Queued(generate_s=2, pauses=True)
    found = own_loop(tmp_path, *processes(job))
    assert "stood still" not in found.verdict.because
    holds(found, job, ROLLOUT)
    holds(found, job, WEIGHTS)


AGENTS = Queued(
    generate_s=6, tool_s=12, judge_s=1, train_s=4, sync_s=1, generators=1, at_once=16, judges=16,
    batch=16, ahead=0, steps=12, jitter=0.8, tool_jitter=0.8, judge_jitter=0, keeps=False,
    early=True,
)  # fmt: skip
JOBS = {
    "tools": AGENTS,
    "verdicts": replace(AGENTS, generate_s=14, tool_s=0, judge_s=12, jitter=0.5),
    "few places": replace(AGENTS, generate_s=12, tool_s=6, at_once=4, early=False),
}


def traced(path: Path, job: Queued) -> Summary:
    """The summary of its run: one process, in no stage while it waits."""
    made = Process("driver", 0, 0)
    for one in processes(job):
        made.spans += [span for span in one.spans if span[3] != Stage.WAIT]
        for table, columns in one.columns.items():
            made.columns.setdefault(table, []).extend(columns)
    return summary_of(path, made)


def truth(job: Queued) -> dict[str, float]:
    """What generation, and tools with verdicts, really cost."""
    tools = (Stage.ENV, Stage.REWARD) if job.tool_s else (Stage.REWARD,)
    return {ROLLOUT: cost(job, Stage.ROLLOUT), ENV_REWARD: cost(job, *tools)}


@pytest.mark.parametrize("name", JOBS)
def test_a_cost_is_held_by_its_interval_and_a_wide_one_is_weak(tmp_path: Path, name: str) -> None:
    found, true = traced(tmp_path, JOBS[name]), truth(JOBS[name])
    walls = walls_of(found)
    tools, tail, decoding = walls[ENV_REWARD], walls[TAIL], walls[ROLLOUT]
    assert tools.cost.low - 0.01 <= true[ENV_REWARD] <= tools.cost.high + 0.01
    low, high = (getattr(decoding.cost, b) + getattr(tail.cost, b) for b in ("low", "high"))
    assert low <= true[ROLLOUT] <= high
    generation = decoding.cost.share + tail.cost.share
    assert abs(generation - true[ROLLOUT]) < 0.1 or decoding.confidence != LIKELY
    assert abs(tools.cost.share - true[ENV_REWARD]) < 0.1 or tools.confidence != LIKELY
    assert max(true, key=lambda wall: true[wall]) in {wall.name for wall in found.verdict.binding}
    if name == "verdicts":  # by the exposed rule they would have all the time in which both ran
        assert generation == pytest.approx(true[ROLLOUT], abs=0.06)
        assert tools.cost.share == pytest.approx(true[ENV_REWARD], abs=0.02)
        assert "replay" in tools.because


def evaluating(rollout_s: float, train_s: float = 0.5, eval_s: float = 2.0) -> Process:
    """A thread generates batches, with room for three, and evaluates before each fifth; another
    thread of the process trains."""
    spans: list[tuple[Any, ...]] = []
    made: list[tuple[int, int, float, float, float]] = []
    at_s, trained_s, taken = 0.0, 0.0, [0.0, 0.0, 0.0]
    for n in range(40):
        if n % 5 == 4:
            spans.append((Stage.EVAL, at_s, at_s + eval_s, 2))
            at_s += eval_s
        begin_s, at_s = at_s, at_s + rollout_s
        spans.append((Stage.ROLLOUT, begin_s, at_s, 2))
        before_s, taken_s = trained_s, max(at_s, trained_s)
        trained_s = taken_s + train_s
        spans += [(("step", n), before_s, trained_s), (Stage.TRAIN, taken_s, trained_s)]
        version = sum(step[2] <= begin_s for step in spans if isinstance(step[0], tuple))
        made += [(n, version, begin_s, at_s, trained_s)] * 8
        taken.append(taken_s)
        at_s = max(at_s, taken[n])
    of_step, versions, begins, ends, uses = zip(*made, strict=True)
    driver, ids = process("driver", *spans), range(1, len(made) + 1)
    tokens = [round(1000 * (end - begin)) for _, _, begin, end, _ in made]
    rows(driver, "trajectories", trajectory=ids, group=[i // 4 + 1 for i in range(len(made))],
         start_s=begins, end_s=ends, first_version=versions, last_version=versions,
         response_tokens=tokens)  # fmt: skip
    rows(driver, "uses", trajectory=ids, time_s=[s - 1e-3 for s in uses], step=of_step,
         version=[n + 1 for n in of_step], fate=Fate.TRAINED, tokens=tokens)  # fmt: skip
    return driver


@pytest.mark.parametrize("train_s", [0.5, 0.9, 1.2])
def test_who_evaluates_generates_nothing_meanwhile(tmp_path: Path, train_s: float) -> None:
    """While another thread trains: that is no work of the learner's."""
    found = own_loop(tmp_path / "as it is", evaluating(1.0, train_s))
    without = own_loop(tmp_path / "without", evaluating(1e-4, train_s))
    untrained = own_loop(tmp_path / "untrained", evaluating(1.0, 1e-4))
    now_s = found.steps.step_s.mean
    for name, other in ((ROLLOUT, without), (LEARNER, untrained)):
        said = walls_of(found)[name].cost
        assert said.share == pytest.approx(1 - other.steps.step_s.mean / now_s, abs=0.12), name
    assert first(found) == ROLLOUT
