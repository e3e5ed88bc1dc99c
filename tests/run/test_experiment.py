"""Experiments: what is run and in which order, what came of it, and real ones of the trainer."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.run import experiment
from rltrace.run.experiment import ExperimentPlan as Plan
from rltrace.run.run_folders import keep_command, whole_command
from rltrace.testing.handmade_runs import process, run_of, stating
from rltrace.testing.inside.analysis import WRAP_SYNC, Interval, Pace, compare, trial
from rltrace.testing.inside.analysis import predict_Estimate as Estimate
from rltrace.testing.inside.analysis import stated_settings as settings_of
from rltrace.testing.inside.report import compare_section
from rltrace.testing.inside.run import Change, change_of_fix, change_of_words, make_run
from rltrace.testing.inside.trace import (
    RltraceError,
    Stage,
    read_run_json,
    redacted,
    update_run_json,
)
from rltrace.testing.inside.trainer import TrainerConfig
from tests.cli.conftest import invoke
from tests.hooks.conftest import clean_environment, untraced
from tests.patience import PATIENCE_S

TRAIN = Path(__file__).parents[2] / "examples" / "train.py"
JOB = [sys.executable, str(TRAIN), "--steps", "5", "--prompts", "2", "--samples", "2",
       "--rollout-workers", "1", "--placement", "disaggregated", "--model-size", "0.03",
       "--layers", "2", "--heads", "2"]  # fmt: skip
NO_MONITOR = {"RAY_memory_monitor_refresh_ms": "0"}
"""Ray would end workers where others have the machine's memory."""


@dataclass(frozen=True)
class FakeFix:
    """What `change_of_fix` reads of a fix."""

    setting: str
    value: Any
    gain: Estimate | None = None
    goodput_gain: Estimate | None = None
    needs: dict[str, Any] = field(default_factory=dict)
    move: str = "a move"
    wall: str = "sparse reward"
    printed: str = ""
    program: str = ""


GAIN = Estimate(1.5, 2.0, 2.5)


def plan_of(folder: Path, change: Change, pairs: int, most_pairs: int, **more: Any) -> Plan:
    """A plan for the built-in trainer."""
    command = ("python", "train.py")
    words = (change, command, (*command, "--max-lag", "1"), "rltrace.trainer", "/", folder)
    return Plan(*words, pairs, most_pairs, **more)


def test_runs_take_turns_in_an_order_that_reverses(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, Change("", {"max_lag": 1}), 3, 3)
    variants = [variant for _, variant in plan.order()]
    assert variants == ["before", "after", "after", "before", "before", "after"]
    assert [pair for pair, _ in plan.order()] == [0, 0, 1, 1, 2, 2]
    assert len({plan.run_path(*each) for each in plan.order()}) == 6


@pytest.mark.parametrize(
    ("gains", "runs"),
    [
        ((2.0, 2.1), 4),  # the first two tell
        ((0.9, 3.5, 2.0, 2.1, 2.0, 2.0), 10),
        ((0.5, 4.0, 0.5, 4.0, 0.5, 4.0), 12),  # nobody ever can: as many as there may be
    ],
)
def test_pairs_go_on_while_nobody_can_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gains: tuple[float, ...], runs: int
) -> None:
    ran = []

    def paced(plan: Plan, pair: int, variant: str, say: experiment.Say) -> Pace:
        ran.append((pair, variant))
        step_s = 6.0 if variant == "before" else 6.0 / gains[pair]
        return Pace(step_s, math.nan)

    monkeypatch.setattr(experiment, "_paced", paced)
    plan = plan_of(tmp_path, Change("", {}, GAIN), 2, 6)
    found = experiment.carry_out(plan, lambda _: None)
    assert len(found.pairs) == len(ran) / 2
    assert len(ran) == runs
    assert any("up to 12" in line for line in plan.sentences())


