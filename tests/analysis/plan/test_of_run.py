"""Plans calibrated with a run: what it measured, and how its stages compare with the models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rltrace.analysis.plan.of_run import Measured, calibrated, measured_tables
from rltrace.testing.inside.analysis import (
    PlanConstants,
    gpu,
    learner,
    merged,
    plan,
    rollout,
    spec_of,
)
from rltrace.testing.inside.trace import Stage

RUN = Measured(
    mean_tokens=800, longest_tokens=4000, variation=1.0, within_share=0.3, prompts=64, group=8,
    env_s=0.0, reward_s=0.5, judges=16, rollout_s=90.0,
    learner_s={Stage.TRAIN: 60.0, Stage.LOGPROB: 15.0}, placement="disaggregated",
    devices={"rollout": 8.0, "train": 8.0}, gpu=gpu("H100"), steps=12,
)  # fmt: skip
MODEL = {"model": {"name": "Qwen2.5-7B"}}


def test_the_models_are_scaled_to_what_the_runs_own_devices_took() -> None:
    found = calibrated(spec_of(merged(measured_tables(RUN), MODEL), ""), RUN)
    again = rollout(found, 8, PlanConstants())
    assert again.barrier_s == pytest.approx(RUN.rollout_s, rel=1e-6)
    stages = learner(found, 8, PlanConstants()).serial_s
    assert stages == pytest.approx(RUN.learner_s)
    assert any("12 measured steps on H100" in line for line in found.assumed)


def test_flags_say_what_is_planned_for_and_the_run_how_fast_it_goes() -> None:
    tables = merged(merged(measured_tables(RUN), MODEL), {"gpus": {"kind": "32xH100"}})
    measured = plan(calibrated(spec_of(tables, ""), RUN))
    stated = plan(spec_of(tables, ""))
    assert measured.spec.gpus == 32
    assert measured.spec.prompts == RUN.prompts
    assert measured.best.step_s != pytest.approx(stated.best.step_s, rel=0.02)


def test_a_reference_pass_on_the_actors_side_is_planned_for_too() -> None:
    assert not spec_of(merged(measured_tables(RUN), MODEL), "").reference
    beside = replace(RUN, reference_s=3.0)
    assert spec_of(merged(measured_tables(beside), MODEL), "").reference


def test_without_known_gpus_only_lengths_and_latencies_count() -> None:
    cpu = replace(RUN, gpu=None)
    assert "gpus" not in measured_tables(cpu)
    tables = merged(merged(measured_tables(cpu), MODEL), {"gpus": {"kind": "16xH100"}})
    found = calibrated(spec_of(tables, ""), cpu)
    assert found.calibrated == {}
    assert found.mean_tokens == RUN.mean_tokens
    assert any("no known GPUs" in line for line in found.assumed)


def test_another_kind_of_gpu_for_generation_is_priced_on_its_own() -> None:
    tables = merged(
        merged(measured_tables(RUN), MODEL),
        {"gpus": {"kind": "16xH100", "usd_per_hour": 2.5, "rollout_kind": "H20",
                  "rollout_usd_per_hour": 1.0}},
    )  # fmt: skip
    rows = {row.name: row for row in plan(spec_of(tables, "")).rows}
    apart = rows["async"]
    assert apart.usd_per_hour == apart.devices["rollout"] * 1.0 + apart.devices["train"] * 2.5
    assert rows["colocated"].usd_per_hour == 16 * 2.5
