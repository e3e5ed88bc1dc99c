"""Trainings that follow each other in a run are its phases, and work that is done again is none."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.analysis.timeline.analysed_part import StepSelection, find_phases, narrow
from rltrace.testing import Process, process, report_of, run_of
from rltrace.testing.handmade_runs import stating
from rltrace.testing.inside.analysis import CANNOT_TELL, RunAnalysis, samples_of, summarize
from rltrace.testing.inside.trace import Stage, WrongUsage
from tests.analysis.made import rows

LOOP = """
import sys, time, rltrace

def supervised(steps):
    for n in range(steps):
        with rltrace.step(n), rltrace.span("train"):
            time.sleep(0.1)

def reinforced(steps, of, fails=-1, worth=1.0):
    for n in range(steps):
        with rltrace.step(n):
            with rltrace.span("rollout"):
                for i in range(2):
                    where = {"group": f"{of}{n}", "version": n}
                    with rltrace.trajectory(f"{of}{n}-{i}", **where) as sample:
                        time.sleep(0.003)
                        sample.finish("stop", response_tokens=5)
                    rltrace.reward(f"{of}{n}-{i}", worth * i)
            if n == fails:
                raise ValueError("no more")
            with rltrace.span("train"):
                time.sleep(0.005)
            for i in range(2):
                rltrace.use(f"{of}{n}-{i}", "trained", tokens=5, version=n)
            with rltrace.weight_update(n + 1, bytes=9):
                pass

