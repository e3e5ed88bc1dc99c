"""What is said of gains where the replay is not near the run, or the run has an alarm."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import rltrace
from rltrace.cli import main
from rltrace.testing.handmade_runs import at, process, rows, run_of, turns
from rltrace.testing.inside.analysis import (
    MOST_ERROR,
    NO_MORE,
    Bounds,
    Constants,
    OffTheRun,
    RunAnalysis,
    held,
    most_gain,
    predict,
    ranked,
    replay_error,
    summarize,
    workload_of,
)
from rltrace.testing.inside.analysis import predict_Estimate as Estimate
from rltrace.testing.inside.report import model_check
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import Stage, update_run_json
from tests.analysis.walls.walled import in_steps

Made = Callable[..., tuple[Run, Any]]


def let_in_late(path: Path) -> Run:
    """Four samples a step, each with 1.5 s of generation around a tool of 9 s, which something that
    no trace shows lets in 10 s after each other. A replay has them begin at once."""
    begin = [45.0 * step + 10 * i for step in range(8) for i in range(4)]
    steps = in_steps(
        45, (("step", 0), 0, 45), (Stage.ROLLOUT, 0, 40.5), (Stage.TRAIN, 40.5, 45),
        *((Stage.ENV, 10 * i + 0.75, 10 * i + 9.75) for i in range(4)), count=8,
    )  # fmt: skip
    made = rows(
        process("driver", *steps), "trajectories", start_s=begin, end_s=[b + 10.5 for b in begin],
        trajectory=list(range(1, 33)), group=[n // 4 for n in range(32)],
        response_tokens=[10] * 32, env_ns=[9 * 10**9] * 32,
        first_version=[n // 4 for n in range(32)],
    )  # fmt: skip
    return run_of(path, made, settings={"placement": "colocated"})


def test_nothing_is_predicted_by_a_replay_that_is_off_the_run(tmp_path: Path) -> None:
    source = workload_of(let_in_late(tmp_path))
    assert replay_error(source(Constants())) < -MOST_ERROR
    with pytest.raises(OffTheRun, match=r"cannot be predicted: .* off by -67 %"):
        predict(source, [("env_latency", "0.5")])
    with pytest.raises(OffTheRun):
        ranked(source)
    assert CliRunner().invoke(main, ["whatif", str(tmp_path / "run")]).exit_code != 0
    shown = CliRunner().invoke(main, ["report", str(tmp_path / "run"), "--json"])
    found = json.loads(shown.output)["verdict"]
    assert found["fixes"]
    assert all(fix["goodput_gain"] is None for fix in found["fixes"])
    assert "off by -67 %" in found["unpredicted"]
    assert found["replay_error_share"] < -MOST_ERROR


def test_the_error_of_the_replay_stands_beside_what_it_predicts(synthetic: Made) -> None:
    run, _ = synthetic(placement="colocated", reward_s=2.0)
    verdict = summarize(run).verdict
    assert any(fix.goodput_gain for fix in verdict.fixes)
    assert not math.isnan(verdict.replay_error_share)
    assert model_check(verdict, 5.0).endswith("measured 5.00 s.")


def test_a_replay_that_is_made_of_stage_seconds_is_held_against_nothing(tmp_path: Path) -> None:
    """As of a log that tells no samples: that it takes as long as they do is no finding."""
    job = run_of(tmp_path, process("driver", *turns(*[6] * 8)), settings={"placement": "colocated"})
    verdict = summarize(job).verdict
    assert any(fix.goodput_gain for fix in verdict.fixes)
    assert math.isnan(verdict.replay_error_share)
    assert model_check(verdict, 5.0) == ""
    found = predict(workload_of(job), [("train_speed", "2")])
    assert not any("before any fit" in says for says in found.rests_on)
    assert any(says.startswith("8 measured steps, of which the stage") for says in found.rests_on)
    assert found.goodput_gain.low < found.goodput_gain.value < found.goodput_gain.high


def test_no_lever_of_the_list_gains_more_than_its_walls_cost(synthetic: Made) -> None:
    """A replay knows nothing of the walls: with walls that cost little its figures are cut, and say
    so; with the run's own they are those of the report."""
    run, _ = synthetic(placement="colocated", reward_s=8.0)
    walls = summarize(run, predict=False).verdict.walls
    found = predict(workload_of(run), [("reward_latency", "0.1")])
    assert found.goodput_gain.value > 1.2
    few = tuple(replace(w, cost=replace(w.cost, share=0.1, low=0.05, high=0.1)) for w in walls)
    cut = held(found, Bounds(few, 0.0, False))
    assert cut.gain.high == cut.goodput_gain.value == pytest.approx(1 / 0.9)
    assert cut.step_s.low == pytest.approx(0.9 * found.before_s)
    assert NO_MORE in cut.rests_on
    both = predict(workload_of(run), [("placement", "one-step-off")])
    assert held(both, Bounds(few, 0.0, False)) is both  # it does more than shorten a stage
    asked = CliRunner().invoke(main, ["whatif", str(run.path), "--json"])
    said = json.loads(asked.output)["predictions"]
    most = most_gain(["reward_latency=0.5"], Bounds(walls, 0.0, False))
    least = most_gain(["slots=x2"], Bounds(walls, 0.0, False))
    assert most_gain(["slots=x2"], Bounds(walls, 0.0, True)) > least > 1  # with time of tools
    # What is only put beside other work leaves the longest chain.
    assert most_gain(["placement=one-step-off"], Bounds(walls, 0.8, False)) == 1.25
    assert most_gain(["placement=async"], Bounds(walls, 0.0, False)) == math.inf
    tried = [one for one in said if one["levers"][0].startswith("reward_")]
    assert tried
    assert all(one["goodput_gain"]["high"] <= most + 1e-9 for one in tried)


