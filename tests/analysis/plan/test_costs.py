"""Cost models, lengths and shapes: decoding, training, memory, collectives, weights, tools."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rltrace.analysis.plan import data_sheets as shapes
from rltrace.analysis.plan.planned_workload import lengths
from rltrace.analysis.plan.stage_costs import (
    Decoding,
    activation_bytes,
    decoding,
    learner,
    rollout,
    training_memory,
    zero_bytes,
)
from rltrace.testing.inside.analysis import (
    MECHANISMS,
    PEAK_TFLOPS,
    PlanConstants,
    log_deviation,
    movement,
    packaged,
)
from rltrace.testing.inside.analysis import EnvironmentModel as Environment
from rltrace.testing.inside.analysis import data_sheets as hardware
from rltrace.testing.inside.analysis import plan_table as plan_constants
from rltrace.testing.inside.analysis import table as whatif_constants
from rltrace.testing.inside.trace import RltraceError, Stage
from tests.analysis.plan.made import spec

H100 = hardware.counted("1xH100")[1]
SEVEN = shapes.by_name("Qwen2.5-7B")


def engine(
    mean: float = 1000, prompt: float = 200, share: int = 8, pool: int = 8, **tables: Any
) -> Decoding:
    """Engines of H100 and sequences of a mean length, at whose end they are twice as long."""
    size = {"mean_tokens": 2 * (mean - prompt), "cap_tokens": 4 * mean, "prompt_tokens": prompt}
    batch = {"prompts": 512 // share, "group": share}
    one = spec(batch=batch, lengths={**size, "variation": 0}, **tables)
    return decoding(one, pool, PlanConstants())


def test_an_iteration_is_never_faster_than_its_roofline_and_many_are_fast_together() -> None:
    found = engine()
    for running in (1, 16, found.slots):
        read = SEVEN.weight_bytes + running * 1000 * SEVEN.kv_bytes
        assert found.iteration_s(running) > read / (found.ways * H100.bandwidth)
    assert 50 < found.tokens_per_s(1) < 250
    assert found.tokens_per_s(64) > 20 * found.tokens_per_s(1)


def test_slots_are_what_memory_holds_up_to_the_engines_limit() -> None:
    long = engine(60_000)
    assert long.because == "memory for caches"
    room = long.ways * H100.memory_bytes * PlanConstants()["engine_memory_share"]
    assert long.slots * long.sequence_bytes <= room - SEVEN.weight_bytes
    assert engine(engine={"sequences": 32}).slots == 32


def test_a_shared_prompt_is_held_once_for_its_samples() -> None:
    assert engine(2000, 1600, 1).sequence_bytes == pytest.approx(2000 * SEVEN.kv_bytes)
    shared = engine(2000, 1600, 16).sequence_bytes
    assert shared == pytest.approx((400 + 1600 / 16) * SEVEN.kv_bytes)


@pytest.mark.parametrize("pool", [1, 8])
def test_what_no_engine_holds_is_refused_with_its_bytes(pool: int) -> None:
    assert engine(prompt=0, model={"name": "Llama-3.1-70B"}, pool=16).ways >= 4
    with pytest.raises(RltraceError, match=r"weights are 812 GB.*at least 12 GPUs are needed"):
        engine(prompt=0, model={"name": "Llama-3.1-405B"}, pool=pool)
    with pytest.raises(RltraceError, match=r"a sequence of 2\d,\d+,\d+ tokens takes"):
        engine(2e7, 0, 1, pool=pool)


def test_without_a_barrier_a_batch_takes_what_full_engines_take() -> None:
    one = spec(batch={"prompts": 512, "group": 16}, engine={"sequences": 64})
    found = rollout(one, 8, PlanConstants())
    assert found.waves > 10
    rate = found.engine.tokens_per_s(found.engine.slots) * found.engines
    decoded = one.response_tokens / rate + found.engine.prefill_s * one.prompts / found.engines
    assert found.throughput_s == pytest.approx(decoded)
    assert found.throughput_s < found.barrier_s < 1.5 * found.throughput_s
    few = rollout(spec(batch={"prompts": 8, "group": 8}), 8, PlanConstants())
    assert few.waves <= 1
    assert few.barrier_s > 2.5 * few.throughput_s  # the tail


def test_training_costs_six_flop_a_parameter_and_token_and_attention() -> None:
    one, far = spec(), spec(lengths={"mean_tokens": 32e3, "cap_tokens": 64e3})
    found, longer = (learner(each, 8, PlanConstants()) for each in (one, far))
    attention = SEVEN.attention_flop(one.square(one.lengths(PlanConstants()))) * one.samples
    assert found.flop == pytest.approx(6 * SEVEN.active * one.trained_tokens + 3 * attention)
    assert longer.flop > 1.5 * 6 * SEVEN.active * far.trained_tokens
    assert found.mfu < 0.5
    assert 0.2 < longer.serial_s[Stage.LOGPROB] / longer.serial_s[Stage.TRAIN] < 0.6


def test_a_pipeline_of_few_micro_batches_has_a_bubble() -> None:
    few = {"prompts": 8}
    flat, deep = (
        learner(spec(training={"tensor": 2, "pipeline": n}, batch=few), 64, PlanConstants())
        for n in (1, 8)
    )
    assert flat.bubble_s == 0
    assert deep.bubble_s > 0.1 * deep.arithmetic_s


def test_more_gpus_help_training_by_less_than_their_number() -> None:
    times = [learner(spec(), n, PlanConstants()).total_s for n in (8, 16, 32)]
    assert times[0] > times[1] > times[2]
    assert times[0] / times[2] < 4


def test_zero_stages_shard_what_they_should() -> None:
    bytes_each = {"0": 16, "1": 4 + 12 / 8, "2": 2 + 14 / 8, "3": 2}
    for stage, each in bytes_each.items():
        assert zero_bytes(70e9, 8)[stage] == pytest.approx(70e9 * each)


def test_recompute_saves_activations() -> None:
    assert activation_bytes(32, 4096, 4096, False) > 5 * activation_bytes(32, 4096, 4096, True)


def test_training_takes_the_least_effort_that_fits_and_is_refused_with_the_number() -> None:
    stages = [training_memory(spec(), n, PlanConstants()).stage for n in (1, 2, 16)]
    assert stages[:2] == ["3 + offload", "3"]
    assert stages[2] in ("1", "2")
    big = spec(model={"name": "Llama-3.1-70B"}, gpus={"kind": "2xH100"})
    with pytest.raises(RltraceError, match=r"state is 1,129 GB \(16 bytes a parameter\)"):
        training_memory(big, 2, PlanConstants())


def test_collectives_follow_their_formulas() -> None:
    assert hardware.all_gather_s(8e9, 8, 1e9) == pytest.approx(7)
    assert hardware.all_reduce_s(8e9, 8, 1e9) == pytest.approx(14)
    for collective in (hardware.all_gather_s, hardware.all_reduce_s):
        assert collective(8e9, 1, 1e9) == 0


def test_mechanisms_differ_as_published_and_many_tensors_hurt_the_naive_one() -> None:
    mixture, dense = shapes.by_name("Qwen3-30B-A3B"), shapes.by_name("Qwen2.5-32B")
    seconds = {m: movement(m, mixture, PlanConstants(), 32).seconds for m in MECHANISMS}
    assert seconds["naive"] > seconds["delta"] > seconds["bucketed"]
    assert seconds["bucketed"] > seconds["relay"] > seconds["direct"]
    assert seconds["naive"] > movement("naive", dense, PlanConstants(), 32).seconds


def test_seconds_of_tools_have_their_mean_and_many_calls_vary_less_than_one() -> None:
    many = Environment(calls=400, latency_s=3.0, variation=2.0)
    drawn = many.seconds(4000, 0)
    assert drawn.mean() == pytest.approx(many.mean_s) == pytest.approx(1200)
    assert drawn.std() == pytest.approx(math.sqrt(400) * 3 * 2.0, rel=0.1)
    one = Environment(calls=1, latency_s=1200, variation=2.0)
    assert one.longest_s(64) > 3 * many.longest_s(64) > 3 * many.mean_s


def test_a_critic_doubles_training_and_adds_a_pass() -> None:
    without, with_one = (
        learner(spec(passes={"critic": critic}), 8, PlanConstants()).serial_s
        for critic in (False, True)
    )
    assert with_one[Stage.TRAIN] == 2 * without[Stage.TRAIN]
    assert Stage.VALUE in with_one
    assert Stage.VALUE not in without
    assert not math.isnan(sum(with_one.values()))


@pytest.mark.parametrize(("n", "c", "exact"), [(2, 0.5, 1.26), (16, 1, 3.44), (256, 2, 18.59)])
def test_the_longest_is_the_exact_order_statistic(n: int, c: float, exact: float) -> None:
    of = lengths(1000, 1e12, log_deviation(c), 0.3)
    assert of.longest(n) / 1000 == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(("mean", "cap", "s"), [(6000, 32768, 1.0), (3000, 4000, 0.8), (9, 10, 2)])
def test_moments_of_cut_lengths_are_those_of_many_drawn_ones(
    mean: float, cap: float, s: float
) -> None:
    of = lengths(mean, cap, s, 0.3)
    drawn = of.uncut * np.exp(s * np.random.default_rng(1).standard_normal(400_000) - s * s / 2)
    cut = np.minimum(drawn, cap)
    assert cut.mean() == pytest.approx(mean, rel=0.01)
    assert (cut**2).mean() == pytest.approx(of.square, rel=0.01)
    assert (drawn >= cap).mean() == pytest.approx(of.cut_share, abs=0.005)


def test_lengths_that_do_not_vary_are_their_mean() -> None:
    of = lengths(500, 1000, 0.0, 0.3)
    assert (of.square, of.longest(999), of.cut_share) == (500**2, 500, 0)


def test_a_batch_has_the_mean_and_the_longest_of_the_one_it_stands_for() -> None:
    of = lengths(2000, 16000, 1.0, 0.3)
    batch = of.batch(8, 8, 8192)
    assert batch.shape == (8, 8)
    assert batch.mean() == pytest.approx(2000, rel=0.01)
    assert batch.max() == pytest.approx(of.longest(8192))


def test_groups_are_as_alike_inside_as_is_stated() -> None:
    def spread(within: float) -> float:
        logs = np.log(lengths(2000, 1e12, 1.0, within).batch(64, 16, 1024))
        return float(logs.std(axis=1).mean())

    assert spread(0.1) < spread(0.5) < spread(1.0)
    assert spread(0.1) == pytest.approx(math.sqrt(0.1), rel=0.15)


@pytest.mark.parametrize(("size", "gigabytes"), [("70B", 140), ("405B", 810), ("7B", 14)])
def test_a_copy_of_the_weights_takes_two_bytes_a_parameter(size: str, gigabytes: float) -> None:
    assert shapes.by_size(*2 * [shapes.parameters(size)]).weight_bytes == gigabytes * 1e9


@pytest.mark.parametrize(
    "name",
    ["Qwen/Qwen2.5-32B", "qwen2.5-32b-instruct", "DeepSeek-R1-Distill-Qwen-32B", "QwQ-32B"],
)
def test_names_are_found_without_organisation_case_and_variant(name: str) -> None:
    assert shapes.by_name(name).name == "Qwen2.5-32B"


def test_the_cache_of_a_token_is_that_of_the_published_example() -> None:
    assert shapes.by_name("Llama-3-70B").kv_bytes == 320 * 1024
    assert shapes.by_name("DeepSeek-V3").kv_bytes == 2 * 576 * 61


def test_an_unknown_model_is_refused_with_what_comes_near() -> None:
    with pytest.raises(RltraceError, match=r"did you mean Qwen2\.5-7B"):
        shapes.by_name("Qwen2.5-7C")


def test_a_pass_of_one_token_reads_the_active_weights_and_one_of_many_all() -> None:
    mixture = shapes.by_name("Qwen3-30B-A3B")
    assert mixture.read_bytes(1) == pytest.approx(2 * mixture.active)
    assert mixture.read_bytes(1000) == pytest.approx(2 * mixture.parameters)
    assert mixture.read_bytes(1) < mixture.read_bytes(16) < mixture.read_bytes(256)
    dense = shapes.by_name("Qwen2.5-7B")
    assert dense.read_bytes(1) == dense.read_bytes(256) == dense.weight_bytes


def test_attention_is_a_small_part_of_short_and_a_large_part_of_long_sequences() -> None:
    shape = shapes.by_name("Llama-3.1-8B")
    part = [shape.attention_flop(n * n) / (2 * shape.active * n) for n in (1024, 131072)]
    assert part[0] < 0.05
    assert part[1] > 1


@pytest.mark.parametrize("text", ["0xH100", "H100", "4xH999", "-2xH100"])
def test_gpus_are_counted_and_those_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(RltraceError):
        hardware.counted(text)
    count, gpu = hardware.counted("32 x h100")
    assert (count, gpu.name, gpu.node) == (32, "H100", 8)
    assert (gpu.link(8), gpu.link(9)) == (450e9, 50e9)


def test_the_data_sheets_are_those_of_the_replay() -> None:
    for name, tflops in PEAK_TFLOPS.items():
        assert hardware.counted(f"1x{name}")[1].tflops == tflops
    for said, name in (("NVIDIA A100-SXM4-80GB", "A100-80GB"), ("NVIDIA GB200", "GB200")):
        assert hardware.of_driver(said) == hardware.counted(f"1x{name}")[1]
    assert hardware.of_driver("Tesla V100") is None


def test_the_tables_are_dated_and_tell_their_source() -> None:
    for constant in (*plan_constants().values(), *whatif_constants().values()):
        assert constant.low <= constant.middle <= constant.high, constant
        assert constant.meaning, constant
        assert constant.source, constant
    for name in ("models", "hardware"):
        assert packaged(name)["date"] >= "2026"
        assert packaged(name)["source"]
    for entry in packaged("models")["model"]:
        assert entry.get("active", entry["total"]) <= entry["total"], entry["name"]
        assert ("active" in entry) == ("experts" in entry["shape"]), entry["name"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", ["Qwen2.5-0.5B", "Qwen2.5-7B", "Qwen2.5-72B"])
def test_an_engine_is_of_the_gpus_that_generate_the_fastest(name: str, streams: bool) -> None:
    one = spec(model={"name": name})
    found = rollout(one, 16, PlanConstants(), streams)
    for ways in (1, 2, 4, 8):
        with suppress(RltraceError):  # too few hold it
            other = rollout(replace(one, rollout_ways=ways), 16, PlanConstants(), streams)
            assert other.engine.ways == ways
            if streams:
                assert found.throughput_s <= other.throughput_s
            else:
                assert found.barrier_s <= other.barrier_s


def test_an_update_of_changes_takes_longer_the_more_changed() -> None:
    few, many = (
        movement("delta", SEVEN, PlanConstants({"changed_share": share}), 32).seconds
        for share in (0.01, 0.03)
    )
    fixed_s = PlanConstants()["sync_fixed_s"]
    assert many - fixed_s == pytest.approx(3 * (few - fixed_s))