def test_words_are_settings() -> None:
    change = change_of_words(["a.b=2", "x=true", "y=0.5", "z=async"])
    assert change.settings == {"a.b": 2, "x": True, "y": 0.5, "z": "async"}
    with pytest.raises(RltraceError, match="OPTION=VALUE"):
        change_of_words(["max_lag"])


def test_the_first_fix_with_a_setting_and_a_prediction_is_tried() -> None:
    fixes: Any = [
        FakeFix("", None, GAIN, GAIN),
        FakeFix("samples", 8, GAIN, GAIN, {"batch": "x2"}),
        FakeFix("objective", "tis"),
        FakeFix("placement", "async", GAIN, GAIN, {"max_lag": 2}),
        FakeFix("", None, program="another.main"),
    ]
    change = change_of_fix(fixes, None)
    assert change.settings == {"max_lag": 2, "placement": "async"}
    assert (change.predicted, change.metric) == (GAIN, "step")
    assert change_of_fix(fixes, 3).predicted is None
    told = ((1, "no option"), (2, "give --set batch="), (5, "another.main"), (9, "there are 5"))
    for number, why in told:
        with pytest.raises(RltraceError, match=why):
            change_of_fix(fixes, number)
    with pytest.raises(RltraceError, match="no fix with a setting"):
        change_of_fix(fixes[:2], None)


@pytest.mark.parametrize(
    ("step", "metric"),
    [
        (None, "goodput"),
        (Estimate(0.5, 0.6, 0.7), "goodput"),  # more samples a step, more of which teach
        (Estimate(1.1, 1.2, 1.3), "step"),
    ],
)
def test_a_gain_that_only_goodput_shows_is_measured_in_goodput(
    step: Estimate | None, metric: str
) -> None:
    fixes: Any = [
        FakeFix("samples", 24, step, GAIN),
        FakeFix("max_lag", 1, None, GAIN, {}, "", "staleness"),
    ]
    assert change_of_fix(fixes, 2).metric == "freshness"
    change = change_of_fix(fixes, 1)
    assert (change.metric, change.predicted) == (metric, step if metric == "step" else GAIN)


def pace(step_s: float, tokens_per_s: float = math.nan) -> Pace:
    return Pace(step_s, tokens_per_s, 100.0)


@pytest.mark.parametrize(
    ("after", "predicted", "answer"),
    [
        ((1.0, 1.01, 0.99), Estimate(1.8, 2.0, 2.2), "confirmed"),
        ((1.0, 1.01, 0.99), Estimate(2.5, 3.0, 3.5), "refuted"),
        ((1.0, 1.01, 0.99), Estimate(1.1, 1.2, 1.3), "refuted"),
        ((1.0, 1.9, 0.6), Estimate(2.4, 3.0, 3.5), "cannot tell"),
        ((1.0, 3.0, 0.6), Estimate(1.3, 1.7, 2.5), "cannot tell"),  # may be no gain at all
        ((1.0, 1.01, 0.99), None, "gains"),
        ((3.0, 3.01, 2.99), None, "loses"),
        ((2.0, 2.001, 1.999), None, "no gain"),
        ((1.0, 3.0, 2.0), None, "cannot tell"),
    ],
)
def test_the_answer(after: tuple[float, ...], predicted: Estimate | None, answer: str) -> None:
    found = trial(tuple((pace(2.0), pace(s)) for s in after), "step", predicted)
    assert found.answer == answer
    assert found.because


def test_what_the_policy_learns_otherwise_is_not_counted() -> None:
    before = Pace(1.0, 300.0, 60.0, freshness=0.3)
    pairs = tuple((before, Pace(1.0, 3.0 * tokens, tokens, freshness=0.9))
                  for tokens in (40.0, 50.0))  # fmt: skip
    for metric, gain in (("goodput", 0.6), ("freshness", 3.0)):
        found = trial(pairs, metric, None)
        assert found.gain.value == pytest.approx(gain, rel=0.01)


