"""Cost models: decoding, training, memory, collectives, weights, environments; what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rltrace.analysis.plan.costs import env_seconds, learner, rollout
from rltrace.analysis.plan.engine import decoding
from rltrace.analysis.plan.memory import activation_bytes, training_memory, zero_bytes
from rltrace.analysis.plan.training import Layout, refuse_bandwidth, refuse_mfu, training
from rltrace.testing.inside.analysis import (
    MECHANISMS,
    Environment,
    PlanConstants,
    all_gather_s,
    all_reduce_s,
    broadcast_s,
    gpu,
    movement,
    shapes,
)
from rltrace.testing.inside.trace import RltraceError, Stage
from tests.analysis.plan.made import spec

H100 = gpu("H100")
SEVEN = shapes.by_name("Qwen2.5-7B")


def engine(pool: int = 8, **options: float):  # type: ignore[no-untyped-def]
    return decoding(SEVEN, H100, PlanConstants(), 1000, 200, 8, 512, pool, **options)


def test_an_iteration_is_never_faster_than_its_roofline() -> None:
    found = engine()
    for running in (1, 16, found.slots):
        read = SEVEN.weight_bytes + running * 1000 * SEVEN.kv_bytes
        assert found.iteration_s(running) > read / (found.ways * H100.bandwidth)


def test_a_lone_sequence_is_slow_and_many_are_fast_together() -> None:
    found = engine()
    assert 50 < found.tokens_per_s(1) < 250
    assert found.tokens_per_s(64) > 20 * found.tokens_per_s(1)


def test_slots_are_what_memory_holds_up_to_the_engines_limit() -> None:
    long = decoding(SEVEN, H100, PlanConstants(), 60_000, 200, 8, 512, 8)
    assert long.because == "memory for caches"
    assert long.slots * long.sequence_bytes <= long.cache_bytes
    assert engine(most=32.0).slots == 32


def test_a_shared_prompt_is_held_once_for_its_samples() -> None:
    alone, shared = (
        decoding(SEVEN, H100, PlanConstants(), 2000, 1600, share, 512, 8).sequence_bytes
        for share in (1, 16)
    )
    assert alone == pytest.approx(2000 * SEVEN.kv_bytes)
    assert shared == pytest.approx((400 + 1600 / 16) * SEVEN.kv_bytes)


def test_a_model_that_one_gpu_cannot_hold_gets_engines_of_several() -> None:
    found = decoding(shapes.by_name("Llama-3.1-70B"), H100, PlanConstants(), 1000, 0, 8, 512, 16)
    assert found.ways >= 4


@pytest.mark.parametrize("pool", [1, 8])
def test_a_model_that_no_engine_holds_is_refused_with_its_bytes(pool: int) -> None:
    with pytest.raises(RltraceError, match=r"weights are 812 GB.*at least 12 are needed"):
        decoding(shapes.by_name("Llama-3.1-405B"), H100, PlanConstants(), 1000, 0, 8, 512, pool)


def test_a_sequence_that_no_slot_can_hold_is_refused_with_its_bytes() -> None:
    with pytest.raises(RltraceError, match="no slot can hold a sequence"):
        decoding(SEVEN, H100, PlanConstants(), 2e7, 0, 1, 512, 8)


def test_without_a_barrier_a_batch_takes_what_full_engines_take() -> None:
    one = spec(batch={"prompts": 512, "group": 16}, engine={"sequences": 64})
    found = rollout(one, 8, PlanConstants())
    assert found.waves > 10
    rate = found.engine.tokens_per_s(found.engine.slots) * found.engines
    decoded = one.response_tokens / rate + found.engine.prefill_s * one.prompts / found.engines
    assert found.throughput_s == pytest.approx(decoded)
    assert found.throughput_s < found.barrier_s < 1.5 * found.throughput_s


def test_the_tail_is_large_where_all_samples_run_at_once() -> None:
    few = rollout(spec(batch={"prompts": 8, "group": 8}), 8, PlanConstants())
    assert few.waves <= 1
    assert few.barrier_s > 2.5 * few.throughput_s


def test_training_costs_six_flop_a_parameter_and_token_and_attention() -> None:
    found = training(SEVEN, H100, 8, PlanConstants(), 1e6, 0.0, 1000, 1)
    assert found.flop == pytest.approx(6 * SEVEN.active * 1e6)
    longer = training(SEVEN, H100, 8, PlanConstants(), 1e6, 32e3**2, 1000, 1)
    assert longer.flop > 1.5 * found.flop
    assert found.mfu < 0.5


def test_a_forward_pass_is_cheaper_than_training_but_more_than_a_fifth_of_it() -> None:
    found = training(SEVEN, H100, 8, PlanConstants(), 1e6, 1e6, 1000, 1)
    assert 0.2 * found.train_s < found.forward_s < 0.6 * found.train_s


def test_a_pipeline_of_few_micro_batches_has_a_bubble() -> None:
    layouts = (Layout(2, 1), Layout(2, 8))
    flat, deep = (
        training(SEVEN, H100, 64, PlanConstants(), 1e6, 1e6, 128, 1, layout=layout)
        for layout in layouts
    )
    assert flat.bubble_s == 0
    assert deep.bubble_s > 0.1 * deep.arithmetic_s


def test_more_gpus_help_training_by_less_than_their_number() -> None:
    times = [learner(spec(), n, PlanConstants()).total_s for n in (8, 16, 32)]
    assert times[0] > times[1] > times[2]
    assert times[0] / times[2] < 4


def test_the_learner_of_the_seven_billion_example_is_refused() -> None:
    tokens = 64 * 16 * 1024
    with pytest.raises(RltraceError, match="139 % MFU"):
        refuse_mfu("training", 6 * 7e9 * tokens, 4, H100, 8, PlanConstants())
    refuse_mfu("training", 6 * 7e9 * tokens, 4, H100, 35, PlanConstants())


def test_a_rate_beyond_the_memory_bandwidth_is_refused() -> None:
    with pytest.raises(RltraceError, match="tokens/s are the most"):
        refuse_bandwidth(1e6, SEVEN, H100, 4, 256, 768)
    refuse_bandwidth(4 * 12_000, SEVEN, H100, 4, 256, 768)


@pytest.mark.parametrize(
    ("stage", "bytes_each"), [("0", 16), ("1", 4 + 12 / 8), ("2", 2 + 14 / 8), ("3", 2)]
)
def test_zero_stages_shard_what_they_should(stage: str, bytes_each: float) -> None:
    assert zero_bytes(70e9, 8)[stage] == pytest.approx(70e9 * bytes_each)


def test_the_state_of_70b_is_that_of_the_published_arithmetic() -> None:
    assert zero_bytes(70e9, 64)["0"] == 1.12e12
    assert zero_bytes(405e9, 64)["0"] == 6.48e12


def test_recompute_and_flash_attention_save_activations() -> None:
    full = activation_bytes(32, 4096, 4096, False, heads=32)
    flash = activation_bytes(32, 4096, 4096, False)
    again = activation_bytes(32, 4096, 4096, True)
    assert full > flash > 5 * again


def test_training_that_does_not_fit_is_refused_with_the_number() -> None:
    big = spec(model={"name": "Llama-3.1-70B"}, gpus={"kind": "2xH100"})
    with pytest.raises(RltraceError, match=r"state is 1,129 GB \(16 bytes a parameter\)"):
        training_memory(big, 2, PlanConstants())


def test_training_takes_the_least_effort_that_fits() -> None:
    stages = [training_memory(spec(), n, PlanConstants()).stage for n in (1, 2, 16)]
    assert stages[0] == "3 + offload"
    assert stages[1] == "3"
    assert stages[2] in ("1", "2")


def test_collectives_follow_their_formulas() -> None:
    assert all_gather_s(8e9, 8, 1e9) == pytest.approx(7)
    assert all_reduce_s(8e9, 8, 1e9) == pytest.approx(14)
    assert broadcast_s(8e9, 8, 1e9, 0.1) == pytest.approx(8.3)
    for collective in (all_gather_s, all_reduce_s, broadcast_s):
        assert collective(8e9, 1, 1e9) == 0


def test_mechanisms_differ_as_published_and_many_tensors_hurt_the_naive_one() -> None:
    mixture, dense = shapes.by_name("Qwen3-30B-A3B"), shapes.by_name("Qwen2.5-32B")
    seconds = {m: movement(m, mixture, PlanConstants(), 32).seconds for m in MECHANISMS}
    assert seconds["naive"] > seconds["delta"] > seconds["bucketed"]
    assert seconds["bucketed"] > seconds["relay"] > seconds["direct"]
    assert seconds["naive"] > movement("naive", dense, PlanConstants()).seconds


def test_more_receivers_cost_a_relay_next_to_nothing() -> None:
    shape = shapes.by_name("DeepSeek-V3")
    few, many = (movement("relay", shape, PlanConstants(), n).seconds for n in (16, 256))
    assert few == pytest.approx(many, rel=1e-3)


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(RltraceError, match="naive, bucketed, relay, delta, direct"):
        movement("pigeon", SEVEN, PlanConstants())


def test_failures_of_tools_cost_a_timeout_and_another_call() -> None:
    sure = Environment(calls=4, latency_s=2)
    assert sure.mean_s == 8
    fails = replace(sure, failures=0.2, timeout_s=30)
    assert fails.mean_s == pytest.approx(4 * (2 + 0.25 * 30))
    drawn = env_seconds(fails, 4000)
    assert drawn.mean() == pytest.approx(fails.mean_s)
    assert drawn.max() > 3 * drawn.mean()


def test_very_many_calls_are_drawn_by_a_few_with_their_mean_and_deviation() -> None:
    calls, each = 2000, 3.0
    many = Environment(calls=calls, latency_s=each, variation=2.0)
    drawn = env_seconds(many, 4000)
    assert drawn.mean() == pytest.approx(calls * each)
    assert drawn.std() == pytest.approx(math.sqrt(calls) * each * 2.0, rel=0.1)
    assert drawn.min() > 0


def test_a_critic_doubles_training_and_adds_a_pass() -> None:
    without, with_one = (
        learner(spec(passes={"critic": critic}), 8, PlanConstants()).serial_s
        for critic in (False, True)
    )
    assert with_one[Stage.TRAIN] == 2 * without[Stage.TRAIN]
    assert Stage.VALUE in with_one
    assert Stage.VALUE not in without
    assert not math.isnan(sum(with_one.values()))
