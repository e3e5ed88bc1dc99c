"""The probe: doses are put on the steps in which they were given, its figures hold the truth of
series that is known, and on real jobs of the built-in trainer."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrace
from rltrace.analysis.timeline.probe import (
    Doses,
    Probe,
    ProbedStage,
    Regression,
    regress,
    usable_steps,
    work_crosses_steps,
)
from rltrace.testing import process, run_of, turns
from rltrace.testing.inside.analysis import Floats, Interval, Summary, fit, summarize
from rltrace.testing.inside.analysis import confidence_interval_UNKNOWN as UNKNOWN
from rltrace.testing.inside.hooks import Design, Recorder
from rltrace.testing.inside.trace import PLANNED, SLEPT, Stage
from tests.analysis.made import not_none, rows, steps_of
from tests.analysis.probed import probed
from tests.analysis.walls.walled import summary_of
from tests.hooks.conftest import WRAP, untraced

ROOT = Path(__file__).parents[2]
STAGES = ("rollout", "reward", "train", "sync")
STEPS = 48
FIRST = 2


class Made:
    """A series of steps of known truth: rollout and reward are one chain, train another, and the
    longer of them is followed by sync. Work differs from step to step, and noise lasts."""

    def __init__(self, seed: int, placement: str) -> None:
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
        train = 0.5 if placement == "colocated" else 0.0
        self.truth = {"rollout": mean, "reward": 0.3 * mean, "train": train, "sync": 0.1}

    def regress(self, with_work: bool) -> Regression:
        used = range(FIRST, STEPS)
        doses, work = dict(self.doses), []
        if with_work:
            for stage in ("rollout", "reward"):
                doses[stage] = doses[stage] * self.work / self.truth["rollout"]
            work = [self.work, np.linspace(1, 2, STEPS) ** 2]
        return regress(self.steps_s, doses, work, used, 0)


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


def test_known_work_makes_answers_sharper() -> None:
    made = [Made(seed, "colocated") for seed in range(40)]
    known, unknown = (
        [m.regress(w).on_path_s["train"].half_width for m in made] for w in (True, False)
    )
    assert np.median(known) < np.median(unknown) / 2


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


def test_steps_that_are_none_of_the_usual_ones_are_left_out_and_too_few_say_nothing() -> None:
    steps_s = np.array([1.0, 1.1, 0.9, 1.4, 1.0, 60.0, 1.0, 0.95, 1.0, 1.05, 0.1])
    assert usable_steps(steps_s, range(1, 11), 0) == ([1, 2, 3, 4, 6, 7, 8, 9], 2)
    assert usable_steps(steps_s, range(1, 11), 3)[0][0] == 3
    made = Made(1, "colocated")
    found = regress(made.steps_s, made.doses, [], range(3, 9), 0)
    assert found.on_path_s == {}
    assert not found.spent.known


def test_a_fit_knows_what_it_cannot_tell() -> None:
    ones: Floats = np.ones(10)
    assert fit(np.stack([ones, 2 * ones], axis=1), ones) is None
    exact = not_none(fit(np.stack([ones, np.arange(10.0)], axis=1), 3 + 2 * np.arange(10.0)))
    slope = exact.combined([0.0, 1.0])
    assert (slope.value, slope.half_width) == (pytest.approx(2), pytest.approx(0, abs=1e-6))
    assert not UNKNOWN.known
    assert not slope.over(0.0).known
    # The steps for a sharper answer go with the square.
    parts = [Interval(0.5, 0.2, 0.8)] * 3
    stage = ProbedStage(Stage.TRAIN, "train", "τ_T", 40, 10, 0.1, 1.0, *parts, 0.9, 0.9, "")
    assert (stage.more_steps_for(0.3), stage.more_steps_for(0.15)) == (0, 120)
    assert stage.contradicts


def test_a_probed_run_in_which_nothing_was_delayed_says_so(tmp_path: Path) -> None:
    design = Design(("rollout", "env"), 0.05, 1)
    driver = process("driver", *turns(*[4, 5, 4, 5] * 4))
    assert summary_of(tmp_path / "none", driver).probe is None
    probe = not_none(summary_of(tmp_path, driver, settings={"probe": design.settings()}).probe)
    assert [stage.name for stage in probe.stages] == ["rollout"]
    assert probe.stages[0].because.startswith("0 steps with a dose")
    assert probe.not_seen == ("env",)
    assert not probe.spent_share.known


@pytest.mark.parametrize("slept", [1.0, 2.2, 0.5])
def test_doses_count_as_what_they_came_to(tmp_path: Path, slept: float) -> None:
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
    times, whats, values = (list(column) for column in zip(*counters, strict=True))
    names = [f"probe/train/{what}" for what in whats]
    driver = rows(process("driver", *spans), "samples", time_s=times, counter=names, value=values)
    stages = named(summary_of(tmp_path, driver, settings={"probe": design.settings()}).probe)
    assert stages["train"].given_share == pytest.approx(slept, rel=0.05)
    assert stages["train"].stage_exposed_share.value == pytest.approx(1, abs=0.1)
    assert stages["train"].stage_exposed_share.contains(1)


def named(probe: Probe | None) -> dict[str, ProbedStage]:
    return {stage.name: stage for stage in not_none(probe).stages}


def test_every_second_of_a_stage_counts_unless_it_holds_nothing_up(tmp_path: Path) -> None:
    stages = named(probed(tmp_path / "turns", "both", beside=False).probe)
    for name, share in (("rollout", 0.6), ("train", 0.4)):
        found = stages[name]
        assert found.stage_exposed_share.contains(1)
        assert found.stage_exposed_share.half_width < 0.15
        assert found.share.value == pytest.approx(share, abs=0.01)
        assert found.computed_share == pytest.approx(share, abs=0.02)
    stages = named(probed(tmp_path / "beside", "train", beside=True).probe)
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
    "minibatches": 2, "rollout_workers": 1, "placement": "colocated", "steps": 28,
    "decode_floor": 0.004, "update_floor": 0.05,
}  # fmt: skip


def trained(folder: Path, *options: str) -> tuple[Summary, str]:
    """A job of the built-in trainer whose stages take turns, its actors in one process: the
    summary, and what its ledger counted."""
    folder.mkdir()
    (folder / "train.py").write_text(LOCAL)
    command = [sys.executable, str(folder / "train.py"), json.dumps(JOB)]
    wrap = [*WRAP, "--out", str(folder / "run"), *options, "--"]
    done = untraced(*wrap, *command, PYTHONPATH=f"{ROOT}{os.pathsep}")
    assert done.returncode == 0, done.stderr
    return summarize(rltrace.open_run(folder / "run")), done.stdout


@pytest.mark.slow
def test_a_probe_changes_no_result(tmp_path: Path) -> None:
    """And every second of a stage counts in a real job: twice the interval holds the truth, as it
    all but always does; how wide it is depends on what else the machine does, and made runs (above)
    tell that it is sharp where that is not."""
    options = ("--probe", "--probe-budget", "12.5%", "--probe-seed", "3")
    summary, counted = trained(tmp_path / "probed", *options)
    assert trained(tmp_path / "plain")[1] == counted
    probe = not_none(summary.probe)
    for name in ("rollout", "train"):
        stage = named(probe)[name]
        part = stage.stage_exposed_share
        assert part.known
        assert abs(part.value - stage.computed_stage_exposed_share) <= 2 * part.half_width
        assert stage.computed_stage_exposed_share == pytest.approx(1, abs=0.05)
        assert stage.dosed_steps >= 5
        assert stage.given_share > 0.5
    assert probe.lag_steps == 0
    assert probe.spent_share.low <= probe.budget_share


def written(recorder: Recorder, *readings: dict[str, float]) -> Doses:
    """The doses of a run whose steps have these readings of the counters of rollout."""
    for number, step in enumerate(readings):
        with rltrace.step(number):
            for what, value in step.items():
                rltrace.counter(f"probe/rollout/{what.rstrip('+')}", value)
    run = rltrace.open_run(Path(recorder.run_dir))
    return Doses(run, steps_of(run))


def test_what_was_slept_and_worked_adds_up_and_plans_do_not(recorder: Recorder) -> None:
    twice = {"planned": 0.4, "planned+": 0.4, "worked": 1.0, "worked+": 2.0, "slept": 0.4}
    after = {"worked": 1.0, "longest": 0.5, "longest+": 0.2}
    doses = written(recorder, {"worked": 2.0}, {**twice, "slept+": 0.8}, after)
    assert doses.of("rollout", PLANNED).tolist() == [0, 0.4, 0]
    assert doses.of("rollout", SLEPT) == pytest.approx([0, 1.2, 0])
    worked, longest = doses.work("rollout")
    assert worked.tolist() == [2, 3, 1]
    assert longest.tolist() == [0, 0, 0.5]
    assert doses.given("rollout") == pytest.approx(1)
    assert math.isnan(doses.given("train"))
    assert not doses.of("train", PLANNED).any()


def test_steps_whose_doses_were_refused_count_for_nothing(
    recorder: Recorder, tmp_path: Path
) -> None:
    full = {"planned": 0.5, "worked": 1.0, "slept": 0.5}
    doses = written(recorder, full, {**full, "slept": 0.0}, full, {"worked": 1.0})
    assert doses.refused.tolist() == [False, True, False, False]
    assert doses.given("rollout") == pytest.approx(1)
    run = run_of(tmp_path / "none", process("driver", (("step", 0), 0, 10)))
    none = Doses(run, steps_of(run))
    assert none.of("rollout", PLANNED).tolist() == [0]
    assert math.isnan(none.given("rollout"))


@pytest.mark.parametrize(
    ("rollouts", "crosses"),
    [
        ([(0, 9), (10, 19), (20, 29), (30, 39)], False),
        ([(0, 9), (10, 21), (21, 32), (32, 39)], True),
        ([(0, 39)], True),
    ],
)
def test_work_that_goes_on_when_a_step_ends_is_seen(
    tmp_path: Path, rollouts: list[tuple[int, int]], crosses: bool
) -> None:
    steps = [(("step", n), 10 * n, 10 * n + 10) for n in range(4)]
    waits = (Stage.WAIT, 5, 35, 2)  # is no work
    spans = [(Stage.ROLLOUT, start, end) for start, end in rollouts]
    run = run_of(tmp_path, process("driver", *steps, waits), process("rollout", *spans))
    assert work_crosses_steps(run, steps_of(run)) is crosses