def test_pairs_that_all_draw_the_same_samples_do_not_hide_the_luck_of_the_draw() -> None:
    """One group in many has a signal: twice as many may be chance, however often it is repeated."""

    def drawn(*useful: int) -> Pace:
        return Pace(1.0, float(sum(useful)), 10.0, 1.0, useful)

    few, more = drawn(0, 60, 0, 0, 70, 0, 0, 0), drawn(0, 0, 120, 0, 0, 130, 0, 0)
    same = trial(((few, more),) * 4, "goodput", Estimate(2.5, 3.0, 3.5))
    assert same.gain.value == pytest.approx(250 / 130)
    assert same.gain.low < 1 < same.gain.high
    assert same.answer == "cannot tell"
    assert trial(((few, more),) * 4, "step", None).gain.low == 1.0  # steps are not drawn

    steady = drawn(*[60, 70] * 4), drawn(*[120, 130] * 4)
    assert trial((steady,) * 4, "goodput", Estimate(2.5, 3.0, 3.5)).answer == "refuted"

    other = drawn(60, 0, 0, 0, 0, 70, 0, 0), drawn(0, 120, 0, 130, 0, 0, 0, 0)
    shown = trial(((few, more), other) * 2, "goodput", None)  # of another seed
    assert shown.gain.low == pytest.approx(shown.gain.value)


@pytest.mark.parametrize("metric", ["goodput", "freshness"])
def test_runs_without_useful_tokens_have_no_gain_in_them(metric: str) -> None:
    """Groups that all fail, in the run before; samples without tokens in both."""
    none, some = Pace(1.0, 0.0, 0.0, 0.0), Pace(1.0, 10.0, 0.0, 0.5)
    found = trial(((none, some), (none, none)), metric, None)
    assert found.answer == "cannot tell"
    assert trial((), "step", None).answer == "cannot tell"


def test_a_gain_is_a_ratio_of_rates_as_the_report_has_it() -> None:
    predicted = Estimate(1.6, 2.0, 2.5)
    found = trial(((pace(2.0), pace(1.0)),) * 3, "step", predicted)
    assert found.gain == Interval(2.0, 2.0, 2.0)
    (line,) = compare_section.expected(predicted, "step")
    assert line == "predicted: +100 % (+60 to +150) steps a second"
    lines = " ".join(compare_section.experiment("a change", found).lines)
    assert "Measured: +100.0 % steps a second (3 pairs). Predicted: +100 % (+60 to +150)." in lines
    rates = trial(((pace(1.0, 100), pace(1.0, 300)),) * 2, "goodput", None)
    assert rates.gain.value == pytest.approx(3.0)


def test_only_runs_that_ended_well_are_kept(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "x", Change("", {"max_lag": 1}), 2, 2, resume=True)
    plan.folder.mkdir()
    for pair, variant, code in ((0, "before", 0), (0, "after", 1), (1, "after", None)):
        command = [*plan.command(pair, variant)]
        driver = process("driver", (("step", 0), 0, 9))
        made = run_of(tmp_path / f"{pair}-{variant}", driver, command=command, exit_code=code)
        made.path.rename(plan.run_path(pair, variant))
    there = [experiment._is_there(plan, *each) for each in plan.order()]
    assert there == [True, False, False, False]
    kept = {path.name for path in plan.folder.iterdir()}
    assert kept == {"1-before", "1-after-unfinished-1", "2-after-unfinished-1"}
    other = dataclasses.replace(plan, before=("python", "other.py"))
    with pytest.raises(RltraceError, match="another command"):
        experiment._is_there(other, 0, "before")


def of_trainer(path: Path, **facts: Any) -> Path:
    """A run whose one process is the built-in trainer's and states these facts."""
    driver = process("driver", (("step", 0), 0, 9), (Stage.TRAIN, 0, 9))
    run = run_of(path, driver, command=["python", "examples/train.py"])
    return stating(run, {"adapter": "rltrace.trainer", **facts}).path


