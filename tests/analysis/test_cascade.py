"""Goodput as a product: every second and every token has one reason, and the product is exact; of
two runs whose difference is known the stage and the factor that made it are found."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrace
from benchmarks.make_trace import Truth, Workload, make
from rltrace.analysis.compare import Comparison, compare
from rltrace.analysis.figures.goodput_factors import Cascade
from rltrace.testing import Process, at, process, run_of, stating, turns
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.report import compare_section
from rltrace.testing.inside.trace import Fate, RltraceError, Stage, update_run_json
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.analysis.made import not_none, rows
from tests.analysis.walls.walled import summary_of

WORKLOADS: list[dict[str, Any]] = [
    {},
    {"placement": "disaggregated"},
    {"placement": "one-step-off"},
    {"placement": "async", "mixed": 0.3, "unknown_versions": 0.1},
    {"placement": "async", "kill_step": 5, "torn": True, "nodes": 2},
    {"gpus": 0},
]


def of(run: Run, **options: Any) -> Cascade:
    return not_none(summarize(run, **options, predict=False).cascade)


def cascade_of(path: Path, *processes: Process, **meta: Any) -> Cascade:
    return of(run_of(path, *processes, **meta))


def factor(found: Cascade, name: str) -> float:
    return next(one.value for one in found.factors if one.name == name)


def seconds(found: Cascade) -> dict[str, float]:
    return {part.reason: part.wall_s for part in found.wall_clock}


@pytest.mark.parametrize("knobs", WORKLOADS, ids=str)
def test_the_product_is_the_goodput_and_nothing_is_lost_twice(
    synthetic: Any, knobs: dict[str, Any]
) -> None:
    run, truth = synthetic(**knobs)
    found = of(run)
    product = math.prod(factor.value for factor in found.factors)
    assert product == pytest.approx(found.effective_tokens_per_device_s, rel=1e-12)
    per_usd = of(run, price_usd_per_hour=2.0).effective_tokens_per_usd
    assert per_usd == pytest.approx(found.effective_tokens_per_device_s * 3600 / 2)
    assert sum(part.wall_s for part in found.wall_clock) == pytest.approx(found.wall_s)
    assert sum(part.share for part in found.wall_clock) == pytest.approx(1)
    available = sum(part.wall_s for part in found.wall_clock if part.in_steps)
    assert found.available_s == pytest.approx(available)
    tokens = {one.reason: one.tokens for one in found.tokens}
    assert sum(tokens.values()) == found.generated_tokens == truth.generated_tokens
    assert tokens["useful"] == truth.useful_tokens
    assert tokens.get("trained in groups without a signal", 0) == truth.zero_advantage_tokens
    devices = truth.gpus or found.devices
    rate = truth.useful_tokens / (devices * found.wall_s)
    assert found.useful_tokens_per_device_s == pytest.approx(rate)
    assert all(0 < one.value <= 1 for one in found.factors if one.name != "peak rate")


def trained(made: Process, time_s: float, trajectory: int, group: int = -1) -> None:
    """A sample of 100 tokens."""
    rows(made, "trajectories", start_s=time_s - 1, end_s=time_s - 0.5, trajectory=trajectory,
         group=group, first_version=0, response_tokens=100)  # fmt: skip
    rows(made, "uses", time_s=time_s, trajectory=trajectory, version=0, fate=Fate.TRAINED,
         tokens=100)  # fmt: skip


def test_each_second_of_a_run_has_its_reason(tmp_path: Path) -> None:
    actor = process("rollout", (Stage.ROLLOUT, 10, 14), (Stage.ROLLOUT, 22, 26), devices=(0,))
    spans = [(("step", 0), 10, 20), (Stage.TRAIN, 14, 19), (Stage.EVAL, 20, 21)]
    spans += [(("step", 1), 22, 33), (Stage.TRAIN, 26, 31), (Stage.CHECKPOINT, 31, 32)]
    learner = process("learner", *spans, devices=(1,))
    trained(learner, 19, 1)
    found = cascade_of(tmp_path, actor, learner, start_real_ns=at(0), end_real_ns=at(40))
    in_steps = {"rollout": 8, "train": 10, "checkpoint": 1, "untraced": 2}
    outside = {"start-up": 10, "after the last step": 7, "eval": 1, "between steps": 1}
    assert seconds(found) == pytest.approx(in_steps | outside)
    assert factor(found, "availability") == pytest.approx(20 / 40)
    assert factor(found, "placement efficiency") == pytest.approx(18 / (2 * 20))
    pools = [(pool.roles, pool.devices, pool.busy_share) for pool in found.pools]
    busy = pytest.approx(10 / 21), pytest.approx(8 / 21)  # of the steps
    assert pools == [(("learner",), 1, busy[0]), (("rollout",), 1, busy[1])]


def test_what_a_process_starts_works_in_its_role(tmp_path: Path) -> None:
    engine = process("rollout", (("step", 0), 0, 10), devices=(0,))
    core = process("core", (Stage.ROLLOUT, 0, 8), devices=(0,))
    run = run_of(tmp_path, engine, core)
    (parent,) = (one for one in run.processes if one.role == "rollout")
    files = sorted((run.path / "process").iterdir())
    child = {"role": None, "forked_from": parent.who, "start_ns": parent.facts["start_ns"] + 1}
    said: list[dict[str, Any]] = [{} if parent.who in one.name else child for one in files]
    found = of(stating(run, *said))
    assert [(pool.roles, pool.devices) for pool in found.pools] == [(("rollout",), 1)]
    # And processes that share a device work on it once.
    spans = [(("step", 0), 0, 10), (Stage.ROLLOUT, 0, 8), (Stage.SWITCH, 8, 9)]
    first = process("worker", *spans, devices=(0,))
    second = process("worker", (Stage.TRAIN, 6, 9), rank=1, devices=(0,))
    shared = cascade_of(tmp_path / "shared", first, second)
    assert factor(shared, "placement efficiency") == pytest.approx(0.9)


def test_steps_that_a_restart_did_again_are_lost_with_their_tokens(tmp_path: Path) -> None:
    """And leave no doubt: the signal of the lost steps is unknown, that of what counts is not."""
    learner = process("learner", *((("step", n), 10 * n, 10 * n + 10) for n in range(3)))
    again = process("learner", (("step", 1), 40, 50), (("step", 2), 50, 60))
    for n, time_s in ((1, 15), (2, 25)):
        trained(learner, time_s, n)
    for n in (3, 4):
        trained(again, 55, n, group=7)
    rows(again, "rewards", start_s=54, end_s=54, trajectory=[3, 4], value=[0.0, 1.0])
    found = cascade_of(tmp_path, learner, again)
    assert seconds(found)["steps done again"] == pytest.approx(20)
    tokens = {one.reason: one.tokens for one in found.tokens}
    assert tokens == {"useful": 200, "trained in steps that were done again": 200}
    share = next(one for one in found.factors if one.name == "useful share")
    assert share.low == share.value == pytest.approx(2 / 4)


def test_a_job_that_died_in_its_first_step_was_never_available(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 5, -1), (Stage.ROLLOUT, 5, 8))
    meta = {"start_real_ns": at(0), "end_real_ns": at(20), "exit_code": 1}
    found = cascade_of(tmp_path, driver, **meta)
    assert seconds(found) == pytest.approx({"start-up": 5, "a step that never ended": 15})
    assert factor(found, "availability") == 0
    assert math.isnan(found.effective_tokens_per_device_s)
    # What is not known is unknown and says what is missing.
    driver = process("driver", (("step", 0), 0, 10), (Stage.TRAIN, 0, 10))
    found = cascade_of(tmp_path / "whole", driver)
    basis = {one.name: one.basis for one in found.factors if math.isnan(one.value)}
    assert set(basis) == {"useful share", "freshness weight", "peak rate"}
    assert "nobody recorded" in basis["useful share"]


@pytest.mark.parametrize("meta", [{}, {"imported": {"trainer": "verl", "kind": "console"}}])
def test_without_steps_or_a_clock_there_is_no_cascade(tmp_path: Path, meta: Any) -> None:
    steps = [(("step", 0), 0, 1)] if meta else []
    driver = process("driver", *steps, (Stage.TRAIN, 0, 1))
    assert summary_of(tmp_path, driver, **meta).cascade is None


def test_what_warmup_took_longer_is_told_by_steps_of_its_kind(tmp_path: Path) -> None:
    """Of ten steps five generate and take 10 s, the first of them 50 s, and five take 1 s."""
    spans: list[tuple[Any, ...]] = []
    now = 0.0
    for n in range(10):
        length = 50 if n == 0 else 10 if n % 2 == 0 else 1
        spans.append((("step", n), now, now + length))
        spans.append((Stage.TRAIN if n % 2 else Stage.ROLLOUT, now, now + length))
        now += length
    found = cascade_of(tmp_path, process("driver", *spans))
    assert seconds(found)["warm-up, beyond a usual step"] == pytest.approx(40)


LOAD = Workload(steps=24, prompts=8, group=4)


def compared(tmp_path: Path, first: Workload, second: Workload) -> tuple[Comparison, Truth, Truth]:
    truths = [make(tmp_path / name, load) for name, load in (("a", first), ("b", second))]
    runs = [rltrace.open_run(tmp_path / name) for name in ("a", "b")]
    return compare(*runs), truths[0], truths[1]


def exposed(truth: Truth, stage: str) -> float:
    steady = [step for step in truth.steps if not step.warmup]
    return float(np.mean([step.exposed_s.get(stage, 0.0) for step in steady]))


def said(found: Comparison) -> str:
    return "\n".join(line for part in compare_section.sections(found) for line in part.lines)


def test_a_slower_stage_is_found_and_differences_add_up(tmp_path: Path) -> None:
    found, one, other = compared(tmp_path, LOAD, replace(LOAD, train_s=3.5))
    stage = not_none(found.stage)
    assert stage.name == "train"
    true_s = exposed(other, "train") - exposed(one, "train")
    assert stage.difference_s.value == pytest.approx(true_s, rel=1e-6)
    assert stage.difference_s.low < true_s < stage.difference_s.high
    assert sum(s.difference_s.value for s in found.stages) == pytest.approx(
        found.difference_s.value
    )
    assert found.step_ratio.low > 1
    assert found.work_ratio.value == 1.0  # the same tokens, step by step
    assert not any(one.changed for one in found.drift)
    assert found.pace_ratio == found.step_ratio
    assert found.factor is not None


def test_longer_answers_are_other_work_and_no_slower_pace(tmp_path: Path) -> None:
    load = replace(LOAD, reward_s=0, reference_s=0, logprob_s=0, train_s=0.01, switch_s=0,
                   sync_s=0.01, gap_s=0, first_token_s=0)  # fmt: skip
    found, _, _ = compared(tmp_path, load, replace(load, median_tokens=800.0, max_tokens=8192))
    assert found.work_ratio.low > 1.5
    changed = {one.name: one.changed for one in found.drift}
    assert changed["tokens a sample"]
    assert not changed["samples a step"]
    pace = found.pace_ratio
    assert pace.low < 1 < pace.high or pace.value < 1.05
    product = found.work_ratio.value * pace.value
    assert found.step_ratio.value == pytest.approx(product, rel=1e-6)


def test_a_run_against_itself_and_against_one_that_was_killed(tmp_path: Path) -> None:
    found, _, _ = compared(tmp_path, LOAD, LOAD)
    assert found.difference_s.value == 0
    assert (found.stage, found.factor) == (None, None)
    assert found.settings == found.devices == ()
    update_run_json(str(tmp_path / "b"), exit_code=137)
    found = compare(rltrace.open_run(tmp_path / "a"), rltrace.open_run(tmp_path / "b"))
    assert found.alarms[0] == ()
    (says,) = found.alarms[1]
    assert "exit code 137, SIGKILL" in says
    assert said(found).startswith(f"! after: {says}.")


def test_lost_tokens_are_the_useful_share(tmp_path: Path) -> None:
    found, _, _ = compared(tmp_path, LOAD, replace(LOAD, zero_groups=0.6))
    factor = not_none(found.factor)
    assert factor.name == "useful share"
    assert factor.ratio.high < 1
    assert found.rate_ratio.value < 0.7
    product = math.prod(f.ratio.value for f in found.factors)
    assert product == pytest.approx(factor.ratio.value, rel=0.02)


def test_the_answer_and_the_table_below_it_have_one_interval(tmp_path: Path) -> None:
    def run(name: str, *lengths_s: float) -> Run:
        ends = np.cumsum(lengths_s).tolist()
        spans = [(what, end - length_s, end)
                 for n, (length_s, end) in enumerate(zip(lengths_s, ends, strict=True))
                 for what in (("step", n), Stage.TRAIN)]  # fmt: skip
        return run_of(tmp_path / name, process("c", *spans))

    runs = run("a", *[10, 9, 11, 10] * 3), run("b", *[13, 14, 12, 13] * 3)
    answer, table = [*compare_section.sections(compare(*runs))][:2]
    (step,) = (row for row in not_none(table.grid).rows if row[0] == "step")
    assert step[1:4] == ("10.00", "13.00", "+30.0 %")
    assert " to " in step[4]
    assert f"10.0 → 13.0 s a step, {step[3]} ({step[4]})." in answer.lines[0]


def test_what_is_measured_once_a_run_has_no_interval(tmp_path: Path) -> None:
    """The second run waits as long again after its last step as it worked."""
    driver = process("c", *turns(4, 5, 4, 5))
    runs = [
        run_of(tmp_path / name, driver, end_real_ns=at(s)) for name, s in (("a", 40), ("b", 80))
    ]
    found = compare(*runs)
    factor = {one.name: one for one in found.factors}["availability"]
    assert factor.once
    assert factor.ratio.value == pytest.approx(0.5, rel=0.05)
    assert np.isnan([factor.ratio.low, factor.ratio.high]).all()
    assert found.factor == factor


def test_nothing_is_minus_nought(tmp_path: Path) -> None:
    trained = {"a": 5, "b": 5 - 1e-7}
    runs = [run_of(tmp_path / n, process("c", *turns(4, 5, 4, s))) for n, s in trained.items()]
    grids = [part.grid for part in compare_section.sections(compare(*runs)) if part.grid]
    shown = [cell for grid in grids for row in grid.rows for cell in row]
    assert any(cell.startswith("0.0") for cell in shown)
    assert not [cell for cell in shown if cell.startswith("-0.0") and float(cell.split()[0]) == 0]


def test_settings_and_devices_that_differ_are_listed(tmp_path: Path) -> None:
    runs = []
    for name, lag in (("a", 1), ("b", 4)):
        meta = {"framework_version": f"1.{lag}"}
        run = run_of(tmp_path / name, process("controller", *turns(4, 5, 4, 5)), **meta)
        runs.append(stating(run, {"settings": {"max_lag": lag, "seed": 0}}))
    found = compare(*runs)
    assert [(d.name, d.before, d.after) for d in found.settings] == [("max_lag", 1, 4)]
    devices = [(d.name, d.before, d.after) for d in found.devices]
    assert devices == [("framework version", "1.1", "1.4")]


def test_without_tokens_work_and_pace_are_not_told_apart(tmp_path: Path) -> None:
    lengths = {"a": (4, 5, 4, 5), "b": (6, 7, 6, 7)}
    runs = [run_of(tmp_path / n, process("c", *turns(*s))) for n, s in lengths.items()]
    found = compare(*runs)
    assert np.isnan([found.work_ratio.value, found.pace_ratio.value]).all()
    assert found.difference_s.value == 0
    differences = {s.name: s.difference_s.value for s in found.stages}
    assert differences == pytest.approx({"rollout": 2.0, "train": -2.0})
    trains = [(("step", n), 9 * n, 9 * n + 9) for n in range(4)]
    trains += [(Stage.TRAIN, 9 * n, 9 * n + 9) for n in range(4)]
    tuned = run_of(tmp_path / "sft", process("learner", *trains))
    found = compare(runs[0], stating(tuned, {"no_rollout": "supervised fine-tuning"}))
    assert found.no_rollout == ("", "supervised fine-tuning")
    empty = run_of(tmp_path, process("c"))
    with pytest.raises(RltraceError, match="no complete step") as error:
        compare(empty, empty)
    assert error.value.exit_code == 3
