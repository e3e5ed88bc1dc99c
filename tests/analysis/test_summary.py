"""Whole runs, also the sad ones: empty, one step, hung, killed, torn, compacted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rltrace
from benchmarks.make_trace import Workload, make
from rltrace.analysis.summary import summarize
from rltrace.testing.inside.trace import PROBLEMS, Stage, compact, delete_segments
from rltrace.testing.made import at, process, rows, run_of, turns


def test_an_empty_run_is_summarized(tmp_path: Path) -> None:
    found = summarize(run_of(tmp_path), predict=False)
    assert found.run.spans == found.run.processes == found.steps.complete == 0
    assert found.stages == ()
    assert found.binding.confidence == "insufficient evidence"
    assert found.composition is found.syncs is found.goodput is found.typical is None
    assert [unseen.name for unseen in found.coverage.unseen] == [
        *("rollout", "env", "reward", "reference", "logprob"),
        *("value", "train", "sync", "switch"),
    ]


def test_spans_without_steps_are_one_window(tmp_path: Path) -> None:
    found = summarize(
        run_of(tmp_path, process("driver", (Stage.ROLLOUT, 0, 6), (Stage.TRAIN, 6, 8)))
    )
    assert found.steps.whole_run
    assert found.steps.complete == found.steps.steady == 0
    assert found.steps.step_s.mean == pytest.approx(8)
    assert {row.name: row.share for row in found.stages} == pytest.approx(
        {"rollout": 0.75, "train": 0.25}
    )
    assert found.composition is None
    assert "no step was recorded" in found.binding.because


def test_a_hang_shows_what_it_hangs_in_and_since_when(tmp_path: Path) -> None:
    worker = process("rollout", (Stage.ROLLOUT, 0, 1), (Stage.ROLLOUT, 2, -1))
    driver = process("driver", (("step", 0), 0, 2), (("step", 1), 2, -1), (Stage.WAIT, 2, -1))
    run = run_of(tmp_path, driver, worker, end_real_ns=at(100), exit_code=-9)
    found = summarize(run, predict=False)
    assert found.steps.in_progress == ((1, pytest.approx(98)),)
    hung = {span.name: span for span in found.coverage.in_progress if span.stage != "step"}
    assert set(hung) == {"rollout", "wait"}
    assert hung["rollout"].for_s == pytest.approx(98)
    assert hung["rollout"].alive_s == 0
    assert hung["rollout"].role == "rollout"


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
    assert dict(found.run.roles) == {
        "driver": 1,
        "rollout": 4,
        "reward": 2,
        "learner": 2,
        "agent": 1,
    }
    # The agents' samples are no cost of the job.
    assert run.rows("samples") > 0
    of_the_job = ("spans", "trajectories", "rewards", "uses", "syncs")
    assert found.own_cost.events == sum(run.rows(table) for table in of_the_job)


def test_a_stage_that_a_hook_missed_says_so(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", (Stage.TRAIN, 0, 1)))
    missing = {"what": "hook-missing", "target": "verl.x:Y.z", "stage": "reference"}
    run.problems.append(missing)
    unseen = {stage.name: stage.reason for stage in summarize(run, predict=False).coverage.unseen}
    assert unseen["reference"] == "hook-missing: verl.x:Y.z"
    assert "no hook or span" in unseen["value"]


def test_problems_are_told_apart_by_what_is_said_of_them(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", (Stage.TRAIN, 0, 1)))
    run.problems.extend(
        [
            {"what": "hook-failed", "target": "a:f", "detail": "cannot be replaced"},
            {"what": "hook-failed", "target": "b:g", "detail": "no module b"},
            {"what": "hook-failed", "target": "c:h", "detail": "cannot be replaced"},
            *({"what": "torn-file", "target": str(n), "detail": "cut"} for n in range(10)),
        ]
    )
    found = {(p.what, p.detail): p for p in summarize(run, predict=False).coverage.problems}
    assert found["hook-failed", "cannot be replaced"].targets == ("a:f", "c:h")
    assert found["hook-failed", "no module b"].targets == ("b:g",)
    torn = found["torn-file", "cut"]
    assert (torn.count, len(torn.targets), torn.more_targets) == (10, 8, 2)


def test_a_recording_that_stopped_is_told_with_its_process(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("rollout", (Stage.ROLLOUT, 0, 1)))
    (worker,) = (p for p in run.processes if p.role == "rollout")
    said = {"what": "recording-stopped", "detail": "disk full"}
    for who, when in ((worker.who, {"real_ns": at(7)}), ("~nobody", {})):
        (run.path / PROBLEMS / f"{who}.jsonl").write_text(json.dumps({**said, **when}) + "\n")
    first, second = summarize(rltrace.open_run(run.path), predict=False).coverage.stopped
    assert (first.role, first.pid, first.detail) == ("rollout", worker.pid, "disk full")
    assert first.after_s == pytest.approx(7)
    assert (second.role, second.pid) == ("", -1)


def test_hooks_that_were_asked_for_and_never_put_in_place(tmp_path: Path) -> None:
    hooks = ["my.job:roll=rollout", "my.job:Learner.fit=train", "my.job:gone=reward"]
    workers = [process("driver", (Stage.TRAIN, 0, 1)), process("rollout", rank=1)]
    run = run_of(tmp_path, *workers, settings={"hooks": hooks})
    assert (
        summarize(run, predict=False).coverage.never_hooked == ()
    )  # no process says what it put in place
    driver, other = run.processes[:2]
    driver.facts["hooks"] = ["my.job:Learner.fit"]
    other.facts["hooks"] = ["my.job:roll"]
    assert summarize(run, predict=False).coverage.never_hooked == ("my.job:gone",)


def test_verdicts_without_a_duration_are_no_latency_and_no_stage_time(tmp_path: Path) -> None:
    judge = process("reward", (Stage.TRAIN, 0, 5))
    rows(judge, "rewards", start_s=[1.0, 2.0], end_s=[1.0, 2.0], trajectory=[1, 2])
    found = summarize(run_of(tmp_path, judge), predict=False)
    assert (found.tail.verdict_s.n, found.tail.verdicts_untimed) == (0, 2)
    assert "reward" not in [row.name for row in found.stages]
    (reason,) = (unseen.reason for unseen in found.coverage.unseen if unseen.name == "reward")
    assert reason == "rewards were recorded, but none with its duration"


def test_a_compacted_run_gives_the_same_summary(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make(path, Workload(placement="async", steps=8, nodes=2, spans=20_000, kill_step=4, torn=True))
    raw = summarize(rltrace.open_run(path))
    compact(rltrace.open_run(path))
    delete_segments(path)
    kept = rltrace.open_run(path)
    assert kept.is_compacted
    found = summarize(kept)
    assert flat(found) == pytest.approx(flat(raw), nan_ok=True)  # rows are summed in another order


def flat(value: Any, name: str = "summary") -> dict[str, Any]:
    """Every single value of a summary by its path."""
    if hasattr(value, "__dataclass_fields__"):
        value = {field: getattr(value, field) for field in value.__dataclass_fields__}
    if isinstance(value, tuple | list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name: value}
    parts = [flat(one, f"{name}.{key}") for key, one in value.items()]
    return {key: one for part in parts for key, one in part.items()}


def test_the_typical_step_shows_when_each_stage_ran(tmp_path: Path) -> None:
    spans: list[tuple[Any, ...]] = []
    for n in range(5):
        spans += [
            (("step", n), 10 * n, 10 * n + 10),
            (Stage.ROLLOUT, 10 * n, 10 * n + 5),
            (Stage.TRAIN, 10 * n + 5, 10 * n + 7.5),
        ]
    typical = summarize(run_of(tmp_path, process("driver", *spans)), predict=False).typical
    assert typical is not None
    assert typical.seconds == pytest.approx(10)
    quarters = {
        name: [sum(busy[i * 60 : (i + 1) * 60]) / 60 for i in range(4)]
        for name, busy in typical.busy.items()
    }
    assert quarters["rollout"] == pytest.approx([1, 1, 0, 0])
    assert quarters["train"] == pytest.approx([0, 0, 1, 0])


def test_a_summary_is_made_of_values(synthetic: Any) -> None:
    run, _ = synthetic()
    found = summarize(run, predict=False)
    assert replace(found, own_cost=found.own_cost) == found
    with pytest.raises(AttributeError):
        found.stages = ()  # type: ignore[misc]


def test_what_the_agent_reads_when_all_is_over_makes_no_run_longer(tmp_path: Path) -> None:
    driver = process("driver", *turns(4, 5, 4), (("step", 3), 30, -1))
    agent = rows(process("agent"), "samples", time_s=[1.0, 39.0], value=[1.0, 1.0])
    found = summarize(
        run_of(tmp_path / "a", driver, agent, start_real_ns=at(0), end_real_ns=at(31))
    )
    assert found.run.recorded_s == found.run.lasted_s == 31
    assert found.cascade is not None
    assert found.cascade.wall_s == 31
    assert found.steps.in_progress == ((3, 1.0),)
    # Where nobody saw the end, it is the last that is known of the run.
    found = summarize(
        run_of(tmp_path / "b", driver, agent, start_real_ns=at(0), end_real_ns=None), predict=False
    )
    assert found.run.recorded_s == 39