@pytest.mark.parametrize(
    ("word", "code", "names"),
    [
        ("max-lag=1", 2, "did you mean max_lag"),
        ("maxlag=1", 2, "did you mean max_lag"),
        ("lr=0.1", 2, "did you mean learning_rate"),
        ("xyzzy=1", 2, "no setting 'xyzzy'\n"),
        (f"max_lag={TrainerConfig().max_lag}", 3, "already"),
    ],
)
def test_a_setting_that_the_trainer_cannot_be_given_is_refused_before_anything_is_run(
    tmp_path: Path, word: str, code: int, names: str
) -> None:
    path = of_trainer(tmp_path, settings=vars(TrainerConfig()))
    out = tmp_path / "x"
    done = invoke("experiment", path, "--set", word, "--out", out)
    assert (done.exit_code, done.stderr.count("\n")) == (code, 1)
    assert names in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("sync", [True, False])
def test_a_dry_run_tells_what_would_be_run_and_runs_nothing(tmp_path: Path, sync: bool) -> None:
    path = of_trainer(tmp_path)
    update_run_json(str(path), settings={"sync": True} if sync else {})
    words = ("experiment", path, "--set", "max_lag=1", "--pairs", "1", "--out", tmp_path / "x")
    told = json.loads(invoke(*words, "--dry-run", "--json").stdout)
    assert [(run["pair"], run["variant"]) for run in told["runs"]] == [(1, "before"), (1, "after")]
    assert told["runs"][1]["command"][-2:] == ["--max-lag", "1"]
    assert told["sync"] is sync  # weights are moved as they were in the run
    assert json.loads(invoke(*words, "--dry-run", "--json", "--phase", 1).stdout)["phase"] == 1
    assert "no phase 2" in invoke(*words, "--dry-run", "--phase", 2).stderr
    assert "--max-lag 1" in invoke(*words, "--dry-run").stdout
    assert not (tmp_path / "x").exists()


def test_runs_that_are_there_are_not_taken_for_those_of_an_experiment(tmp_path: Path) -> None:
    path, out = of_trainer(tmp_path), tmp_path / "x"
    (out / "1-before").mkdir(parents=True)
    done = invoke("experiment", path, "--set", "max_lag=1", "--out", out)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert str(out) in done.stderr


def test_a_command_is_run_whole_where_it_is_kept_and_else_asked_for(tmp_path: Path) -> None:
    path = of_trainer(tmp_path)
    told = read_run_json(str(path))
    whole = [*told["command"], "--api-key", "abc"]
    update_run_json(str(path), command=redacted(whole))
    words = ("experiment", path, "--set", "max_lag=1", "--out", tmp_path / "x")

    def commands(*given: str) -> list[list[str]]:
        done = invoke(*words, "--dry-run", "--json", *given)
        return [run["command"] for run in json.loads(done.stdout)["runs"][:2]]

    def is_refused() -> bool:
        done = invoke(*words)
        return (done.exit_code, done.stderr.count("\n")) == (2, 1)

    assert is_refused()
    assert commands("--", *whole) == [whole, [*whole, "--max-lag", "1"]]
    keep_command(path, whole)
    assert commands() == [whole, [*whole, "--max-lag", "1"]]
    kept = path.parent / ".commands" / told["id"]
    for file, mode in ((kept, 0o644), (kept.parent, 0o755)):  # others could have written it
        before = file.stat().st_mode
        file.chmod(mode)
        assert is_refused()
        file.chmod(before)
    kept.rename(kept.with_name("elsewhere"))
    kept.symlink_to("elsewhere")
    assert is_refused()
    kept.unlink()
    kept.with_name("elsewhere").rename(kept)
    assert commands() == [whole, [*whole, "--max-lag", "1"]]
    update_run_json(str(path), start_real_ns=5)  # of another run by this name
    assert is_refused()
    assert not (tmp_path / "x").exists()


