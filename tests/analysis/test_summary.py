"""Whole runs, also the sad ones: empty, one step, hung, killed, torn, compacted, and those whose
recording stopped on a full disk: what is judged are the steps that were whole by then."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrace
from benchmarks.make_trace import Workload, make
from rltrace.testing import at, process, run_of, stating, turns
from rltrace.testing.inside.analysis import (
    Constants,
    RunAnalysis,
    compare,
    narrow,
    series_of,
    summarize,
    whole_steps,
    workload_of,
)
from rltrace.testing.inside.analysis import StepSelection as Asked
from rltrace.testing.inside.report import html
from rltrace.testing.inside.report import run_description as run_lines
from rltrace.testing.inside.report import slices as findings
from rltrace.testing.inside.report import verdict_section as verdict
from rltrace.testing.inside.trace import PROBLEMS, Stage, update_run_json
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.analysis.made import compacted, not_none, rows
from tests.analysis.walls.walled import job, summary_of


def test_an_empty_run_and_spans_without_steps_are_summarized(tmp_path: Path) -> None:
    found = summary_of(tmp_path / "empty")
    assert found.run.spans == found.run.processes == found.steps.complete == 0
    assert found.stages == ()
    assert found.composition is found.syncs is found.goodput is found.typical_step is None
    unseen = "rollout env reward reference logprob value train sync switch"
    assert [one.name for one in found.coverage.unseen] == unseen.split()
    found = summary_of(tmp_path, process("driver", (Stage.ROLLOUT, 0, 6), (Stage.TRAIN, 6, 8)))
    assert found.steps.whole_run
    assert found.steps.complete == found.steps.steady == 0
    assert found.steps.step_s.mean == pytest.approx(8)
    shares = {row.name: row.share for row in found.stages}
    assert shares == pytest.approx({"rollout": 0.75, "train": 0.25})
    assert found.composition is None
    assert found.verdict.because == "no step was recorded"


def test_a_hang_shows_what_it_hangs_in_and_since_when(tmp_path: Path) -> None:
    worker = process("rollout", (Stage.ROLLOUT, 0, 1), (Stage.ROLLOUT, 2, -1))
    driver = process("driver", (("step", 0), 0, 2), (("step", 1), 2, -1), (Stage.WAIT, 2, -1))
    found = summary_of(tmp_path, driver, worker, end_real_ns=at(100), exit_code=-9)
    assert found.steps.in_progress == ((1, pytest.approx(98)),)
    hung = {span.name: span for span in found.coverage.in_progress if span.stage != "step"}
    assert set(hung) == {"rollout", "wait"}
    rollout = hung["rollout"]
    assert (rollout.open_s, rollout.last_sign_s, rollout.role) == (pytest.approx(98), 0, "rollout")


def test_a_killed_worker_and_torn_files_are_said_and_cost_nothing_else(synthetic: Any) -> None:
    run, truth = synthetic(placement="async", kill_step=5, torn=True, nodes=2)
    found = summarize(run, predict=False)
    assert truth.open_spans == 1
    assert [span.name for span in found.coverage.in_progress] == ["generate_sequences"]
    assert found.tail.unended > 0
    torn = [problem for problem in found.coverage.problems if problem.what == "torn-file"]
    assert sum(problem.count for problem in torn) == 2
    assert found.run.exit_code == 1
    assert found.steps.complete == len(truth.steps)
    assert found.coverage.clock_bound_ns > 0


def test_the_numbers_of_spans_and_roles_are_those_of_the_run(synthetic: Any) -> None:
    run, truth = synthetic()
    found = summarize(run, predict=False)
    assert found.run.spans == truth.spans
    roles = {"driver": 1, "rollout": 4, "reward": 2, "learner": 2, "agent": 1}
    assert dict(found.run.roles) == roles
    # The agents' samples are no cost of the job.
    assert run.rows("samples") > 0
    of_the_job = ("spans", "trajectories", "rewards", "uses", "syncs")
    assert found.own_cost.events == sum(run.rows(table) for table in of_the_job)


def test_problems_are_told_apart_by_what_is_said_of_them(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", (Stage.TRAIN, 0, 1)))
    failed = [("a:f", "cannot be replaced"), ("b:g", "no module b"), ("c:h", "cannot be replaced")]
    run.problems.append({"what": "hook-missing", "target": "verl.x:Y.z", "stage": "reference"})
    run.problems.extend([{"what": "hook-failed", "target": t, "detail": d} for t, d in failed])
    torn_file = {"what": "torn-file", "detail": "cut"}
    run.problems.extend([{**torn_file, "target": str(n)} for n in range(10)])
    coverage = summarize(run, predict=False).coverage
    unseen = {stage.name: stage.reason for stage in coverage.unseen}
    assert unseen["reference"] == "hook-missing: verl.x:Y.z"
    assert "no hook or span" in unseen["value"]
    found = {(p.what, p.detail): p for p in coverage.problems}
    assert found["hook-failed", "cannot be replaced"].targets == ("a:f", "c:h")
    assert found["hook-failed", "no module b"].targets == ("b:g",)
    torn = found["torn-file", "cut"]
    assert (torn.count, len(torn.targets), torn.more_targets) == (10, 8, 2)


def test_a_recording_that_stopped_is_told_with_its_process(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("rollout", (Stage.ROLLOUT, 0, 1)))
    (worker,) = (p for p in run.processes if p.role == "rollout")
    run = stopped(run.path, (worker.who, at(7)), ("~nobody", -1))
    first, second = summarize(run, predict=False).coverage.stopped
    assert (first.role, first.pid, first.detail) == ("rollout", worker.pid, "disk full")
    assert first.after_start_s == pytest.approx(7)
    assert (second.role, second.pid) == ("", -1)


def test_hooks_that_were_asked_for_and_never_put_in_place(tmp_path: Path) -> None:
    hooks = ["my.job:roll=rollout", "my.job:Learner.fit=train", "my.job:gone=reward"]
    workers = [process("driver", (Stage.TRAIN, 0, 1)), process("rollout", rank=1)]
    run = run_of(tmp_path, *workers, settings={"hooks": hooks})
    # No process says what it put in place.
    assert summarize(run, predict=False).coverage.never_hooked == ()
    run = stating(run, {"hooks": ["my.job:Learner.fit"]}, {"hooks": ["my.job:roll"]})
    assert summarize(run, predict=False).coverage.never_hooked == ("my.job:gone",)


def test_verdicts_without_a_duration_are_no_latency_and_no_stage_time(tmp_path: Path) -> None:
    judge = process("reward", (Stage.TRAIN, 0, 5))
    rows(judge, "rewards", start_s=[1.0, 2.0], end_s=[1.0, 2.0], trajectory=[1, 2])
    found = summary_of(tmp_path, judge)
    assert (found.tail.reward_latency_s.n, found.tail.untimed_rewards) == (0, 2)
    assert "reward" not in [row.name for row in found.stages]
    (reason,) = (unseen.reason for unseen in found.coverage.unseen if unseen.name == "reward")
    assert reason == "rewards were recorded, but none with its duration"


def test_a_compacted_run_gives_the_same_summary(tmp_path: Path) -> None:
    load = Workload(placement="async", steps=8, nodes=2, spans=20_000, kill_step=4, torn=True)
    make(tmp_path / "run", load)
    run = rltrace.open_run(tmp_path / "run")
    raw, kept = summarize(run), compacted(run)
    assert kept.is_compacted
    # Rows are summed in another order.
    assert flat(summarize(kept)) == pytest.approx(flat(raw), nan_ok=True)


def flat(value: Any, name: str = "summary") -> dict[str, Any]:
    """Every single value of a summary by its path."""
    if hasattr(value, "__dataclass_fields__"):
        value = {field: getattr(value, field) for field in value.__dataclass_fields__}
    if isinstance(value, tuple | list | np.ndarray):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name: value}
    parts = [flat(one, f"{name}.{key}") for key, one in value.items()]
    return {key: one for part in parts for key, one in part.items()}


def test_the_typical_step_shows_when_each_stage_ran(tmp_path: Path) -> None:
    typical = not_none(summary_of(tmp_path, job(rollout=5, train=2.5)).typical_step)
    assert typical.step_s == pytest.approx(10)
    quarters = {
        name: [sum(busy[i * 60 : (i + 1) * 60]) / 60 for i in range(4)]
        for name, busy in typical.busy_shares.items()
    }
    assert quarters["rollout"] == pytest.approx([1, 1, 0, 0])
    assert quarters["train"] == pytest.approx([0, 0, 1, 0])


def test_what_the_agent_reads_when_all_is_over_makes_no_run_longer(tmp_path: Path) -> None:
    driver = process("driver", *turns(4, 5, 4), (("step", 3), 30, -1))
    agent = rows(process("agent"), "samples", time_s=[1.0, 39.0], value=1.0)
    made = driver, agent
    found = summary_of(tmp_path / "a", *made, start_real_ns=at(0), end_real_ns=at(31))
    assert found.run.recorded_s == found.run.lasted_s == 31
    assert not_none(found.cascade).wall_s == 31
    assert found.steps.in_progress == ((3, 1.0),)
    # Where nobody saw the end, it is the last that is known of the run.
    found = summary_of(tmp_path / "b", *made, start_real_ns=at(0), end_real_ns=None)
    assert found.run.recorded_s == 39


Stopped = Callable[..., Run]


@pytest.fixture
def stopped_in(synthetic: Callable[..., Any], tmp_path: Path) -> Stopped:
    """`stopped_in(7)`: a run one of whose processes stopped recording in the middle of step 7."""

    def copy(step: int, role: str = "rollout") -> Run:
        run, truth = synthetic()
        path = Path(shutil.copytree(run.path, tmp_path / "run"))
        of = next(s for s in truth.steps if s.step == step)
        who = next(p.who for p in run.processes if p.role == role)
        return stopped(path, (who, (of.start_ns + of.end_ns) // 2))

    return copy


def stopped(path: Path, *processes: tuple[str, int]) -> Run:
    """The run, in which these processes stopped recording at these moments."""
    for who, real_ns in processes:
        line = {"what": "recording-stopped", "real_ns": real_ns, "detail": "disk full"}
        with (path / PROBLEMS / f"{who}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
    return rltrace.open_run(path)


def judged(run: Run) -> dict[str, Any]:
    """What a summary says of the steps."""
    one = summarize(run)
    parts = (one.steps, one.stages, one.verdict, one.tail, one.staleness, one.goodput)
    return flat([*parts, one.syncs, one.signal, one.reward])


def test_it_is_judged_as_its_whole_steps_are(
    synthetic: Callable[..., Any], stopped_in: Stopped
) -> None:
    whole, _ = synthetic()
    narrow(whole, Asked(0, 6))
    run = stopped_in(7)
    assert judged(run) == pytest.approx(judged(whole), nan_ok=True)
    assert series_of(run).steps.tolist() == list(range(7))
    assert workload_of(run)(Constants()).steps == workload_of(whole)(Constants()).steps
    assert {stage.difference_s.value for stage in compare(run, whole).stages} == {0.0}
    narrow(run, Asked(4, 9))  # of steps that were asked for those that are whole count
    assert [time.step for time in summarize(run, predict=False).steps.times] == [4, 5, 6]


def test_of_which_steps_it_is_and_how_it_ended_is_said(stopped_in: Stopped, tmp_path: Path) -> None:
    run = stopped_in(7)
    found = summarize(run)
    assert run.sql("select count(distinct step) from steps").fetchall() == [(12,)]
    said = list(run_lines.warnings(found))
    assert any(line.startswith("recording stopped in rollout") for line in said)
    assert any("figures are of steps 0 to 6" in line for line in said)
    notes = findings.find(run)  # for a timeline
    assert len(notes.steps) == 7
    assert {len(words) for words in notes.words.values()} == {7}
    html.write(RunAnalysis(run), found, tmp_path / "report.html")
    page = re.sub("<.*?>", "", (tmp_path / "report.html").read_text()).replace("\u00a0", " ")
    assert "figures are of steps 0 to 6" in page
    update_run_json(str(run.path), exit_code=1)
    failed = rltrace.open_run(run.path)
    assert summarize(failed, predict=False).run.exit_code == 1
    assert any("exit code 1" in says for says in RunAnalysis(failed).health.forbids)


@pytest.mark.parametrize(
    ("step", "newest", "complete", "because"),
    [
        (0, None, 0, "no step was whole"),
        (1, None, 1, "1 steady step, at least 3 are needed"),
        (3, 5, 0, ""),  # all of them began later
    ],
)
def test_of_too_few_whole_steps_there_is_no_verdict(
    stopped_in: Stopped, step: int, newest: int | None, complete: int, because: str
) -> None:
    run = stopped_in(step)
    for is_compacted in (False, True):
        opened = compacted(run) if is_compacted else run
        if newest:
            narrow(opened, Asked(newest=newest))
        found = summarize(opened, predict=False)
        assert found.verdict.first is None
        assert found.verdict.fixes == ()
        assert because in next(verdict.sentences(found))
        assert found.steps.complete == complete


def test_an_agent_that_stops_cuts_nothing_short(stopped_in: Stopped, tmp_path: Path) -> None:
    opened = stopped_in(7, "agent")
    assert whole_steps(opened) is opened
    run = run_of(tmp_path / "none", process("learner", (Stage.TRAIN, 0, 9)))
    found = summarize(stopped(run.path, (run.processes[0].who, at(7))), predict=False)
    assert "no step was recorded" in next(verdict.sentences(found))
