"""`rltrace plan` on the command line: answers, JSON, files, sweeps, calibration and nonsense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rltrace.testing.inside.cli import seconds
from rltrace.testing.inside.trace import CANNOT_TELL, OK, WRONG_USAGE
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


@pytest.mark.parametrize(
    ("asked", "values"),
    [
        ("gpus=3..60", [4, 8, 16, 24, 32, 48]),
        ("gpus=19,23", [19, 23]),
        ("gpus=5..7", [5, 6, 7]),  # there is none that is rented
    ],
)
def test_a_range_of_gpus_is_of_whole_nodes_or_a_power_of_two_below(
    asked: str, values: list[int]
) -> None:
    shape = ("--params", "1B", *SHAPE[2:])
    points = json.loads(invoke("plan", *shape, "--sweep", asked, "--json").output)["points"]
    assert [point["value"] for point in points] == values


def test_a_swept_figure_is_rounded_as_others_are() -> None:
    shown = invoke("plan", *SHAPE, "--sweep", "mean_tokens=1000..2000").output
    assert "1,459" in shown
    assert "1459" not in shown


TRIAGE_7B = ("triage", "--rollout", 1, "--params", "7B", "--gpus", 4, "--gpu", "H100")


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
        ((*TRIAGE_7B, "--tokens", "nan"), "tokens"),
        ((*TRIAGE_7B, "--tokens", 2**20, "--train", 8), "139 % MFU"),
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
    assert {step["placement"]: step["step_s"] for step in answer["steps"]}[
        "colocated"
    ] == pytest.approx(595)
    assert answer["binding"] == ["rollout"]
    assert answer["first_fix"]["move"]


def test_all_doors_have_the_same_walls_and_gains_for_the_same_seconds(tmp_path: Path) -> None:
    seconds = {"rollout": 360, "reward": 80, "train": 120, "sync": 35, "logprob": 20}
    file = tmp_path / "stages.toml"
    lines = [f"{name} = {value}" for name, value in seconds.items()]
    file.write_text("\n".join(["[stages]", *lines, "[rollout]", "tail_s = 160"]))
    flags = [word for name, value in seconds.items() for word in (f"--{name}", value)]
    quick = json.loads(invoke("triage", *flags, "--tail", 160, "--json").output)
    full = json.loads(invoke("whatif", "--stages", file, "--json").output)
    assert quick["walls"] == full["walls"]
    (own,) = (step for step in quick["steps"] if step["goodput_gain"] is None)
    assert own["step_s"] == full["before"]["step_s"]
    by_lever = {one["levers"][0]: one for one in full["predictions"]}
    for step in quick["steps"]:
        if step is not own:
            same = by_lever[f"placement={step['placement']}"]
            assert step["goodput_gain"] == same["goodput_gain"]
    first = quick["first_fix"]
    assert first["prediction"] == by_lever[first["lever"]]


def test_one_change_has_one_row_whatever_it_is_called(tmp_path: Path) -> None:
    file = tmp_path / "stages.toml"
    file.write_text("[stages]\nrollout = 360\ntrain = 120\n[rollout]\ntail_s = 160")
    found = json.loads(invoke("whatif", "--stages", file, "--json").output)["predictions"]
    levers = [one["levers"][0] for one in found]
    assert "partial_rollout=1.5" in levers
    assert "no_barrier=1" not in levers
    same, other = (
        json.loads(invoke("whatif", "--stages", file, "--lever", one, "--json").output)
        for one in ("no_barrier", "partial_rollout=1.5")
    )
    assert same["predictions"][0]["gain"] == other["predictions"][0]["gain"]


def test_a_stated_split_is_planned_with() -> None:
    answer = json.loads(
        invoke("plan", *SHAPE, "--split", "12:4", "--staleness", "strict", "--json").output
    )
    rows = {row["name"]: row for row in answer["placements"]}
    assert answer["best"] == "disaggregated"
    assert rows["disaggregated"]["devices"] == {"rollout": 12, "train": 4}
    assert not rows["colocated"]["allowed"]


def test_a_range_of_lags_may_begin_at_none() -> None:
    points = json.loads(invoke("plan", *SHAPE, "--sweep", "lag=0..16", "--json").output)["points"]
    lags = [point["value"] for point in points]
    assert (lags[0], lags[-1], lags) == (0, 16, sorted(map(round, lags)))


def test_a_log_is_told_its_placement(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    figures = '"timing_s/gen": 60, "timing_s/update_actor": 30, "timing_s/step": 92'
    log.write_text("".join(f'{{"step": {n}, {figures}}}\n' for n in range(1, 6)))
    told, untold, wrong = tmp_path / "told", tmp_path / "untold", tmp_path / "wrong"
    placed = "--placement", "colocated"
    assert invoke("import", "verl", log, "--out", untold).exit_code == OK
    assert invoke("import", "verl", log, "--out", told, *placed).exit_code == OK
    assert invoke("import", "verl", log, "--out", wrong, "--placement", "x").exit_code == 2
    assert not wrong.exists()
    assert invoke("whatif", untold, "--json").exit_code == CANNOT_TELL
    found = json.loads(invoke("whatif", told, "--json").output)
    assert found["before"]["placement"] == "colocated"
    report = invoke("report", log, "--as", "verl", *placed, "--json").output
    assert json.loads(report[report.index("{") :])["composition"]["placement"] == "colocated"
    # A log does not tell how many devices there are: they are parts of one pool.
    assert any(one["levers"][0] == "placement=async" for one in found["predictions"])


STATED = """
[stages]
rollout = 360
train = 120
[rollout]
prompts = 64
samples = 8
tail_s = 160
"""


def gain(file: Path, lever: str) -> float:
    result = invoke("whatif", "--stages", file, "--lever", lever, "--json")
    assert result.exit_code == OK, result.output
    (found,) = json.loads(result.output)["predictions"]
    return float(found["goodput_gain"]["value"])


def test_speculative_decoding_is_as_fast_as_measured(tmp_path: Path) -> None:
    file = tmp_path / "stages.toml"
    file.write_text(f"{STATED}[devices]\nshared = 16")
    assert gain(file, "speculative=1.61") == pytest.approx(480 / (120 + 360 / 1.61), rel=0.01)
    assert gain(file, "speculative=1.61") < gain(file, "speculative=2")
    assert invoke("whatif", "--stages", file, "--lever", "speculative=0.5").exit_code == WRONG_USAGE


def test_drafts_for_samples_that_come_one_by_one_are_not_guessed(tmp_path: Path) -> None:
    """Nobody has an engine that drafts and runs one sequence at a time: batches come first."""
    file = tmp_path / "stages.toml"
    file.write_text(f"{STATED}slots = 1\n[devices]\nshared = 16")
    answer = json.loads(invoke("whatif", "--stages", file, "--json").output)
    assert "speculative=1" in answer["cannot_tell"]
    assert invoke("whatif", "--stages", file, "--lever", "speculative").exit_code == CANNOT_TELL
    assert gain(file, "speculative=1.3") > 1.1


def test_a_large_model_has_fewer_engines_than_devices_so_drafts_gain_less(tmp_path: Path) -> None:
    small, large = tmp_path / "small.toml", tmp_path / "large.toml"
    for file, parameters in ((small, 7e9), (large, 70e9)):
        file.write_text(f"{STATED}[devices]\nshared = 32\n[model]\nparameters = {parameters}")
    assert gain(large, "speculative") < gain(small, "speculative")


@pytest.mark.parametrize(("slots", "gains"), [(8, True), (64, False)])
def test_stated_slots_can_be_moved(tmp_path: Path, slots: int, gains: bool) -> None:
    """512 samples on 16 engines are 32 each: of more slots than that nothing comes."""
    file = tmp_path / "stages.toml"
    file.write_text(f"{STATED}slots = {slots}\nengines = 16\n[devices]\nshared = 16")
    before = json.loads(invoke("whatif", "--stages", file, "--json").output)["before"]
    assert before["step_s"] == pytest.approx(480, rel=0.01)
    assert (gain(file, "slots=x4") > 1.02) == gains
    file.write_text(f"[stages]\nrollout = 9\n[rollout]\nslots = {slots}")
    assert invoke("whatif", "--stages", file).exit_code == WRONG_USAGE


def test_weights_of_which_less_changed_travel_faster(tmp_path: Path) -> None:
    gains = []
    for share in (0.03, 0.02, 0.001):
        file = tmp_path / f"{share}.toml"
        sync = f"changed_share = {share}\n[model]\nparameters = 70e9\n[devices]\nshared = 64"
        stages = STATED.replace("train", "sync = 60\ntrain")
        file.write_text(f"{stages}[sync]\n{sync}")
        gains.append(gain(file, "sync=delta"))
    assert gains == sorted(gains)
    assert gains[0] < gains[-1]


@pytest.mark.parametrize(
    ("text", "value"), [("8s", 8.0), ("250ms", 0.25), ("2min", 120.0), ("3", 3.0)]
)
def test_times_are_read(text: str, value: float) -> None:
    assert seconds(text, "--env-latency") == value
