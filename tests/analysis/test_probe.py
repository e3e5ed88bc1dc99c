"""The probe's figures against series of known truth, and on real jobs of the built-in trainer."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrace
from rltrace.analysis.probe import Probe, ProbedStage
from rltrace.analysis.probe_regression import Regression, regress, usable_steps
from rltrace.testing.inside.analysis import Floats, Summary, fit, summarize
from rltrace.testing.inside.analysis import regression_Estimate as Estimate
from rltrace.testing.inside.analysis import regression_UNKNOWN as UNKNOWN
from rltrace.testing.inside.hooks import Design
from rltrace.testing.inside.trace import Stage
from rltrace.testing.made import process, rows, run_of, turns
from tests.analysis.probed import probed
from tests.hooks.conftest import WRAP, clean_environment

ROOT = Path(__file__).parents[2]
STAGES = ("rollout", "reward", "train", "sync")
STEPS = 48
FIRST = 2


class Made:
    """A series of steps of known truth: rollout and reward are one chain, train another, and the
    longer of them is followed by sync. Work differs from step to step, and noise lasts."""

    def __init__(
        self, seed: int, placement: str, carry: float = 0.6, noise_s: float = 0.05
    ) -> None:
        rng = np.random.default_rng(seed)
        design = Design(STAGES, 0.1, seed)
        self.doses = {
            stage: np.array([design.doses(n).get(stage, 0.0) for n in range(STEPS)])
            for stage in STAGES
        }
        self.work = rng.lognormal(0, 0.15, STEPS)
        noise = np.zeros(STEPS)
        for n in range(STEPS):
            noise[n] = (0.6 * noise[n - 1] if n else 0) + rng.normal(0, 0.05)
        grown = {stage: 1 + dose for stage, dose in self.doses.items()}
        actors = self.work * (grown["rollout"] + 0.3 * grown["reward"])
        learner = 0.5 * grown["train"]
        longer = actors + learner if placement == "colocated" else np.maximum(actors, learner)
        self.steps_s = longer + 0.1 * grown["sync"] + noise
        mean = float(self.work[FIRST:].mean())
        self.truth = {
            "rollout": mean,
            "reward": 0.3 * mean,
            "train": 0.5 if placement == "colocated" else 0.0,
            "sync": 0.1,
        }

    def regress(self, with_work: bool, lags: int = 0) -> Regression:
        used = range(FIRST, STEPS)
        doses, work = dict(self.doses), []
        if with_work:
            for stage in ("rollout", "reward"):
                doses[stage] = doses[stage] * self.work / self.truth["rollout"]
            work = [self.work, np.linspace(1, 2, STEPS) ** 2]
        return regress(self.steps_s, doses, work, used, lags)


@pytest.mark.parametrize("placement", ["colocated", "one-step-off"])
@pytest.mark.parametrize("with_work", [False, True])
def test_intervals_hold_the_truth_as_often_as_they_say(placement: str, with_work: bool) -> None:
    runs = 500
    held = dict.fromkeys(STAGES, 0)
    for seed in range(runs):
        made = Made(seed, placement)
        found = made.regress(with_work)
        for stage, estimate in found.on_path_s.items():
            held[stage] += estimate.contains(made.truth[stage])
    # 95 % less three standard errors of 500 draws; work that is known may make them hold more often
    assert min(held.values()) / runs > 0.92
    if not with_work:
        assert sum(held.values()) / runs / len(STAGES) < 0.98


def test_estimates_are_right_in_the_mean_and_hidden_stages_are_found_to_be() -> None:
    wrong: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for seed in range(200):
        made = Made(seed, "one-step-off")
        for stage, estimate in made.regress(True).on_path_s.items():
            wrong[stage].append(estimate.value - made.truth[stage])
    for errors in wrong.values():
        assert abs(np.mean(errors)) < 4 * np.std(errors) / math.sqrt(len(errors))


def test_known_work_makes_answers_sharper() -> None:
    with_work, without = (
        np.median(
            [Made(s, "colocated").regress(w).on_path_s["train"].half_width for s in range(40)]
        )
        for w in (True, False)
    )
    assert with_work < without / 2


def test_an_effect_on_later_steps_is_found_where_it_is_looked_for() -> None:
    rng = np.random.default_rng(1)
    design = Design(("rollout",), 0.1, 1)
    doses = np.array([design.doses(n).get("rollout", 0.0) for n in range(200)])
    later = np.concatenate([[0.0], doses[:-1]])
    steps_s = 1 + 0.5 * doses + 0.4 * later + rng.normal(0, 0.02, 200)
    here = regress(steps_s, {"rollout": doses}, [], range(4, 200), 0).on_path_s["rollout"]
    both = regress(steps_s, {"rollout": doses}, [], range(4, 200), 2).on_path_s["rollout"]
    assert not here.contains(0.9)
    assert both.contains(0.9)


def test_too_few_steps_say_nothing() -> None:
    made = Made(1, "colocated")
    found = regress(made.steps_s, made.doses, [], range(3, 9), 0)
    assert found.on_path_s == {}
    assert not found.spent.known


def test_steps_that_are_none_of_the_usual_ones_are_left_out() -> None:
    steps_s = np.array([1.0, 1.1, 0.9, 1.4, 1.0, 60.0, 1.0, 0.95, 1.0, 1.05, 0.1])
    assert usable_steps(steps_s, range(1, 11), 0) == ([1, 2, 3, 4, 6, 7, 8, 9], 2)
    assert usable_steps(steps_s, range(1, 11), 3)[0][0] == 3


def test_a_fit_knows_what_it_cannot_tell() -> None:
    ones: Floats = np.ones(10)
    assert fit(np.stack([ones, 2 * ones], axis=1), ones) is None
    exact = fit(np.stack([ones, np.arange(10.0)], axis=1), 3 + 2 * np.arange(10.0))
    assert exact is not None
    slope = exact.combined([0.0, 1.0])
    assert (slope.value, slope.half_width) == (pytest.approx(2), pytest.approx(0, abs=1e-6))
    assert not UNKNOWN.known
    assert not slope.over(0.0).known


def test_the_steps_for_a_sharper_answer_go_with_the_square() -> None:
    part = Estimate(0.5, 0.2, 0.8)
    stage = ProbedStage(
        Stage.TRAIN, "train", "τ_T", 40, 10, 0.1, 1.0, part, part, part, 0.9, 0.9, ""
    )
    assert stage.more_steps_for(0.3) == 0
    assert stage.more_steps_for(0.15) == 120
    assert stage.contradicts
    assert stage.contradicts is not stage.share.contains(stage.computed_share)


# --- runs -----------------------------------------------------------------------------------------


def test_a_run_without_a_probe_has_none(tmp_path: Path) -> None:
    driver = process("driver", *turns(4, 5, 4, 5))
    assert summarize(run_of(tmp_path, driver), predict=False).probe is None


def test_a_probed_run_in_which_nothing_was_delayed_says_so(tmp_path: Path) -> None:
    design = Design(("rollout", "env"), 0.05, 1)
    driver = process("driver", *turns(*[4, 5, 4, 5] * 4))
    run = run_of(tmp_path, driver, settings={"probe": design.settings()})
    probe = summarize(run, predict=False).probe
    assert probe is not None
    assert [(s.name, s.because) for s in probe.stages] == [
        ("rollout", "0 steps with a dose of it are too few")
    ]
    assert probe.not_seen == ("env",)
    assert not probe.spent.known


@pytest.mark.parametrize(("slept", "given"), [(1.0, 1.0), (2.2, 2.2), (0.5, 0.5)])
def test_doses_count_as_what_they_came_to(tmp_path: Path, slept: float, given: float) -> None:
    """Twice the dose: both a worker and the process that waits for it were delayed."""
    design = Design(("train",), 0.1, 2)
    rng = np.random.default_rng(2)
    spans: list[tuple[Any, ...]] = []
    counters: list[tuple[float, str, float]] = []
    now = 0.0
    for n in range(30):
        dose = design.doses(n).get("train", 0.0)
        worked = float(rng.uniform(8, 12))
        trains = now + float(rng.uniform(9.8, 10.2))
        ends = trains + worked * (1 + slept * dose)
        spans += [(("step", n), now, ends), (Stage.ROLLOUT, now, trains)]
        spans += [(Stage.TRAIN, trains, ends)]
        counters += [(now, "planned", dose), (ends - 1, "worked", worked)]
        counters += [(ends - 1, "slept", worked * dose)] if dose else []
        now = ends
    driver = process("driver", *spans)
    times, whats, values = zip(*counters, strict=True)
    names = [f"probe/train/{what}" for what in whats]
    rows(driver, "samples", time_s=list(times), counter=names, value=list(values))
    run = run_of(tmp_path, driver, settings={"probe": design.settings()})
    stages = named(summarize(run, predict=False).probe)
    assert stages["train"].given == pytest.approx(given, rel=0.05)
    assert stages["train"].exposed_part.value == pytest.approx(1, abs=0.1)
    assert stages["train"].exposed_part.contains(1)


def test_every_second_of_a_stage_counts_where_stages_take_turns(tmp_path: Path) -> None:
    stages = named(probed(tmp_path, "both", beside=False).probe)
    for name, share in (("rollout", 0.6), ("train", 0.4)):
        found = stages[name]
        assert found.exposed_part.contains(1)
        assert found.exposed_part.half_width < 0.15
        assert found.share.value == pytest.approx(share, abs=0.01)
        assert found.computed_share == pytest.approx(share, abs=0.02)


def test_a_stage_that_holds_nothing_up_is_hidden(tmp_path: Path) -> None:
    stages = named(probed(tmp_path, "train", beside=True).probe)
    assert stages["rollout"].share.contains(0)
    assert stages["rollout"].share.high < 0.1
    assert stages["train"].share.contains(0.9)
    assert stages["train"].share.low > 0.8


LOCAL = """
import json, sys
import torch
import rltrace.trainer
from rltrace.testing.inside.trainer import TrainerConfig
from tests.trainer.local import train_locally