def test_a_range_ends_where_no_more_can_be() -> None:
    assert Estimate(1.1, 1.3, 2.0).at_most(1.5) == Estimate(1.1, 1.3, 1.5)
    assert Estimate(1.1, 1.3, 2.0).at_most(1.2) == Estimate(1.1, 1.2, 1.2)


CRASHED: dict[str, Any] = {"exit_code": 1, "end_real_ns": at(60)}
SAYS = "the job failed (exit code 1) after 6 complete steps"
COMMAND = [sys.executable, "train.py", "--max-lag", "4"]


def made(path: Path, **meta: Any) -> Path:
    """A run of six steps."""
    driver = process("driver", *turns(6, 6, 6, 6, 6, 6))
    run_of(path, driver, command=COMMAND, **meta)
    return path / "run"


def asked(*words: str) -> Result:
    return CliRunner().invoke(main, [*words])


def answered(*words: str) -> tuple[int, list[str], int]:
    """Exit code, alarms and number of predictions of a what-if."""
    result = asked("whatif", *words, "--json")
    answer = json.loads(result.stdout)
    return result.exit_code, answer["alarms"], len(answer["predictions"])


def test_the_alarm_stands_in_place_of_gains_and_one_change_is_answered_below_it(
    tmp_path: Path,
) -> None:
    path = made(tmp_path / "crashed", **CRASHED)
    run = rltrace.open_run(path)
    found = summarize(run).verdict
    assert found.alarms == RunAnalysis(run).health.forbids == (SAYS,)
    assert found.fixes == ()
    assert answered(str(path)) == (3, [SAYS], 0)
    result = asked("whatif", str(path))
    assert (result.exit_code, SAYS in result.output, "%" in result.output) == (3, True, False)
    change = ("--lever", "train_speed=2")
    assert answered(str(path), *change) == (0, [SAYS], 1)
    text = " ".join(asked("whatif", str(path), *change).output.split())
    assert text.index(SAYS) < text.index(" a step")
    code, told, count = answered(str(made(tmp_path / "well")))
    assert (code, told, count > 0) == (0, [], True)


def test_no_fix_is_tried_and_a_change_of_ones_own_is_with_the_alarm_first(tmp_path: Path) -> None:
    path = str(made(tmp_path, **CRASHED))
    for file in Path(path, "process").glob("*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "adapter": "rltrace.trainer"}))
    refused = asked("experiment", path, "--dry-run")
    assert refused.exit_code == 3
    assert SAYS in refused.output
    told = asked("experiment", path, "--dry-run", "--set", "max_lag=1")
    assert told.exit_code == 0
    assert told.output.index(SAYS) < told.output.index("change: max_lag=1")


@pytest.mark.parametrize("words", [[], ["--set", "lr=2"], ["--fix", "1"]])
def test_a_loop_of_ones_own_is_told_what_to_do_instead(tmp_path: Path, words: list[str]) -> None:
    path = made(tmp_path)
    update_run_json(str(path), framework=None)
    result = asked("experiment", str(path), "--dry-run", *words)
    assert result.exit_code == 3
    assert "rltrace compare" in result.output
