"""Plans: placements side by side, the law of the fixed budget, ranges, walls; and workloads that
make no sense."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from rltrace.analysis.plan.plan import Plan, plan, sweep
from rltrace.analysis.plan.workload_input import Measured, calibrated
from rltrace.testing.inside.analysis import (
    ENV_REWARD,
    LEARNER,
    PLACEMENTS,
    ROLLOUT,
    TAIL,
    PlanConstants,
    Pools,
    learner,
    merged,
    packaged,
    parts_of,
    place,
    replay,
    rollout,
    spec_of,
    triage,
    wall_names,
)
from rltrace.testing.inside.analysis import data_sheets as hardware
from rltrace.testing.inside.trace import WRONG_USAGE, RltraceError, Stage
from tests.analysis.plan.made import SHORT, spec


@pytest.fixture(scope="module")
def bounded() -> Plan:
    return plan(spec(top={"staleness": "bounded"}))


def test_all_placements_are_compared_at_equal_gpus(bounded: Plan) -> None:
    assert [row.name for row in bounded.rows] == list(PLACEMENTS)
    for row in bounded.rows:
        assert sum(row.devices.values()) == 16
        assert row.useful_tokens_per_device_s == pytest.approx(
            64 * 16 * 1000 / (row.step_s * 16), rel=1e-6
        )
        assert row.useful_tokens_per_usd == pytest.approx(
            row.useful_tokens_per_device_s * 3600 / 2.5
        )
    assert bounded.step_s.low < bounded.best.step_s < bounded.step_s.high
    assert any("train_mfu" in line for line in bounded.rests_on)


def test_the_replay_takes_as_long_as_the_closed_form_says(bounded: Plan) -> None:
    pools = Pools(bounded.spec, PlanConstants())
    for name in PLACEMENTS:
        placed = place(pools, name)
        assert placed.step_s == pytest.approx(placed.parts.step_s, rel=0.1), name


def test_strict_staleness_allows_only_what_is_on_policy() -> None:
    found = plan(spec(top={"staleness": "strict"}))
    assert found.best.name in ("colocated", "disaggregated")
    assert found.best.mean_lag == 0
    assert {row.name for row in found.rows if row.allowed} == {"colocated", "disaggregated"}


def test_most_lags_keep_within_the_bound(bounded: Plan) -> None:
    """It counts what is begun: a group of long samples may come later than that."""
    for row in bounded.rows:
        assert sum(row.lag_shares.values()) == pytest.approx(1)
        assert row.mean_lag <= 2
        assert sum(share for lag, share in row.lag_shares.items() if lag <= 2) > 0.7


TOOLS: dict[str, dict[str, Any]] = {
    "lengths": {"mean_tokens": 6000, "cap_tokens": 32768},
    "batch": {"prompts": 128},
    "environment": {"latency_s": 8},
}


def test_no_more_lag_is_planned_with_than_keeps_the_engines_full() -> None:
    """What is begun beyond only waits for a slot: allowing it makes nothing faster, and no plan
    slower to make."""
    some, any_ = (plan(spec(top={"staleness": lag}, **TOOLS)) for lag in (4, 1_000_000))
    rows = {row.name: row for row in any_.rows}
    for row in some.rows:
        assert rows[row.name].step_s == row.step_s
        assert rows[row.name].lag_shares == row.lag_shares
    assert any_.placed.load.lag_bound <= 4
    few = plan(spec(top={"staleness": 8}, batch={"prompts": 4, "group": 8}))
    assert few.placed.load.lag_bound == 8  # an engine that holds many batches has a use for it


def test_what_is_played_is_how_the_job_goes_on_and_not_how_it_begins() -> None:
    """With all that the bound admits begun at once, the first steps have another pace."""
    for changes in (TOOLS, {"batch": {"prompts": 16, "group": 8}}):
        load = place(Pools(spec(top={"staleness": 8}, **changes), PlanConstants()), "async")
        longer = replay(replace(load.load, batches=load.load.batches * 8))
        assert load.step_s == pytest.approx(longer.step_s, rel=0.05)
        assert load.played.mean_lag == pytest.approx(longer.mean_lag, rel=0.15)


def test_splitting_a_pool_gains_nothing_where_all_scales() -> None:
    """The longer of g / x and t / (1 - x) is never below g + t."""
    perfect = {
        "half_efficiency_tokens": 0.0, "step_overhead_s": 0.0, "own_devices": 1.0,
        "switch_fixed_s": 0.0, "communication_exposed": 0.0, "sync_latency_s": 0.0,
        "bucketed_tensor_s": 0.0, "bucketed_link_gb_per_s": 1e9, "reshard_link_share": 1e9,
        "decode_overhead_s": 0.0, "hop_latency_near_s": 0.0, "log_deviation": 0.0,
    }  # fmt: skip
    one = spec(
        batch={"prompts": 4096, "group": 16}, lengths={"cap_tokens": 1500},
        engine={"tensor": 1, "sequences": 256}, training={"tensor": 1},
    )  # fmt: skip
    pools = Pools(one, PlanConstants(perfect))
    shared = parts_of(pools, "colocated", 16)
    whole = shared.rollout.throughput_s + shared.learner.total_s
    for x in range(1, 16):
        split = parts_of(pools, "async", x)
        assert split.rollout.throughput_s == pytest.approx(
            shared.rollout.throughput_s * 16 / x, rel=0.01
        )
        assert split.step_s >= whole * 0.995


def test_walls_are_all_named_and_those_that_a_shape_cannot_tell_come_last(bounded: Plan) -> None:
    assert {wall.name for wall in bounded.walls} <= set(wall_names())
    shares = [wall.share for wall in bounded.walls]
    known = [share for share in shares if not math.isnan(share)]
    assert known == sorted(known, reverse=True)
    assert all(math.isnan(share) for share in shares[len(known) :])
    # A point of a sweep is the plan.
    (point,) = sweep(SHORT, "lag", [2], lambda tables: spec_of(tables, ""))
    assert (point.row, point.wall) == (bounded.best, bounded.walls[0].name)


@pytest.mark.parametrize(
    ("changes", "wall"),
    [
        ({"lengths": {"mean_tokens": 200, "cap_tokens": 1000, "prompt_tokens": 4000},
          "batch": {"prompts": 512}, "passes": {"critic": True}}, LEARNER),
        ({"lengths": {"mean_tokens": 6000, "cap_tokens": 60000}, "batch": {"prompts": 4}}, TAIL),
        ({"lengths": {"mean_tokens": 6000, "cap_tokens": 7000, "variation": 0.1},
          "batch": {"prompts": 8}}, ROLLOUT),
        ({"reward": {"latency_s": 20, "workers": 32}}, ENV_REWARD),
        ({"environment": {"latency_s": 30, "calls": 10}}, ENV_REWARD),
    ],
    ids=["learner", "tail", "rollout", "verdicts", "tools"],
)  # fmt: skip
def test_the_wall_is_what_the_workload_is_made_of(changes: dict[str, Any], wall: str) -> None:
    found = plan(spec(top={"staleness": "strict"}, **changes))
    assert found.binding[0] == wall


@pytest.mark.parametrize("staleness", ["strict", "bounded"])
def test_a_plans_seconds_have_the_same_walls_where_they_are_stated(staleness: str) -> None:
    """A plan and a stages file are one workload: what the plan found binds there, too."""
    found = plan(spec(top={"staleness": staleness}))
    made, learner_s = found.parts.rollout, found.parts.learner.serial_s
    rollout_s = {"rollout": found.parts.decoding_s, "reward": made.reward_s}
    moved = {"switch" if found.parts.shared else "sync": found.parts.moved.seconds}
    stages = rollout_s | moved | {stage.name.lower(): s for stage, s in learner_s.items()}
    said: dict[str, Any] = {"placement": found.best.name, "stages": stages}
    if found.best.name != "async":
        said["rollout"] = {"throughput_s": made.throughput_s}
    if found.best.name == "async":
        said["lag_bound"] = found.parts.lag_bound
    quick = triage({**said, "devices": found.best.devices})
    for kinds in ((ROLLOUT, TAIL), (LEARNER,), (ENV_REWARD,)):  # what of generation is the tail's
        planned, stated = (  # depends on all lengths, which a stages file has not
            sum(wall.share for wall in one.walls if wall.name in kinds) for one in (found, quick)
        )
        assert stated == pytest.approx(planned, abs=0.15 if ROLLOUT in kinds else 0.05), kinds


def test_a_batch_that_waits_for_nobody_has_no_tail() -> None:
    found = plan(spec(top={"staleness": "loose"}, batch={"prompts": 4}))
    tail = next(wall for wall in found.walls if wall.name == TAIL)
    assert (tail.share == 0) == (found.best.name == "async")
    assert found.best.name != "colocated"


def test_tools_are_the_wall_of_an_asynchronous_job_too() -> None:
    found = plan(spec(top={"staleness": "bounded"}, environment={"latency_s": 30, "calls": 10}))
    assert found.best.name == "async"
    assert found.binding[0] == ENV_REWARD
    few = {"latency_s": 30, "calls": 10, "workers": 64}
    assert plan(spec(environment=few)).best.step_s > 3 * found.best.step_s


def test_a_plan_that_fits_nowhere_says_why() -> None:
    with pytest.raises(RltraceError, match="does not fit"):
        plan(spec(model={"name": "Llama-3.1-405B"}, gpus={"kind": "8xH100"}))


def test_a_single_gpu_has_nothing_to_split() -> None:
    found = plan(spec(model={"name": "Qwen2.5-0.5B"}, gpus={"kind": "1xH100"}))
    assert found.best.name == "colocated"
    refused = {row.name: row.refused for row in found.rows if row.refused}
    assert refused["async"] == "one GPU cannot be split into two pools"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"gpus": {"kind": "0xH100"}}, "0xH100"),
        ({"lengths": {"cap_tokens": 500}}, "cap of 500"),
        ({"model": {"name": "gpt-9"}}, "gpt-9"),
        ({"batch": {"prompts": 0}}, "batch.prompts must be from 1 to"),
        ({"batch": {"prompts": 1.5}}, "batch.prompts must be a whole number"),
        ({"batch": {"prompts": 10**400}}, "batch.prompts must be from 1 to"),
        ({"model": {"name": "Qwen2.5-7B", "experts": 8, "chosen": 9}}, "9 of 8"),
        ({"lengths": {"mean_tokens": -1}}, "lengths.mean_tokens must be from 1"),
        ({"lengths": {"mean_tokens": "long"}}, "lengths.mean_tokens must be a number"),
        ({"": {"staleness": "some"}}, "strict, bounded, loose"),
        ({"sync": {"mechanism": "pigeon"}}, "naive, bucketed"),
        ({"prefers": {"stack": "tf"}}, "megatron"),
        ({"gpus": {"split": "9:9"}}, "add up to 16"),
        ({"batch": {"updates": 5000}}, "5000 optimizer updates"),
        ({"lengths": {"max": 3}}, "lengths.max"),
        ({"colour": {"x": 1}}, r"\[colour\]"),
        ({"passes": {"critic": 1}}, "passes.critic must be true or false"),
        ({"model": {"parameters": "big", "name": ""}}, "a number like 7B"),
        ({"model": {"parameters": "7B", "active": "9B", "name": ""}}, "9B"),
        ({"gpu": {"node": 1.5}}, "gpu.node must be a whole number"),
        ({"model": {"name": "Qwen2.5-7B", "layers": 2.5}}, "model.layers must be a whole number"),
        ({"engine": {"tensor": 32}}, "over 32 GPUs cannot be on 16"),
        ({"training": {"tensor": 8, "pipeline": 4}}, "over 32 GPUs cannot be on 16"),
        ({"": {"staleness": 1e300}}, "from 0 to 1,000,000"),
        ({"gpus": {"kind": "2000000xH100"}}, "--gpus must be like 32xH100"),
        *(({table: {key: value}}, f"{table}.{key} must ")
          for table in ("lengths", "batch", "gpu")
          for key, (least, most) in packaged("workload")[table].items()
          for value in (2 * most, *([least / 2] if least else ()))),
    ],
)  # fmt: skip
def test_nonsense_is_refused_in_one_sentence(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(RltraceError, match=names) as error:
        spec_of(merged(SHORT, changes), "")
    assert (error.value.exit_code, "\n" in str(error.value)) == (WRONG_USAGE, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": {"kind": "100000xH100"}},
        {"gpus": {"kind": "1xH200"}, "model": {"name": "Qwen2.5-0.5B"}, "gpu": {"node": 1}},
        {"gpus": {"kind": "4xH100"}, "gpu": {"node": 1}},
        {"model": {"parameters": "1M"}},
        {"batch": {"prompts": 1, "group": 1}},
        {"batch": {"prompts": 10**9, "group": 10**6}},
        {"lengths": {"mean_tokens": 1, "cap_tokens": 2, "prompt_tokens": 0}},
        {"lengths": {"mean_tokens": 7999.999, "variation": 1000}},
        {"environment": {"latency_s": 10_000_000, "calls": 1_000_000}},
        {"reward": {"latency_s": 10_000_000, "workers": 1}},
        {"batch": {"updates": 1024}},
    ],
)
def test_what_is_extreme_has_an_answer_in_finite_figures(changes: dict[str, Any]) -> None:
    found = plan(spec(**changes))
    assert 0 < found.step_s.low <= found.best.step_s <= found.step_s.high < math.inf
    assert 0 <= found.best.mean_lag < math.inf
    assert found.best.useful_tokens_per_device_s > 0


def test_defaults_are_said() -> None:
    bare = {"model": SHORT["model"], "gpus": SHORT["gpus"], "lengths": {"mean_tokens": 1000}}
    says = " ".join(spec_of(bare, "").assumed)
    for word in ("4,000 tokens", "128 prompts", "8 samples", "512 tokens", "2 versions"):
        assert word in says


RUN = Measured(
    tables={
        "batch": {"prompts": 64, "group": 8},
        "lengths": {"mean_tokens": 800.0, "cap_tokens": 4004.0, "variation": 1.0},
        "reward": {"latency_s": 0.5, "workers": 16}, "gpus": {"kind": "16xH100"},
    },
    stages_s={Stage.ROLLOUT: 90.0, Stage.TRAIN: 60.0, Stage.LOGPROB: 15.0},
    placement="disaggregated", devices={"rollout": 8.0, "train": 8.0},
    gpu=hardware.counted("16xH100")[1], steps=12,
)  # fmt: skip
MODEL = {"model": {"name": "Qwen2.5-7B"}}


def test_the_models_are_scaled_to_what_the_runs_own_devices_took() -> None:
    found = calibrated(spec_of(merged(RUN.tables, MODEL), ""), RUN)
    again = rollout(found, 8, PlanConstants())
    stages = {Stage.ROLLOUT: again.barrier_s, **learner(found, 8, PlanConstants()).serial_s}
    assert stages == pytest.approx(dict(RUN.stages_s), rel=1e-6)
    assert any("12 measured steps on H100" in line for line in found.assumed)


def test_flags_say_what_is_planned_for_and_the_run_how_fast_it_goes() -> None:
    tables = merged(merged(RUN.tables, MODEL), {"gpus": {"kind": "32xH100"}})
    measured = plan(calibrated(spec_of(tables, ""), RUN))
    stated = plan(spec_of(tables, ""))
    assert measured.spec.gpus == 32
    assert measured.spec.prompts == 64
    assert measured.best.step_s != pytest.approx(stated.best.step_s, rel=0.02)


def test_without_known_gpus_only_lengths_and_latencies_count() -> None:
    cpu = replace(RUN, gpu=None)
    found = calibrated(spec_of(merged(RUN.tables, MODEL), ""), cpu)
    assert found.calibrated == {}
    assert found.mean_tokens == 800
    assert any("no known GPUs" in line for line in found.assumed)