torch.set_num_threads(1)
ledger = train_locally(TrainerConfig(**json.loads(sys.argv[1])))
counted = ("samples", "reward", "finish", "lags", "drops", "tokens_generated", "tokens_trained")
print(json.dumps([[getattr(step, name) for name in counted] for step in ledger.steps]))
"""
JOB = {
    "prompts": 4, "samples": 4, "model_size": 0.024, "layers": 2, "heads": 2, "max_running": 8,
    "minibatches": 2, "rollout_workers": 1,
}  # fmt: skip

Trained = tuple[Summary, str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    """A job of the built-in trainer, its actors in one process, with a probe or without: the
    summary, and what its ledger counted."""

    def go(*options: str, **settings: Any) -> Trained:
        folder = tmp_path_factory.mktemp("probed")
        script = folder / "train.py"
        script.write_text(LOCAL)
        job = json.dumps({**JOB, **settings})
        done = subprocess.run(
            [*WRAP, "--out", str(folder / "run"), *options, "--", sys.executable, str(script), job],
            env=clean_environment() | {"PYTHONPATH": f"{ROOT}{os.pathsep}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return summarize(rltrace.open_run(folder / "run")), done.stdout

    return go


def named(probe: Probe | None) -> dict[str, ProbedStage]:
    assert probe is not None
    return {stage.name: stage for stage in probe.stages}


@pytest.fixture(scope="module")
def in_turns(trained: Callable[..., Trained]) -> Trained:
    """Stages that take turns."""
    return trained(
        *("--probe", "--probe-budget", "12.5%", "--probe-seed", "3"),
        placement="colocated",
        steps=28,
        decode_floor=0.004,
        update_floor=0.05,
    )


def agrees(found: Estimate, truth: float) -> bool:
    """Whether twice the interval holds the truth, as it all but always does; how wide it is depends
    on what else the machine does, and made runs (above) tell that it is sharp where that is not."""
    return found.known and abs(found.value - truth) <= 2 * found.half_width


@pytest.mark.slow
def test_every_second_of_a_stage_counts_in_a_real_job(in_turns: Trained) -> None:
    probe = in_turns[0].probe
    stages = named(probe)
    for name in ("rollout", "train"):
        assert agrees(stages[name].exposed_part, stages[name].computed_part)
        assert stages[name].computed_part == pytest.approx(1, abs=0.05)
        assert stages[name].dosed_steps >= 5
        assert stages[name].given > 0.5
    assert probe is not None
    assert probe.lags == 0
    assert probe.spent.low <= probe.budget


@pytest.mark.slow
def test_a_probe_changes_no_result(in_turns: Trained, trained: Callable[..., Trained]) -> None:
    _, plain = trained(placement="colocated", steps=28, decode_floor=0.004, update_floor=0.05)
    assert plain == in_turns[1]


@pytest.mark.slow
def test_a_stage_under_a_longer_one_is_hidden_really(
    trained: Callable[..., Trained],
) -> None:
    """The learner waits for the next batch, which takes many times as long as its step."""
    summary, _ = trained(
        *("--probe", "rollout", "train", "--probe-budget", "12.5%", "--probe-seed", "3"),
        placement="one-step-off",
        steps=28,
        decode_floor=0.02,
        update_floor=0.03,
    )
    stages = named(summary.probe)
    assert agrees(stages["rollout"].exposed_part, 1)
    assert agrees(stages["train"].share, 0)
