"""Tail, weight movement, composition, waits, spread and own cost."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrace
from rltrace.analysis.own_cost import DEFAULT_COSTS_NS, own_cost
from rltrace.analysis.spread import spread, spread_of
from rltrace.analysis.waits import waits
from rltrace.testing.inside.analysis import (
    Binding,
    Summary,
    find_steps,
    read_activity,
    summarize,
    syncs,
    tail,
)
from rltrace.testing.inside.trace import (
    Finish,
    Outcome,
    Phase,
    Run,
    Stage,
    SyncRole,
    Transport,
    compact,
)
from rltrace.testing.made import at, process, rows, run_of, turns


def test_a_spread_has_quantiles_and_an_interval_of_its_mean() -> None:
    found = spread([1.0, 2.0, 3.0, math.nan])
    assert (found.n, found.mean, found.p50, found.largest) == (3, 2, 2, 3)
    # Student's t with two degrees of freedom: 4.303 standard errors.
    assert found.high - found.mean == pytest.approx(4.303 / math.sqrt(3))
    assert found.mean - found.low == pytest.approx(4.303 / math.sqrt(3))


def test_spreads_of_little_know_little() -> None:
    assert spread([]).n == 0
    assert math.isnan(spread([]).mean)
    one = spread([5.0])
    assert (one.n, one.mean, one.p95) == (1, 5, 5)
    assert math.isnan(one.low)


def test_the_database_and_numpy_agree_on_a_spread(tmp_path: Path) -> None:
    values = np.random.default_rng(0).lognormal(6, 1, 101).astype(int)
    engine = process("rollout")
    many = {"start_s": [1.0] * 101, "end_s": [2.0] * 101, "trajectory": list(range(101))}
    rows(engine, "trajectories", response_tokens=values.tolist(), **many)
    found = spread_of(run_of(tmp_path, engine), "response_tokens", "raw_trajectories")
    expected = spread(values)
    for name in ("n", "mean", "p50", "p95", "p99", "largest", "low", "high"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name))


def steps_of(run: Run) -> Any:
    return find_steps(run, (at(0), at(100)))


def test_the_tail_is_of_trajectories_that_ended(tmp_path: Path) -> None:
    engine = process("rollout")
    rows(
        engine,
        "trajectories",
        start_s=[0.0, 0.0, 0.0, 0.0],
        first_token_s=[0.5, 0.5, -1, -1],
        end_s=[1.0, 2.0, 9.0, -1],
        trajectory=[1, 2, 3, 4],
        response_tokens=[10, 20, 90, -1],
        finish=[Finish.STOP, Finish.STOP, Finish.LENGTH, -1],
    )
    rows(
        engine,
        "rewards",
        start_s=[1.0, 2.0],
        end_s=[1.5, 5.0],
        trajectory=[1, 2],
        outcome=[Outcome.OK, Outcome.TIMEOUT],
    )
    run = run_of(tmp_path, engine)
    found = tail(run, steps_of(run))
    assert (found.latency_s.n, found.latency_s.p50, found.latency_s.largest) == (3, 2, 9)
    assert found.latency_s.tail_ratio == pytest.approx(found.latency_s.p95 / 2)
    assert found.response_tokens.p50 == 20
    assert (found.first_token_s.n, found.first_token_s.mean) == (2, 0.5)
    assert dict(found.finishes) == {"stop": 2, "length": 1}
    assert found.unended == 1
    assert (found.verdict_s.n, found.verdict_failures) == (2, 1)


def test_bytes_of_an_update_are_its_sources_and_never_added_up_over_sinks(tmp_path: Path) -> None:
    sources = [process("learner", rank=rank) for rank in range(2)]
    sinks = [process("rollout", rank=rank) for rank in range(4)]
    for made, role, size, end_s in (
        *((source, SyncRole.SOURCE, 5_000_000_000, 2.0) for source in sources),
        *((sink, SyncRole.SINK, 10_000_000_000, 3.0) for sink in sinks),
    ):
        rows(
            made,
            "syncs",
            start_s=[1.0, 11.0],
            end_s=[end_s, end_s + 10],
            version=[1, 2],
            role=[role] * 2,
            bytes=[size] * 2,
            stall_ns=[100_000_000] * 2,
            transport=[Transport.NCCL] * 2,
        )
    run = run_of(tmp_path, *sources, *sinks)
    found = syncs(run, steps_of(run))
    assert found is not None
    assert found.updates == 2
    assert found.update_s.mean == pytest.approx(2)
    assert found.bytes_per_update.mean == 10_000_000_000
    assert found.gb_per_s == pytest.approx(5)
    assert found.transports == ("nccl",)
    by_role = {row.role: row for row in found.participants}
    assert by_role["source"].gb_per_s == pytest.approx(5)
    assert by_role["sink"].gb_per_s == pytest.approx(5)
    assert by_role["sink"].processes == 4
    assert by_role["source"].stall_s.mean == pytest.approx(0.1)


def test_updates_of_the_synthetic_run_are_the_truth(synthetic: Any) -> None:
    run, truth = synthetic()
    found = syncs(run, steps_of(run))
    assert found is not None
    assert found.recorded == truth.sync_count
    assert found.bytes_per_update.mean == truth.sync_bytes
    seconds = [step.tau_s["sync"] for step in truth.steps if not step.warmup]
    assert found.updates == len(seconds)
    assert found.update_s.mean == pytest.approx(sum(seconds) / len(seconds))
    assert found.gb_per_s == pytest.approx(truth.sync_bytes * len(seconds) / sum(seconds) / 1e9)
    phases = dict(found.phases)
    assert list(phases) == ["gather", "convert", "transfer", "load", "visible"]
    assert sum(p.mean for p in phases.values()) == pytest.approx(found.update_s.mean)


def test_a_run_without_updates_says_nothing_of_them(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("learner", (Stage.SYNC, 0, 1)))
    assert syncs(run, steps_of(run)) is None


def test_an_update_lasts_while_somebody_works_on_it(tmp_path: Path) -> None:
    """A learner publishes; 5 s later two workers load. The stage, the update and its phases are the
    time in which anybody worked, and phases of different processes are not counted twice."""
    learner, workers = process("learner"), [process("rollout", rank=rank) for rank in range(2)]
    for n in range(4):
        now = 20.0 * n
        learner.span((at(now), at(now + 20)), "step", Stage.STEP, n)
        learner.span((at(now), at(now + 2)), "publish", Stage.SYNC, n)
        for phase, since, until in ((Phase.GATHER, 0.0, 0.5), (Phase.TRANSFER, 0.5, 1.8)):
            learner.span((at(now + since), at(now + until)), "part", Stage.SYNC, n, phase=phase)
        for late, worker in enumerate(workers):
            since = now + 7 + 0.5 * late
            worker.span((at(since), at(since + 2)), "load", Stage.SYNC, n)
            worker.span((at(since), at(since + 1)), "part", Stage.SYNC, -1, phase=Phase.TRANSFER)
            worker.span((at(since + 1), at(since + 2)), "part", Stage.SYNC, -1, phase=Phase.LOAD)
    moments = [20.0 * n for n in range(4)]
    for made, role, since in (
        (learner, SyncRole.SOURCE, 0.0),
        (workers[0], SyncRole.SINK, 7.0),
        (workers[1], SyncRole.SINK, 7.5),
    ):
        rows(
            made,
            "syncs",
            start_s=[now + since for now in moments],
            end_s=[now + since + 2 for now in moments],
            version=[1, 2, 3, 4],
            role=[role] * 4,
            bytes=[9_000_000_000] * 4,
        )
    found = summarize(run_of(tmp_path, learner, *workers), predict=False)
    assert found.syncs is not None
    (stage,) = (row for row in found.stages if row.name == "sync")
    assert stage.tau_s.mean == pytest.approx(4.5)  # 2 + 2.5
    assert found.syncs.update_s.mean == pytest.approx(4.5)
    assert found.syncs.gb_per_s == pytest.approx(2)
    parts = {name: spent.mean for name, spent in found.syncs.phases}
    assert parts == pytest.approx({"gather": 0.5, "transfer": 1.3 + 1.5, "load": 1.0})
    for row in found.syncs.participants:
        assert row.gb_per_s == pytest.approx(row.bytes.mean / row.seconds.mean / 1e9)


@pytest.mark.parametrize(
    ("knobs", "placement", "formula"),
    [
        ({}, "colocated", "τ_R + τ_V + τ_ref + τ_old + τ_T + τ_S + τ_X"),
        (
            {"placement": "one-step-off"},
            "one-step-off",
            "max(τ_R + τ_V, τ_ref + τ_old + τ_T) + exposed τ_S",
        ),
        (
            {"placement": "async", "train_s": 6.0},
            "async",
            "max(τ_R + τ_V, τ_ref + τ_old + τ_T) + exposed τ_S",
        ),
    ],
)
def test_the_placement_is_found_and_its_formula_meets_the_step(
    synthetic: Any, knobs: dict[str, Any], placement: str, formula: str
) -> None:
    run, _ = synthetic(sigma=0.3, **knobs)
    found = summarize(run, predict=False).composition
    assert found is not None
    assert (found.placement, found.formula) == (placement, formula)
    # What the formula cannot know is the gap at the end of every step.
    assert found.difference_s == pytest.approx(0.1, abs=0.02)


def test_partial_overlap_shows_as_a_difference(synthetic: Any) -> None:
    run, _ = synthetic(placement="disaggregated", sigma=0.3, train_s=1.0)
    found = summarize(run, predict=False).composition
    assert found is not None
    assert found.placement == "disaggregated"
    assert found.overlap_share == pytest.approx(0.5, abs=0.05)
    assert found.difference_s > 0.5


def test_ranks_that_overlap_are_not_added_up(tmp_path: Path) -> None:
    """Two ranks of a learner: one moves weights while the other still trains."""
    ranks = []
    for rank, train_s in enumerate((6.0, 9.0)):
        spans: list[tuple[Any, ...]] = []
        for n in range(0, 40, 10):
            spans += [(("step", n // 10), n, n + 10)] if rank == 0 else []
            spans += [(Stage.TRAIN, n, n + train_s), (Stage.SYNC, n + train_s, n + 9.5)]
        ranks.append(process("trainer", *spans, rank=rank))
    found = summarize(run_of(tmp_path, *ranks), predict=False).composition
    assert found is not None
    assert (found.stages_s, found.covered_s) == (pytest.approx(12.5), pytest.approx(9.5))
    assert found.formula == "τ_T + exposed τ_S"
    assert found.composed_s == pytest.approx(9.5)
    assert found.placement == "placement unknown"


def test_verdicts_that_come_during_generation_are_united_with_it(tmp_path: Path) -> None:
    actors, judge = process("rollout"), process("reward")
    spans: list[tuple[Any, ...]] = []
    for n in range(0, 40, 10):
        spans += [(("step", n // 10), n, n + 10), (Stage.TRAIN, n + 6, n + 10)]
        actors.span((at(n), at(n + 5)), "generate", Stage.ROLLOUT, -1)
        judge.span((at(n + 2), at(n + 6)), "judge", Stage.REWARD, -1)
    found = summarize(
        run_of(tmp_path, process("driver", *spans), actors, judge), predict=False
    ).composition
    assert found is not None
    assert found.formula == "(τ_R ∪ τ_V) + τ_T"
    assert found.composed_s == pytest.approx(10)


def test_no_formula_is_better_than_one_above_the_step(tmp_path: Path) -> None:
    # Weights that move for longer than anything else, beside both chains in part.
    learner, mover = process("learner"), process("mover")
    spans: list[tuple[Any, ...]] = []
    for n in range(0, 40, 10):
        spans += [(("step", n // 10), n, n + 10), (Stage.ROLLOUT, n, n + 4)]
        learner.span((at(n + 4), at(n + 6)), "update", Stage.TRAIN, -1)
        mover.span((at(n + 3), at(n + 10)), "move", Stage.SYNC, -1)
    found = summarize(
        run_of(tmp_path, process("driver", *spans), learner, mover), predict=False
    ).composition
    assert found is not None
    assert found.formula == ""
    assert math.isnan(found.composed_s)
    assert found.stages_s > found.covered_s


def test_the_runs_settings_name_the_placement(tmp_path: Path) -> None:
    driver = process("driver", *((("step", n), n, n + 1) for n in range(3)), (Stage.TRAIN, 0, 3))
    run = run_of(tmp_path, driver, settings={"placement": "disaggregated"})
    found = summarize(run, predict=False).composition
    assert found is not None
    assert (found.placement, found.placement_source) == ("disaggregated", "the run's settings")


def test_a_process_may_state_the_placement(tmp_path: Path) -> None:
    """A job that is strictly on policy looks like a colocated one, whatever its placement."""
    driver = process("driver", *turns(4, 4, 4))
    found = summarize(run_of(tmp_path, driver), predict=False).composition
    assert found is not None
    assert found.placement == "colocated"
    (file,) = (tmp_path / "run/process").glob("*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"placement": "disaggregated"}))
    found = summarize(rltrace.open_run(tmp_path / "run"), predict=False).composition
    assert found is not None
    assert (found.placement, found.placement_source) == ("disaggregated", "as the job states")


def test_waits_are_by_name_and_role(synthetic: Any) -> None:
    run, truth = synthetic(placement="one-step-off", sigma=0.3, train_s=0.5)
    steps = steps_of(run)
    found = {wait.name: wait for wait in waits(run, steps)}
    steady = [step for step in truth.steps if not step.warmup]
    waited = sum(s.tau_s["wait"] for s in steady)
    wait = found["queue: rollout"]
    assert (wait.role, wait.processes, wait.spans) == ("driver", 1, len(steady))
    assert wait.process_s == pytest.approx(waited)
    assert wait.share == pytest.approx(waited / sum(s.step_s for s in steady))


def test_own_cost_is_events_times_the_calibrated_cost_over_wall_time(tmp_path: Path) -> None:
    worker = process("worker", *((Stage.TRAIN, n, n + 0.5) for n in range(10)))
    rows(worker, "uses", time_s=[1.0, 2.0], trajectory=[1, 2])
    run = run_of(tmp_path, worker, settings={"event_cost_ns": 500, "row_cost_ns": 2000})
    found = own_cost(run, read_activity(run), at(10))
    assert (found.events, found.processes) == (12, 1)
    assert found.calibrated
    assert found.share == pytest.approx((10 * 500e-9 + 2 * 2000e-9) / 10)
    assert found.event_cost_ns == pytest.approx(9000 / 12)
    assert found.worst_share == found.share
    run = run_of(tmp_path / "other", worker)
    found = own_cost(run, read_activity(run), at(10))
    assert not found.calibrated
    span_ns, row_ns = DEFAULT_COSTS_NS
    assert found.share == pytest.approx((10 * span_ns + 2 * row_ns) * 1e-9 / 10)


def test_captured_tokens_have_their_part_in_own_cost(tmp_path: Path) -> None:
    had = {"prompt_tokens": [100, 300], "response_tokens": [10, -1]}
    worker = rows(process("worker"), "trajectories", start_s=[1.0, 2.0], **had)
    costs = {"event_cost_ns": 500, "row_cost_ns": 2000, "token_cost_ns": 100}
    one = {"trajectory": [1, 1], "part": [0, 1], "position": [0, 0], "token": [5, 6]}
    rows(worker, "captured_tokens", start_s=[1.0, 1.0], **one)
    run = run_of(tmp_path, worker, settings={**costs, "capture_tokens": True})
    found = own_cost(run, read_activity(run), at(10))
    assert (found.events, found.tokens, found.token_cost_ns) == (2, 2, 100)
    assert found.share == pytest.approx((2 * 2000 + 2 * 100) * 1e-9 / 10)
    assert found.event_cost_ns == 2000
    compact(run)
    kept = rltrace.open_run(run.path)
    assert own_cost(kept, read_activity(kept), at(10)) == found
    shutil.rmtree(run.path / "parquet")
    shutil.rmtree(run.path / "captured_tokens")  # what they cost was paid
    left = rltrace.open_run(run.path)
    found = own_cost(left, read_activity(left), at(10))
    assert found.share == pytest.approx((2 * 2000 + 410 * 100) * 1e-9 / 10)
    worker = rows(process("worker"), "trajectories", start_s=[1.0, 2.0], **had)
    none = run_of(tmp_path / "none", worker, settings={**costs, "capture_tokens": True})
    assert own_cost(none, read_activity(none), at(10)).tokens == 0


def summary_of_steps(path: Path, *stages: tuple[Stage, float], steps: int = 6) -> Summary:
    """Steps of 10 s in which the stages follow each other for that long."""
    spans: list[tuple[Any, ...]] = []
    for n in range(steps):
        now = 10.0 * n
        spans.append((("step", n), now, now + 10))
        for stage, length_s in stages:
            spans.append((stage, now, now + length_s))
            now += length_s
    return summarize(run_of(path, process("driver", *spans)), predict=False)


def test_the_stage_with_the_most_exposed_time_is_named(tmp_path: Path) -> None:
    binding = summary_of_steps(tmp_path, (Stage.ROLLOUT, 6), (Stage.TRAIN, 3)).binding
    assert binding.stage is not None
    assert binding.stage.name == "rollout"
    assert binding.resource == "rollout decode"
    assert binding.confidence == "likely"
    assert binding.share == pytest.approx(0.6)
    assert (binding.agreeing_steps, binding.steps) == (6, 6)
    assert binding.runner_up is not None
    assert binding.runner_up.name == "train"
    assert binding.margin_s.mean == pytest.approx(3)


def binding_of(path: Path, *rollouts_s: float) -> Binding:
    return summarize(run_of(path, process("driver", *turns(*rollouts_s))), predict=False).binding


def test_stages_that_lead_in_turn_cannot_be_told_apart(tmp_path: Path) -> None:
    binding = binding_of(tmp_path, *[6, 4.1] * 4)
    assert binding.confidence == "weak"
    assert [row.name for row in binding.tied] == ["train"]
    assert binding.led_steps == {"rollout": 4, "train": 4}
    assert binding.margin_s.low < 0 < binding.margin_s.high


def test_a_stage_that_leads_in_fewer_steps_is_never_ahead_alone(tmp_path: Path) -> None:
    # Long generation in nearly half of the steps makes its mean the larger one.
    binding = binding_of(tmp_path, *[4.9, 9] * 9, 4.9)
    assert binding.stage is not None
    assert binding.stage.name == "rollout"
    assert binding.margin_s.low > 0
    assert binding.led_steps == {"rollout": 9, "train": 10}
    assert [row.name for row in binding.tied] == ["train"]
    assert binding.confidence == "weak"


def test_stages_that_are_surely_alike_bind_together(tmp_path: Path) -> None:
    binding = binding_of(tmp_path, *[5.01, 4.99] * 6)
    assert binding.confidence == "likely"
    assert [row.name for row in binding.tied] == ["train"]


def test_a_lead_that_many_steps_contradict_is_weak(tmp_path: Path) -> None:
    binding = binding_of(tmp_path, *[4.9, 9, 9] * 4)
    assert binding.confidence == "weak"
    assert binding.tied == ()
    assert (binding.agreeing_steps, binding.steps) == (8, 12)


@pytest.mark.parametrize(
    ("stages", "steps", "because"),
    [
        (((Stage.ROLLOUT, 9.0),), 1, "1 steady step, at least 3 are needed"),
        (((Stage.ROLLOUT, 9.0),), 2, "2 steady steps, at least 3 are needed"),
        (((Stage.ROLLOUT, 3.0), (Stage.TRAIN, 2.0)), 6, "50 % of the step is in no stage"),
        (((Stage.ROLLOUT, 3.0), (Stage.WAIT, 6.0)), 6, "70 % of the step is in no stage"),
        ((), 6, "no stage was seen"),
    ],
)
def test_too_little_evidence_is_an_answer(
    tmp_path: Path, stages: tuple[tuple[Stage, float], ...], steps: int, because: str
) -> None:
    binding = summary_of_steps(tmp_path, *stages, steps=steps).binding
    assert binding.confidence == "insufficient evidence"
    assert because in binding.because