def test_commands_go_with_their_runs(tmp_path: Path) -> None:
    for name in ("first", "second"):
        made = make_run(["python", "--key", name], tmp_path / name).path
        shutil.rmtree(made) if name == "first" else None
    kept = sorted(path.name for path in (tmp_path / ".commands").glob("[!.]*"))
    assert kept == ["second"]
    shutil.rmtree(tmp_path / "second")
    again = make_run(["python", "--key", "other"], tmp_path / "second").path
    assert whole_command(again, read_run_json(str(again))) == ["python", "--key", "other"]
    moved = tmp_path / ".commands"
    moved.rename(tmp_path / "theirs")
    moved.symlink_to("theirs")  # planted: nothing is written through it
    third = make_run(["python", "--key", "third"], tmp_path / "third").path
    assert whole_command(third, read_run_json(str(third))) is None
    assert not (tmp_path / "theirs" / "third").exists()


def test_a_fix_of_how_the_job_is_wrapped_changes_the_wrapping_alone(tmp_path: Path) -> None:
    run = rltrace.open_run(of_trainer(tmp_path))
    change = Change("weights by rltrace.sync", {WRAP_SYNC: True})
    made = experiment.plan(run, change, pairs=1, folder=tmp_path / "x")
    assert (made.sync, made.sync_after) == (False, True)
    assert made.before == made.after


def rltrace_(*words: object) -> subprocess.CompletedProcess[str]:
    return untraced(sys.executable, "-m", "rltrace", *map(str, words), **NO_MONITOR)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real run of the built-in trainer whose verdicts take their time."""
    path = tmp_path_factory.mktemp("experiment") / "run"
    command = [*JOB, "--reward-latency", "0.2", "--ledger", str(path.parent / "ledger.json")]
    done = rltrace_("wrap", "--out", path, "--", *command)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.slow
def test_a_real_experiment(traced: Path, tmp_path: Path) -> None:
    out = tmp_path / "experiment"
    books = traced.parent / "ledger.json"
    before = books.read_bytes()
    words = ("experiment", traced, "--set", "reward_latency=0.0", "--pairs", "1", "--out", out)
    done = rltrace_(*words, "--json")
    assert done.returncode in (0, 3), done.stderr
    said = done.stderr
    assert said.index("before:") < said.index("run 1 of 2") < said.index("run 2 of 2")
    found = json.loads(done.stdout)
    assert len(found["pairs"]) == 1
    assert found["gain"]["value"] > 1  # 0.2 s for each of four verdicts are gone
    runs = [rltrace.open_run(out / f"1-{name}") for name in ("before", "after")]
    assert settings_of(runs[1])["reward_latency"] == 0.0
    compared = compare(*runs)
    changed = [(d.name, d.before, d.after) for d in compared.settings]
    assert changed == [("reward_latency", 0.2, 0.0)]
    of_stages = sum(stage.difference_s.value for stage in compared.stages)
    assert of_stages == pytest.approx(compared.difference_s.value)
    assert compared.devices == ()
    assert books.read_bytes() == before  # what the job writes went elsewhere
    assert (out / "output/1-after/ledger.json").exists()
    again = rltrace_(*words, "--json", "--resume")
    assert again.stderr.count("it is there already") == 2
    assert json.loads(again.stdout) == found


@pytest.mark.slow
def test_an_experiment_that_fails_or_is_interrupted_says_so_and_keeps_what_is_there(
    traced: Path, tmp_path: Path
) -> None:
    """What is there is the run before the change, of the one that failed."""
    folder = tmp_path / "failed"
    words = ("experiment", traced, "--out", folder, "--pairs", "1")
    failed = rltrace_(*words, "--set", "task=nothing")
    assert (failed.returncode, "log.txt" in failed.stderr) == (4, True)
    (folder / "1-after").rename(tmp_path / "moved")  # its agent may write for a second yet
    again = (*words, "--set", "steps=5000", "--resume")
    child = subprocess.Popen(
        [sys.executable, "-m", "rltrace", *map(str, again)],
        env=clean_environment(**NO_MONITOR),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("run 2 of 2"):
            break
    child.send_signal(signal.SIGINT)
    out, said = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, "interrupted" in said) == (3, True), said
    assert "cannot tell" in out
    assert read_run_json(str(folder / "1-before"))["exit_code"] == 0