exec(sys.argv[1])
"""


def traced(path: Path, *scripts: str) -> dict[str, Any]:
    """The report of a run in which these were run one after the other, each a process."""
    file = path / "loop.py"
    file.write_text(LOOP)
    each = " ; ".join(f"{sys.executable} {file} '{script}'" for script in scripts)
    wrap = [sys.executable, "-m", "rltrace", "wrap", "--out", str(path / "run"), "--"]
    subprocess.run([*wrap, "sh", "-c", each], cwd=path, check=False, capture_output=True)
    return report_of(rltrace.open_run(path / "run"))


@pytest.mark.parametrize(
    "scripts",
    [('supervised(4); reinforced(5, "b")',), ("supervised(4)", 'reinforced(5, "b")')],
    ids=["in one process", "in two"],
)
def test_figures_are_of_the_last_training_of_several(
    tmp_path: Path, scripts: tuple[str, ...]
) -> None:
    found = traced(tmp_path, *scripts)
    phases = [(one["number"], one["steps"]) for one in found["steps"]["phases"]]
    assert (phases, found["run"]["phase"]) == ([(1, 4), (2, 5)], 2)
    assert (found["steps"]["complete"], found["steps"]["repeated"]) == (5, 0)
    assert found["goodput"]["generated_samples"] == 10
    assert found["run"]["no_rollout"] == ""
    assert found["health"]["ok"]
    run = rltrace.open_run(tmp_path / "run")
    narrow(run, StepSelection(phase=1))
    before = report_of(run)
    assert (before["steps"]["complete"], before["run"]["phase"]) == (4, 1)
    assert before["run"]["no_rollout"] == "training"
    assert (before["goodput"], before["verdict"]["walls"]) == (None, [])


def test_a_job_that_failed_and_began_again_did_its_steps_again(tmp_path: Path) -> None:
    found = traced(tmp_path, 'reinforced(5, "a", fails=3)', 'reinforced(6, "a")')
    assert [one["steps"] for one in found["steps"]["phases"]] == [6]
    assert (found["run"]["phase"], found["steps"]["repeated"]) == (0, 3)
    # The ids, the versions and the process of the first try are not those of the second.
    assert (found["goodput"]["generated_samples"], found["syncs"]["updates"]) == (20, 9)
    assert [one["kind"] for one in found["health"]["alarms"]] == ["restart", "failed process"]
    assert [pool["devices"] for pool in found["cascade"]["pools"]] == [1]
    run = rltrace.open_run(tmp_path / "run")
    assert run.sql("SELECT count(*), min(lag), max(lag) FROM lags").fetchall() == [(18, 0, 0)]
    groups = 'SELECT count(*) FROM grouped_trajectories GROUP BY "group"'
    assert run.sql(groups).fetchall() == [(2,)] * 10


@pytest.mark.parametrize("again", ["; ", "' '"], ids=["in one process", "in two"])
def test_ids_that_come_again_in_another_training_are_of_other_samples(
    tmp_path: Path, again: str
) -> None:
    first, second = 'reinforced(3, "a", worth=9.0)', 'reinforced(4, "a")'
    script = [first + again + second] if again == "; " else [first, second]
    found = traced(tmp_path, *script)
    assert (found["run"]["phase"], found["goodput"]["generated_samples"]) == (2, 8)
    assert [(one["reward"], one["rewards"]) for one in found["reward"]["points"]] == [(0.5, 2)] * 4
    assert "ids" not in [one["kind"] for one in found["health"]["alarms"]]
    run = rltrace.open_run(tmp_path / "run")
    assert run.sql("SELECT count(*), max(lag) FROM lags").fetchall() == [(14, 0)]
    run = rltrace.open_run(tmp_path / "run")
    narrow(run, None)
    assert run.sql("SELECT count(*), max(lag) FROM lags").fetchall() == [(8, 0)]
    assert run.sql("SELECT count(*), max(reward) FROM sample_rewards").fetchall() == [(8, 1.0)]


def steps(*numbers: int, begin: int = 0, open_: bool = False) -> list[tuple[Any, ...]]:
    """Steps of 10 s with these numbers, the first of which begins at `begin`; `open_`: the last one
    never ended."""
    spans = [(("step", n), begin + 10 * i, begin + 10 * i + 10) for i, n in enumerate(numbers)]
    return [*spans[:-1], (*spans[-1][:2], -1)] if open_ else spans


@pytest.mark.parametrize(
    ("processes", "phases"),
    [
        ([steps(0, 1, 2)], [3]),
        ([[]], []),
        ([steps(0, 1, 2, 0, 1)], [3, 2]),
        ([steps(5, 6, 7, 0, 1, 2)], [3, 3]),  # the first was resumed
        ([steps(0, 1, 2), steps(0, 1, begin=40)], [3, 2]),
        ([steps(0, 1, 2), steps(0, 1, begin=40, open_=True)], [3, 1]),
        ([steps(0, 1, 2), steps(0, begin=40, open_=True)], [3, 0]),
        ([steps(0, 1, 2), steps(1, 2, 3, begin=40)], [4]),  # from a checkpoint
        ([steps(0, 1, 2, open_=True), steps(0, 1, 2, begin=40)], [3]),  # all of it, after a crash
        ([steps(0), steps(0, 1, 2, begin=40)], [1, 3]),
        ([steps(0, open_=True), steps(0, 1, 2, begin=40)], [3]),
        ([steps(0, 0, 0)], [1]),  # a number that says nothing
        ([steps(0, 1, 2), steps(0, 1, 2, begin=1)], [3]),  # another rank
        ([steps(0, 1, 2), steps(0, 1, 2, begin=20)], [3]),  # which began seconds later
        ([steps(0, 1, 2), steps(0, begin=20, open_=True)], [3]),  # and hangs
    ],
)
def test_a_phase_begins_with_the_first_number_after_one_that_ended_well(
    tmp_path: Path, processes: list[list[tuple[Any, ...]]], phases: list[int]
) -> None:
    made = [process("learner", *spans) for spans in processes]
    found = find_phases(run_of(tmp_path, *made))
    assert [one.steps for one in found] == phases
    for before, after in pairwise(found):
        assert before.end_ns <= after.since_ns <= after.start_ns == before.until_ns


def test_a_rank_that_begins_once_another_ended_is_no_phase(tmp_path: Path) -> None:
    made = [process("learner", *steps(0, 1, 2, begin=40 * rank), rank=rank) for rank in (0, 1)]
    assert [one.steps for one in find_phases(run_of(tmp_path / "one", *made))] == [3]
    made += [process("learner", *steps(0, 1, begin=90 + rank), rank=rank) for rank in (0, 1)]
    assert [one.steps for one in find_phases(run_of(tmp_path / "two", *made))] == [3, 2]


def test_steps_are_chosen_of_a_phase(tmp_path: Path) -> None:
    def of(**asked: int) -> list[int]:
        run = run_of(tmp_path / str(asked), process("learner", *steps(0, 1, 2, 3, 0, 1, 2)))
        narrow(run, StepSelection(**asked))
        return [int(step) for (step,) in run.sql("SELECT step FROM steps").fetchall()]

    assert of() == [0, 1, 2]
    assert of(newest=5) == [0, 1, 2]
    assert of(phase=1) == [0, 1, 2, 3]
    assert of(phase=1, first=2) == [2, 3]
    assert of(first=1, last=1) == [1]
    with pytest.raises(WrongUsage):
        of(phase=3)


def test_each_training_has_the_settings_and_the_processes_that_it_had(tmp_path: Path) -> None:
    learner = process("learner", *steps(1, 2, 3, 1, 2, 3))
    other = process("rollout", (Stage.ROLLOUT, 0, 29))
    run = run_of(tmp_path, learner, other)
    began = int(run.processes[0].facts["clock"]["monotonic_ns"])
    first = {"settings": {"--lr": 1}, "objective": "ppo", "since_ns": began}
    second = {"settings": {"--lr": 2}, "since_ns": began + 30_000_000_000}
    clock = run.clock_of(run.processes[0].node)
    assert clock is not None
    shift = run.step_rows()[0][1] - clock.moment(began)
    for told in (first, second):
        told["since_ns"] += shift - 1  # type: ignore[operator]
    facts = {"trainings": [first, second], "settings": {"--lr": 2}}
    run = stating(run, *[facts if p.role == "learner" else {} for p in run.processes])
    narrow(run, StepSelection(phase=1))
    told_by = {p.role: p.facts for p in run.processes}
    assert (told_by["learner"]["settings"], told_by["learner"]["objective"]) == ({"--lr": 1}, "ppo")
    assert "rollout" in told_by
    last = RunAnalysis(rltrace.open_run(run.path)).run
    assert [p.role for p in last.processes] == ["learner"]
    assert last.processes[0].facts.get("objective") is None


# --- jobs that are no RL


_OWN = {"adapter": None}  # a loop of the user's own


def supervised(*more: tuple[Any, ...], each: float = 9.5) -> Process:
    spans = [(Stage.TRAIN, 10 * n, 10 * n + each) for n in range(5)]
    return process("learner", *steps(0, 1, 2, 3, 4), *spans, *more)


def test_a_loop_that_only_trains_has_no_wall_of_rl(tmp_path: Path) -> None:
    found = summarize(stating(run_of(tmp_path, supervised()), _OWN))
    assert (found.run.no_rollout, found.verdict.walls, found.verdict.fixes) == ("training", (), ())
    assert (found.verdict.first, found.verdict.confidence) == (None, CANNOT_TELL)
    assert (found.goodput, found.cascade, found.composition) == (None, None, None)
    assert found.coverage.unseen == ()
    assert found.steps.step_s.mean == pytest.approx(10)


@pytest.mark.parametrize(
    "made",
    [
        supervised(each=5),  # samples may come from where nothing was seen
        supervised((Stage.WAIT, 9, 10), (Stage.WAIT, 19, 20), (Stage.WAIT, 29, 32), each=8),
        supervised((Stage.ROLLOUT, 9, 10)),
        supervised((Stage.SYNC, 9, 10)),
        rows(supervised(), "uses", time_s=[5], step=[0], fate=["trained"]),
    ],
    ids=["untraced time", "waits", "rollout", "weight sync", "samples"],
)
def test_of_what_was_not_seen_nobody_says_that_it_is_not_there(
    tmp_path: Path, made: Process
) -> None:
    found = summarize(stating(run_of(tmp_path, made), _OWN))
    assert found.run.no_rollout == ""
    assert found.verdict.walls


def test_a_framework_s_learner_is_no_rl_only_where_it_says_so(tmp_path: Path) -> None:
    silent = run_of(tmp_path / "silent", supervised())
    silent = stating(silent, {"adapter": "trl"})
    assert summarize(silent).run.no_rollout == ""
    told = run_of(tmp_path / "told", supervised(each=5))
    told = stating(told, {"adapter": "trl", "no_rollout": "DPO"})
    assert report_of(told)["run"]["no_rollout"] == "DPO"


# --- batches of ranks that do not begin at the same moment


@pytest.mark.parametrize("early_s", [0.0, 0.5])
def test_what_a_rank_begins_just_before_a_step_is_of_its_batch(
    tmp_path: Path, early_s: float
) -> None:
    begins = [10 * n for n in range(6)]
    ranks = []
    for rank, ahead_s in enumerate((0.0, early_s)):
        spans: list[tuple[Any, ...]] = [] if rank else steps(*range(6))
        for n, start in enumerate(begins):
            if n % 2 == 0:  # one generation serves two steps
                spans.append((Stage.ROLLOUT, start - ahead_s, start + 4))
            spans.append((Stage.TRAIN, start + 5, start + 9))
        made = process("learner", *spans, rank=rank)
        ids = [10 * n + rank for n in range(0, 6, 2)]
        generating = [start for n, start in enumerate(begins) if n % 2 == 0]
        since = [start - ahead_s for start in generating]
        until = [start + 4 for start in generating]
        rows(made, "trajectories", trajectory=ids, start_s=since, end_s=until, response_tokens=8)
        ranks.append(rows(made, "uses", time_s=[t + 9 for t in generating], trajectory=ids))
    run = run_of(tmp_path, *ranks)
    found = RunAnalysis(run)
    assert found.steps.per_generation == 2
    samples = samples_of(run, found.steps, "colocated")
    assert samples is not None
    assert sorted(samples.batch.tolist()) == [0, 0, 2, 2, 4, 4]
