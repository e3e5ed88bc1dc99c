"""Shapes of models: the table, a local config.json, by hand; and GPUs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rltrace.analysis.plan import shapes
from rltrace.testing.inside.analysis import MEMORY_TB_PER_S, PEAK_TFLOPS, hardware, packaged
from rltrace.testing.inside.analysis import plan_constants_table as table
from rltrace.testing.inside.trace import RltraceError

QWEN_7B = {
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
QWEN_30B_A3B = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "vocab_size": 129280,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@pytest.mark.parametrize(("size", "gigabytes"), [("70B", 140), ("405B", 810), ("7B", 14)])
def test_a_copy_of_the_weights_takes_two_bytes_a_parameter(size: str, gigabytes: float) -> None:
    assert shapes.by_size(shapes.parameters(size)).weight_bytes == gigabytes * 1e9


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
    with pytest.raises(RltraceError, match=r"near it: Qwen2\.5-7B"):
        shapes.by_name("Qwen2.5-7C")


@pytest.mark.parametrize(
    ("config", "name", "tolerance"),
    [(QWEN_7B, "Qwen2.5-7B", 0.01), (QWEN_30B_A3B, "Qwen3-30B-A3B", 0.01),
     (DEEPSEEK_V3, "DeepSeek-V3", 0.02)],
    ids=["dense", "mixture", "latent"],
)  # fmt: skip
def test_a_config_tells_what_the_table_has(
    tmp_path: Path, config: dict[str, object], name: str, tolerance: float
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    known = shapes.by_name(name)
    for path in (tmp_path, tmp_path / "config.json"):
        found = shapes.by_name(str(path))
        assert found.parameters == pytest.approx(known.parameters, rel=tolerance)
        assert found.active == pytest.approx(known.active, rel=tolerance)
        assert found.kv_bytes == known.kv_bytes
        assert (found.experts, found.chosen) == (known.experts, known.chosen)


SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "hidden_size is missing"),
        ("[1]", "holds no configuration"),
        ("no json", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"hidden_size": "wide"}', "hidden_size cannot be 'wide'"),
        (json.dumps({**SIZES, "hidden_size": math.inf}), "hidden_size cannot be inf"),
        (json.dumps({**SIZES, "num_attention_heads": 0}), "num_attention_heads cannot be 0"),
        (json.dumps({**SIZES, "num_experts": 8, "num_experts_per_tok": 9}), "9 of 8 experts"),
    ],
)
def test_a_config_without_a_shape_is_refused_in_a_sentence(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RltraceError, match=rf"config\.json.*{says}"):
        shapes.by_name(str(tmp_path / "config.json"))


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


@pytest.mark.parametrize("text", ["0xH100", "H100", "4xH999", "-2xH100", "x"])
def test_gpus_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(RltraceError):
        hardware.counted(text)


def test_gpus_are_counted() -> None:
    count, gpu = hardware.counted("32 x h100")
    assert (count, gpu.name, gpu.node) == (32, "H100", 8)
    assert gpu.link(8) == 450e9
    assert gpu.link(9) == 50e9


def test_the_data_sheets_are_those_of_the_replay() -> None:
    for name, tflops in PEAK_TFLOPS.items():
        gpu = hardware.gpu(name)
        assert (gpu.tflops, gpu.memory_tb_per_s) == (tflops, MEMORY_TB_PER_S[name])


def test_every_constant_lies_within_its_range_and_has_a_source() -> None:
    for constant in table().values():
        assert constant.low <= constant.middle <= constant.high, constant.name
        assert constant.meaning, constant.name
        assert constant.source, constant.name


def test_the_tables_are_dated_and_tell_their_source() -> None:
    for name in ("models", "hardware"):
        data = packaged(name)
        assert data["date"] >= "2026"
        assert data["source"]
    for entry in packaged("models")["model"]:
        assert entry.get("active", entry["total"]) <= entry["total"], entry["name"]
        assert ("active" in entry) == ("experts" in entry["shape"]), entry["name"]
