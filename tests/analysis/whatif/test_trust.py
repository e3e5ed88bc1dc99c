"""What is said of gains where the replay of the run is not near it, and what bounds them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rltrace.analysis.ceiling import NO_MORE, held, most_gain
from rltrace.analysis.walls.cost import stages_of
from rltrace.analysis.whatif.trust import MOST_ERROR, OffTheRun, replay_error
from rltrace.cli import main
from rltrace.testing.inside.analysis import (
    LEVERS,
    Constants,
    predict,
    ranked,
    summarize,
    workload_of,
)
from rltrace.testing.inside.analysis import predict_Estimate as Estimate
from rltrace.testing.inside.report import fixes_section
from rltrace.testing.inside.trace import Run, Stage
from rltrace.testing.made import process, rows, run_of, turns

Made = Callable[..., tuple[Run, Any]]


def let_in_late(path: Path) -> Run:
    """Four samples a step, each with 1.5 s of generation around a tool of 9 s, which something that
    no trace shows lets in 10 s after each other. A replay has them begin at once."""
    spans: list[tuple[Any, ...]] = []
    begin = [45.0 * step + 10 * i for step in range(8) for i in range(4)]
    for n in range(8):
        spans += [(("step", n), 45 * n, 45 * n + 45), (Stage.ROLLOUT, 45 * n, 45 * n + 40.5)]
        spans.append((Stage.TRAIN, 45 * n + 40.5, 45 * n + 45))
    spans += [(Stage.ENV, b + 0.75, b + 9.75) for b in begin]
    made = rows(
        process("driver", *spans), "trajectories", start_s=begin, end_s=[b + 10.5 for b in begin],
        trajectory=list(range(1, 33)), group=[n // 4 for n in range(32)],
        response_tokens=[10] * 32, env_ns=[9 * 10**9] * 32,
        first_version=[n // 4 for n in range(32)],
    )  # fmt: skip
    return run_of(path, made, settings={"placement": "colocated"})


def test_nothing_is_predicted_by_a_replay_that_is_off_the_run(tmp_path: Path) -> None:
    source = workload_of(let_in_late(tmp_path))
    assert replay_error(source(Constants())) < -MOST_ERROR
    with pytest.raises(OffTheRun, match=r"cannot be predicted: .* off by a factor of 3"):
        predict(source, [("env_latency", "0.5")])
    with pytest.raises(OffTheRun):
        ranked(source)
    asked = CliRunner().invoke(main, ["whatif", str(tmp_path / "run")])
    assert asked.exit_code != 0


def test_the_report_then_has_fixes_without_figures(tmp_path: Path) -> None:
    let_in_late(tmp_path)
    shown = CliRunner().invoke(main, ["report", str(tmp_path / "run"), "--json"])
    found = json.loads(shown.output)["verdict"]
    assert found["fixes"]
    assert all(fix["goodput_gain"] is None for fix in found["fixes"])
    assert "off by a factor of 3" in found["unpredicted"]
    assert found["replay_error"] < -MOST_ERROR
    (first,) = [line for line in found["evidence"] if line.startswith("first: ")]
    assert "its gain cannot be predicted" in first
    text = CliRunner().invoke(main, ["report", str(tmp_path / "run")]).output
    assert "Gains: cannot be predicted" in text
    assert "Predicted gains" not in text


def test_the_error_of_the_replay_stands_beside_what_it_predicts(synthetic: Made) -> None:
    run, _ = synthetic(placement="colocated", reward_s=2.0)
    verdict = summarize(run).verdict
    section = fixes_section(verdict)
    assert section is not None
    assert any(fix.goodput_gain for fix in verdict.fixes)
    said = f"The replay behind them misses the run by {100 * verdict.replay_error:+.1f} %."
    assert said in section.notes
    assert not math.isnan(verdict.replay_error)


def test_a_replay_that_is_made_of_stage_seconds_is_held_against_nothing(tmp_path: Path) -> None:
    """As of a log that tells no samples: that it takes as long as they do is no finding."""
    job = run_of(tmp_path, process("driver", *turns(*[6] * 8)), settings={"placement": "colocated"})
    verdict = summarize(job).verdict
    section = fixes_section(verdict)
    assert section is not None
    assert any(fix.goodput_gain for fix in verdict.fixes)
    assert math.isnan(verdict.replay_error)
    assert not any("misses the run" in note for note in section.notes)
    found = predict(workload_of(job), [("train_speed", "2")])
    assert not any("before any fit" in says for says in found.rests_on)
    assert any(says.startswith("8 measured steps, of which the stage") for says in found.rests_on)
    assert found.goodput_gain.low < found.goodput_gain.middle < found.goodput_gain.high


def test_a_faster_stage_gains_no_more_than_the_stage_costs(synthetic: Made) -> None:
    tried = 0
    for knobs in ({"reward_s": 2.0}, {"reward_s": 8.0}, {"placement": "async"}):
        run, _ = synthetic(**{"placement": "colocated", **knobs})
        verdict = summarize(run).verdict
        for fix in verdict.fixes:
            lever = LEVERS.get(fix.lever.partition("=")[0])
            if lever is None or lever.within is None or fix.goodput_gain is None:
                continue
            walls = [w for w in verdict.walls if w.cost.known and lever.within in stages_of(w.name)]
            share = sum(np.fmax(wall.cost.high, wall.cost.share) for wall in walls)
            assert fix.goodput_gain.high <= 1 / (1 - share) + 1e-9
            tried += 1
    assert tried


def test_no_lever_of_the_list_gains_more_than_its_walls_cost(synthetic: Made) -> None:
    """A replay knows nothing of the walls: with walls that cost little its figures are cut, and say
    so; with the run's own they are those of the report."""
    run, _ = synthetic(placement="colocated", reward_s=8.0)
    walls = summarize(run, predict=False).verdict.walls
    found = predict(workload_of(run), [("reward_latency", "0.1")])
    assert found.goodput_gain.middle > 1.2
    few = tuple(replace(w, cost=replace(w.cost, share=0.1, low=0.05, high=0.1)) for w in walls)
    cut = held(found, few, tools_hold=False)
    assert cut.gain.high == cut.goodput_gain.middle == pytest.approx(1 / 0.9)
    assert cut.step_s.low == pytest.approx(0.9 * found.before_s)
    assert NO_MORE in cut.rests_on
    both = predict(workload_of(run), [("placement", "one-step-off")])
    assert held(both, few, tools_hold=False) is both  # it does more than shorten a stage
    asked = CliRunner().invoke(main, ["whatif", str(run.path), "--json"])
    said = json.loads(asked.output)["predictions"]
    most = most_gain(["reward_latency=0.5"], walls, tools_hold=False)
    tried = [one for one in said if one["levers"][0].startswith("reward_")]
    assert tried
    assert all(one["goodput_gain"]["high"] <= most + 1e-9 for one in tried)
    text = CliRunner().invoke(main, ["whatif", str(run.path)]).output
    assert " -" not in text.partition("One lever")[0].partition("lever")[2]
    assert "Slower for what it costs:" in text


def test_more_places_save_time_of_tools_where_tools_keep_places(synthetic: Made) -> None:
    run, _ = synthetic(placement="colocated", reward_s=8.0)
    walls = summarize(run, predict=False).verdict.walls
    least = most_gain(["slots=x2"], walls, tools_hold=False)
    assert most_gain(["slots=x2"], walls, tools_hold=True) > least > 1
    assert most_gain(["placement=async"], walls, tools_hold=False) == math.inf


def test_a_range_ends_where_no_more_can_be() -> None:
    assert Estimate(1.1, 1.3, 2.0).at_most(1.5) == Estimate(1.1, 1.3, 1.5)
    assert Estimate(1.1, 1.3, 2.0).at_most(1.2) == Estimate(1.1, 1.2, 1.2)
