"""Two made runs whose difference is known: the stage and the factor that made it are found."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rltrace
from benchmarks.make_trace import Truth, Workload, make
from rltrace.analysis.compare import Comparison, compare
from rltrace.testing.inside.report import compare_section
from rltrace.testing.inside.trace import RltraceError, update_run_json
from rltrace.testing.made import at, process, run_of, turns

LOAD = Workload(steps=24, prompts=8, group=4)


def compared(tmp_path: Path, first: Workload, second: Workload) -> tuple[Comparison, Truth, Truth]:
    truths = [make(tmp_path / name, load) for name, load in (("a", first), ("b", second))]
    runs = [rltrace.open_run(tmp_path / name) for name in ("a", "b")]
    return compare(*runs), truths[0], truths[1]


def exposed(truth: Truth, stage: str) -> float:
    steady = [step for step in truth.steps if not step.warmup]
    return float(np.mean([step.exposed_s.get(stage, 0.0) for step in steady]))


def told(found: Comparison) -> str:
    return "\n".join(line for part in compare_section.sections(found) for line in part.lines)


def test_a_slower_stage_is_found_and_differences_add_up(tmp_path: Path) -> None:
    found, one, other = compared(tmp_path, LOAD, replace(LOAD, train_s=3.5))
    assert found.stage is not None
    assert found.stage.name == "train"
    true_s = exposed(other, "train") - exposed(one, "train")
    assert found.stage.difference_s.value == pytest.approx(true_s, rel=1e-6)
    assert found.stage.difference_s.low < true_s < found.stage.difference_s.high
    assert sum(s.difference_s.value for s in found.stages) == pytest.approx(found.step_s.value)
    assert found.step_ratio.low > 1
    assert found.work_ratio.value == 1.0  # the same tokens, step by step
    assert not any(one.changed for one in found.drift)
    assert found.pace_ratio == found.step_ratio
    assert found.factor is not None
    assert "Most of it is train" in told(found)
    assert "the work is alike" in told(found)


def test_longer_answers_are_other_work_and_no_slower_pace(tmp_path: Path) -> None:
    load = replace(LOAD, reward_s=0, reference_s=0, logprob_s=0, train_s=0.01, switch_s=0,
                   sync_s=0.01, gap_s=0, first_token_s=0)  # fmt: skip
    found, _, _ = compared(tmp_path, load, replace(load, median_tokens=800.0, max_tokens=8192))
    assert found.work_ratio.low > 1.5
    longer = {one.name: one for one in found.drift}["tokens a sample"]
    assert longer.changed
    assert not {one.name: one for one in found.drift}["samples a step"].changed
    assert found.pace_ratio.low < 1 < found.pace_ratio.high or found.pace_ratio.value < 1.05
    assert found.step_ratio.value == pytest.approx(
        found.work_ratio.value * found.pace_ratio.value, rel=1e-6
    )


def test_a_run_against_itself_differs_in_nothing(tmp_path: Path) -> None:
    found, _, _ = compared(tmp_path, LOAD, LOAD)
    assert found.step_s.value == 0
    assert found.stage is None
    assert found.factor is None
    assert found.settings == found.devices == ()
    assert "no difference" in told(found)


def test_lost_tokens_are_the_useful_share(tmp_path: Path) -> None:
    found, _, _ = compared(tmp_path, LOAD, replace(LOAD, zero_groups=0.6))
    assert found.factor is not None
    assert found.factor.name == "useful share"
    assert found.factor.ratio.high < 1
    product = math.prod(f.ratio.value for f in found.factors)
    assert found.rate_ratio.value < 0.7
    assert product == pytest.approx(found.factor.ratio.value, rel=0.02)


def test_what_is_measured_once_a_run_has_no_interval(tmp_path: Path) -> None:
    """The second run waits as long again after its last step as it worked."""
    runs = [
        run_of(tmp_path / name, process("c", *turns(4, 5, 4, 5)), end_real_ns=at(end_s))
        for name, end_s in (("a", 40), ("b", 80))
    ]
    found = compare(*runs)
    factor = {one.name: one for one in found.factors}["availability"]
    assert factor.once
    assert factor.ratio.value == pytest.approx(0.5, rel=0.05)
    assert math.isnan(factor.ratio.low)
    assert math.isnan(factor.ratio.high)
    assert found.factor == factor
    assert "availability changed most: -50.0 % (one value a run)" in told(found)


def test_nothing_is_minus_nought(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / n, process("c", *turns(4, 5, 4, train_s)))
            for n, train_s in (("a", 5), ("b", 5 - 1e-7))]  # fmt: skip
    found = compare(*runs)
    shown = [cell for part in compare_section.sections(found) if part.grid
             for row in part.grid.rows for cell in row]  # fmt: skip
    assert any(cell.startswith("0.0") for cell in shown)
    assert not [cell for cell in shown if cell.startswith("-0.0") and float(cell.split()[0]) == 0]


def test_settings_and_devices_that_differ_are_listed(tmp_path: Path) -> None:
    runs = []
    for name, lag in (("a", 1), ("b", 4)):
        run_of(tmp_path / name, process("controller", *turns(4, 5, 4, 5)))
        facts_file = next((tmp_path / name / "run/process").glob("*.json"))
        facts = json.loads(facts_file.read_text()) | {"settings": {"max_lag": lag, "seed": 0}}
        facts_file.write_text(json.dumps(facts))
        update_run_json(str(tmp_path / name / "run"), framework_version=f"1.{lag}")
        runs.append(rltrace.open_run(tmp_path / name / "run"))
    found = compare(*runs)
    assert [(d.name, d.before, d.after) for d in found.settings] == [("max_lag", 1, 4)]
    assert [(d.name, d.before, d.after) for d in found.devices] == [
        ("framework version", "1.1", "1.4")
    ]
    assert "max_lag 1 → 4" in told(found)


def test_without_tokens_work_and_pace_are_not_told_apart(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / n, process("c", *turns(*s))) for n, s in
            (("a", (4, 5, 4, 5)), ("b", (6, 7, 6, 7)))]  # fmt: skip
    found = compare(*runs)
    assert math.isnan(found.work_ratio.value)
    assert math.isnan(found.pace_ratio.value)
    assert found.step_s.value == 0
    assert {s.name: s.difference_s.value for s in found.stages} == pytest.approx(
        {"rollout": 2.0, "train": -2.0}
    )
    assert "cannot be told apart" in told(found)


def test_a_run_that_was_killed_is_no_silent_partner(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make(tmp_path / name, LOAD)
    update_run_json(str(tmp_path / "b"), exit_code=137)
    found = compare(rltrace.open_run(tmp_path / "a"), rltrace.open_run(tmp_path / "b"))
    assert found.unwell[0] == ()
    (says,) = found.unwell[1]
    assert "the job failed (exit code 137, SIGKILL)" in says
    assert told(found).startswith(f"The run after is not well: {says}.")


def test_a_run_without_steps_cannot_be_compared(tmp_path: Path) -> None:
    empty = run_of(tmp_path, process("c"))
    with pytest.raises(RltraceError, match="no complete step") as error:
        compare(empty, empty)
    assert error.value.exit_code == 3
