"""`rltrace plan` on the command line: answers, JSON, files, sweeps, calibration and nonsense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rltrace.testing.inside.trace import WRONG_USAGE
from tests.cli.conftest import invoke

SHAPE = ("--model", "Qwen/Qwen2.5-7B", "--gpus", "16xH100", "--prompts", 64, "--group", 16,
         "--mean-tokens", 1000, "--cap", 8000)  # fmt: skip


def test_json_holds_the_answer_with_units_in_its_keys() -> None:
    result = invoke("plan", *SHAPE, "--staleness", "strict", "--json")
    answer = json.loads(result.output)
    assert (answer["schema"], answer["schema_version"]) == ("rltrace-plan", 2)
    assert answer["best"] in ("colocated", "disaggregated")
    assert answer["step_s"]["low"] < answer["step_s"]["value"] < answer["step_s"]["high"]
    assert {stage["symbol"] for stage in answer["stages"]} >= {"τ_R", "τ_T", "τ_old"}
    assert answer["framework"]["name"]
    for use in answer["memory"]:
        assert 0 < sum(use["used_bytes"].values()) <= use["usable_bytes"]


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
    assert points[0]["refused"]
    assert points[2]["row"]["step_s"] < points[1]["row"]["step_s"]
    assert invoke("plan", *shape, "--sweep", "gpus=16..64").exit_code == 0


TRIAGE_7B = ("triage", "--rollout", 1, "--params", "7B")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan", *SHAPE, "--sweep", "gpus"), "gpus=16..256"),
        (("plan", *SHAPE, "--sweep", "moons=1..2"), "gpus=16..256"),
        (("plan", *SHAPE, "--sweep", "gpus=9..2"), "gpus"),
        (("plan", *SHAPE, "--sweep", "gpus=a,b"), "gpus"),
        (("plan", *SHAPE, "--sweep", "gpus=1,inf"), "gpus"),
        (("plan", *SHAPE, "--sweep", "gpus=1..nan"), "gpus"),
        (("plan", *SHAPE, "--sweep", "lag=1..1e9"), "from 0 to 1,000,000"),
        (("plan", *SHAPE, "--sweep", "split=0.5,2"), "split"),
        (("plan", *SHAPE, "--cap", 10), "mean"),
        (("plan", *SHAPE, "--env-latency", "soon"), "8s"),
        (("plan", *SHAPE, "--split", "1:1"), "16"),
        (("plan", *SHAPE, "--from-run", ""), "empty"),
        (("plan", *SHAPE, "--params", "405B", "--model", ""), "empty"),
        (("triage",), "--rollout"),
        (("triage", "--rollout", -1), "-1"),
        (("triage", "--rollout", 1, "--placement", "x"), "x"),
        (("triage", "--rollout", 1, "--reward", "1e308"), "reward"),
        (TRIAGE_7B, "tokens"),
        ((*TRIAGE_7B, "--learner-gpus", "4xH100", "--tokens", "nan"), "tokens"),
        ((*TRIAGE_7B, "--tokens", 2**20, "--learner-gpus", "4xH100", "--train", 8), "139 % MFU"),
    ],
    ids=lambda given: given if isinstance(given, str) else str(given[-2:]),
)
def test_nonsense_is_one_sentence(words: tuple[object, ...], says: str) -> None:
    result = invoke(*words)
    assert result.exit_code == WRONG_USAGE, result.output
    (line,) = result.output.splitlines()
    assert says in line


def test_what_cannot_be_is_refused_with_its_number() -> None:
    result = invoke("plan", "--params", "405B", "--gpus", "16xH100", "--mean-tokens", 1000)
    assert result.exit_code == 1
    assert "6,480 GB" in result.output


@pytest.mark.parametrize("text", ["[" * 100_000, "x = " + "1" * 5_000, "x = "])
def test_a_workload_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    result = invoke("plan", path)
    assert (result.exit_code, len(result.output.splitlines())) == (WRONG_USAGE, 1), result.output


def test_a_run_calibrates_lengths_and_batch(run: Path) -> None:
    result = invoke("plan", "--from-run", run, "--model", "Qwen3-4B", "--gpus", "8xH100", "--json")
    assert any("measured steps" in line for line in json.loads(result.output)["assumed"])


def test_triage_of_the_published_defaults() -> None:
    result = invoke(
        "triage", "--rollout", 360, "--reward", 80, "--train", 120, "--sync", 35, "--json"
    )
    answer = json.loads(result.output)
    assert {step["placement"]: step["step_s"] for step in answer["steps"]}["colocated"] == 595
    assert answer["binding"] == ["rollout"]
    assert answer["first_fix"]["move"]
