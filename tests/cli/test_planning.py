"""`rltrace plan` on the command line: answers, JSON, files, sweeps, calibration and nonsense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import invoke

SHAPE = ("--model", "Qwen/Qwen2.5-7B", "--gpus", "16xH100", "--prompts", 64, "--group", 16,
         "--mean-tokens", 1000, "--cap", 8000)  # fmt: skip
ORDER = ("Where a step goes", "Memory of a GPU", "Placements side by side", "Walls", "Pool split",
         "First, risks", "Framework", "Launch", "It rests on")  # fmt: skip


def test_the_framework_comes_after_what_it_follows_from() -> None:
    result = invoke("plan", *SHAPE)
    assert result.exit_code == 0, result.output
    places = [result.output.index(part) for part in ORDER]
    assert places == sorted(places)
    assert "FLOP" in result.output
    assert "train_mfu" in result.output


def test_the_lags_of_partial_rollout_are_held_to_what_is_allowed() -> None:
    """It has no bound of its own: what lies within the one asked for is not beyond any."""
    tail = ("--mean-tokens", 6000, "--cap", 32768, "--gpus", "32xH100")
    shape = ("--model", "Qwen2.5-32B", *tail, "--prompts", 128, "--group", 16, "--staleness", 2)
    result = invoke("plan", *shape)
    assert "> colocated," in result.output
    assert "Lag to expect" in result.output
    assert "beyond the bound" not in result.output


def test_json_holds_the_answer_with_units_in_its_keys() -> None:
    result = invoke("plan", *SHAPE, "--staleness", "strict", "--json")
    answer = json.loads(result.output)
    assert answer["schema"] == "rltrace-plan/1"
    assert answer["best"] in ("colocated", "disaggregated")
    assert answer["step_s"]["low"] < answer["step_s"]["middle"] < answer["step_s"]["high"]
    assert {stage["symbol"] for stage in answer["stages"]} >= {"τ_R", "τ_T", "τ_old"}
    assert answer["framework"]["name"]
    assert all(use["fits"] for use in answer["memory"])


def test_flags_override_a_workload_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        'name = "job"\n[model]\nname = "Qwen2.5-7B"\n[gpus]\nkind = "16xH100"\n'
        "[lengths]\nmean_tokens = 500\n"
    )
    stated = json.loads(invoke("plan", path, "--json").output)
    other = json.loads(invoke("plan", path, "--params", "14B", "--json").output)
    assert stated["workload"]["model"]["name"] == "Qwen2.5-7B"
    assert other["workload"]["model"]["parameters"] == 14e9
    assert other["lengths"] == stated["lengths"]


def test_a_sweep_has_a_row_for_each_value_and_says_where_nothing_fits() -> None:
    result = invoke("plan", *SHAPE, "--params", "32B", "--sweep", "gpus=4,16,64", "--json")
    assert result.exit_code == 2  # a model by name and by size
    shape = ("--params", "32B", *SHAPE[2:])
    result = invoke("plan", *shape, "--sweep", "gpus=1,16,64", "--json")
    points = json.loads(result.output)["points"]
    assert [point["value"] for point in points] == [1, 16, 64]
    assert points[0]["row"] is None
    assert "does not fit" in points[0]["refused"]
    assert points[2]["row"]["step_s"] < points[1]["row"]["step_s"]
    split = invoke("plan", *shape, "--sweep", "split=0.5,2", "--json")
    assert [point["refused"] for point in json.loads(split.output)["points"]] == [
        "", "a split is the part that generates, between 0 and 1, not 2",
    ]  # fmt: skip
    shown = invoke("plan", *shape, "--sweep", "gpus=16..64")
    assert "useful tokens for a GPU-second" in shown.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--sweep", "gpus"), "gpus=16..256"),
        (("--sweep", "moons=1..2"), "gpus=16..256"),
        (("--sweep", "gpus=9..2"), "names no values"),
        (("--sweep", "gpus=a,b"), "names no values"),
        (("--sweep", "gpus=1,inf"), "names no values"),
        (("--sweep", "gpus=1..nan"), "names no values"),
        (("--sweep", "lag=1..1e9"), "--sweep lag must be from 0 to 1,000,000"),
        (("--gpus", "0xH100"), "at least one is needed"),
        (("--gpus", "16xH999"), "not in the table"),
        (("--cap", 10), "not above the mean"),
        (("--model", "gpt-9"), "not in the table"),
        (("--prompts", 0), "whole number"),
        (("--env-latency", "soon"), "a time like 8s"),
        (("--staleness", "never"), "strict, bounded, loose"),
        (("--split", "1:1"), "add up to 16"),
        (("--plot", "curve.pdf"), "must end in"),
        (("--from-run", ""), "is empty"),
        (("--params", "405B", "--model", ""), "empty"),
    ],
)
def test_nonsense_is_one_sentence(arguments: tuple[object, ...], says: str) -> None:
    result = invoke("plan", *SHAPE, *arguments)
    assert result.exit_code == 2, result.output
    assert says in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert "Traceback" not in result.output


@pytest.mark.parametrize("text", ["[" * 100_000, "x = " + "1" * 5_000, "x = "])
def test_a_workload_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    result = invoke("plan", path)
    assert (result.exit_code, "is no TOML file" in result.output) == (2, True), result.output
    assert len(result.output.strip().splitlines()) == 1


def test_what_cannot_be_is_refused_with_its_number() -> None:
    result = invoke("plan", "--params", "405B", "--gpus", "16xH100", "--mean-tokens", 1000)
    assert result.exit_code == 1
    assert "6,480 GB (16 bytes a parameter)" in result.output


def test_a_run_calibrates_lengths_and_batch(run: Path) -> None:
    result = invoke("plan", "--from-run", run, "--model", "Qwen3-4B", "--gpus", "8xH100", "--json")
    answer = json.loads(result.output)
    assert any("measured steps" in line for line in answer["assumed"])


def test_triage_of_the_published_defaults() -> None:
    result = invoke(
        "triage", "--rollout", 360, "--reward", 80, "--train", 120, "--sync", 35, "--json"
    )
    answer = json.loads(result.output)
    assert {step["placement"]: step["step_s"] for step in answer["steps"]}["colocated"] == 595
    assert answer["binding"] == ["rollout decode"]
    assert answer["fix"]["move"]


def test_triage_refuses_training_that_cannot_be() -> None:
    result = invoke(
        "triage", "--rollout", 30, "--train", 8, "--params", "7B", "--tokens", 64 * 16 * 1024,
        "--learner-gpus", "4xH100",
    )  # fmt: skip
    assert result.exit_code == 2
    assert "139 % MFU" in result.output


def test_triage_refuses_generation_that_memory_cannot_feed() -> None:
    shape = ("--params", "70B", "--tokens", 1_000_000, "--rollout-gpus", "1xA100")
    result = invoke("triage", "--rollout", 1, *shape)
    assert result.exit_code == 2
    assert "tokens/s are the most" in result.output
    assert invoke("triage", "--rollout", 1000, *shape).exit_code == 0


def test_triage_of_words_is_a_design() -> None:
    result = invoke(
        "triage", "--params", "70B", "--output", "cot", "--environment", "low", "--staleness",
        "bounded",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "long-tail skew" in result.output
    assert "Framework" in result.output


@pytest.mark.parametrize(
    "arguments",
    [(), ("--rollout", -1), ("--rollout", 1, "--placement", "x"), ("--output", "cot"),
     ("--rollout", 1, "--reference-side", "x"), ("--rollout", 1, "--params", "7B"),
     ("--rollout", 1, "--overlap", 3), ("--rollout", "nan"), ("--rollout", 1, "--reward", "1e308"),
     ("--rollout", 1, "--params", "7B", "--rollout-gpus", "4xH100", "--tokens", "nan"),
     ("--params", "7B", "--output", "cot", "--environment", "low", "--staleness", "loose",
      "--train", 3)],
)  # fmt: skip
def test_nonsense_in_triage_is_one_sentence(arguments: tuple[object, ...]) -> None:
    result = invoke("triage", *arguments)
    assert result.exit_code == 2, result.output
    assert len(result.output.strip().splitlines()) == 1
