"""Judgements: of made traces whose truth is known, and of simulated jobs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rltrace.analysis.gate.judge import judge, judge_series
from rltrace.testing.handmade_runs import process, run_of
from rltrace.testing.inside.analysis import (
    MAX_REGRESSION,
    MAXIMUM,
    MINIMUM,
    PASS,
    REGRESSION,
    UNSURE,
    WALL,
    Condition,
    Finding,
    Judgement,
    RunSeries,
    make_baseline,
    parse_condition,
    read_baseline,
    write_baseline,
)
from rltrace.testing.inside.analysis import baseline_Baseline as Baseline
from rltrace.testing.inside.analysis import metrics as m
from rltrace.testing.inside.trace import (
    ANSWER_IS_NO,
    CANNOT_TELL,
    OK,
    UNREADABLE,
    WRONG_USAGE,
    RltraceError,
    Stage,
)
from tests.analysis.conftest import Made
from tests.analysis.gate.simulated import Job, runs_of

Synthetic = Callable[..., Made]

QUIET = Job(starts=0.004, noise=0.01, stalls=0.0)


def limits(*texts: str) -> list[Condition]:
    return [parse_condition(MAX_REGRESSION, text) for text in texts]


def judged(before: Job, after: Job, *texts: str, baselines: int = 5, runs: int = 1) -> Judgement:
    """The judgement of simulated runs."""
    return judge_series(runs_of(after, runs, 500), runs_of(before, baselines, 0), limits(*texts))


def outcomes(found: Judgement) -> list[str]:
    return [finding.outcome for finding in found.findings]


def only(judgement: Judgement) -> Finding:
    (finding,) = judgement.findings
    return finding


def test_an_unchanged_run_passes() -> None:
    found = judged(QUIET, QUIET, "goodput=3%", "step=3%")
    assert (found.outcome, found.exit_code) == (PASS, OK)
    assert found.paired
    assert found.warmup in ((1,), (2,))  # the second step is not much longer
    assert found.notes == ()
    one = judged(QUIET, QUIET, "goodput=3%", baselines=1)
    assert any("baseline has one run" in note for note in one.notes)
    many = judged(QUIET, QUIET, "goodput=3%", "step=3%", "stage.rollout=3%").findings[0]
    alone = only(judged(QUIET, QUIET, "goodput=3%"))
    assert many.p_adjusted >= many.p_value == alone.p_value  # no more false alarms


def test_a_slowdown_is_found_with_its_size_stage_and_factor() -> None:
    found = judged(QUIET, replace(QUIET, slower_rollout=1.1), "goodput=3%")
    finding = only(found)
    assert (found.outcome, found.exit_code) == (REGRESSION, ANSWER_IS_NO)
    true = 1 - 1 / 1.07
    assert finding.worse_share.low < true < finding.worse_share.high
    assert finding.worse_share.value == pytest.approx(true, abs=0.02)
    assert finding.ratio.value == pytest.approx(1 / 1.07, abs=0.02)
    assert finding.p_value <= found.alpha
    assert finding.stage is not None
    assert finding.stage.name == "rollout"
    assert finding.stage.difference_share.low < 0.07 < finding.stage.difference_share.high


def test_a_hidden_slowdown_passes_the_gate_of_goodput_and_not_that_of_its_stage() -> None:
    slower = replace(QUIET, hidden_s=QUIET.hidden_s * 1.08)
    goodput, stage = judged(QUIET, slower, "goodput=3%", "stage.reward=3%").findings
    assert goodput.outcome == PASS
    assert stage.outcome == REGRESSION
    assert stage.worse_share.low < 0.08 < stage.worse_share.high


def test_of_a_made_trace_the_hidden_stage_is_named(synthetic: Synthetic, tmp_path: Path) -> None:
    knobs = {"placement": "async", "jitter": 0.005, "steps": 16}
    write_baseline(
        make_baseline([synthetic(seed=n, **knobs)[0] for n in (1, 2, 3)]), tmp_path / "b.json"
    )
    baseline = read_baseline(tmp_path / "b.json")
    slow = synthetic(seed=4, train_s=2.8, **knobs)[0]
    found = judge([slow], baseline, limits("stage.train=3%", "stage.reference=3%"))
    train, reference = found.findings
    assert train.outcome == REGRESSION
    assert train.stage is not None
    assert train.stage.name == "train"
    assert train.worse_share.low < 0.12 < train.worse_share.high
    assert reference.outcome == PASS
    assert set(found.warmup) == {2}


LONGER = replace(QUIET, tokens=1300)


@pytest.mark.parametrize(
    ("after", "outcome", "worse"),
    [
        (replace(LONGER, slower=1.3), PASS, 0),
        (replace(LONGER, slower=1.3 * 1.1), REGRESSION, 0.1),
        (replace(QUIET, tokens=800), UNSURE, 0.25),  # in steps of the same length
    ],
    ids=["longer answers", "longer and slower", "shorter and no faster"],
)
def test_longer_answers_are_no_slowdown_and_hide_none(
    after: Job, outcome: str, worse: float
) -> None:
    found = judged(QUIET, after, "step=3%")
    finding = only(found)
    assert finding.outcome == found.outcome == outcome
    assert found.exit_code == {PASS: OK, REGRESSION: ANSWER_IS_NO, UNSURE: CANNOT_TELL}[outcome]
    if outcome != UNSURE:
        assert finding.worse_share.value == pytest.approx(worse, abs=0.02)
        assert finding.normalised.startswith("by token")
        assert finding.value > 1.25 * finding.baseline
        assert any("tokens" in note for note in found.notes)
        (goodput,) = outcomes(judged(QUIET, after, "goodput=3%"))
        assert goodput == outcome


def test_a_reward_that_no_longer_tells_samples_apart_is_no_slowdown() -> None:
    finding = only(judged(QUIET, replace(QUIET, signal=0.5), "goodput=3%"))
    assert finding.outcome == PASS
    assert "without a signal" in finding.normalised
    assert finding.value < 0.6 * finding.baseline


def test_what_samples_were_drawn_is_kept_out_where_that_is_sharper() -> None:
    other_work = replace(QUIET, seed=None, work=0.3)
    found = judged(other_work, replace(other_work, slower=1.1), "step=3%", "stage.train=3%")
    step, train = found.findings
    assert step.normalised == "by token, which is sharper"
    assert train.normalised == ""
    assert train.worse_share.low < 0.1 < train.worse_share.high


def test_noise_cannot_be_told_and_what_would_tell_is_said() -> None:
    noisy = Job(noise=0.1, r=0.0, stalls=0.0, starts=0.0, steps=20)
    finding = only(judged(noisy, replace(noisy, slower=1.02), "goodput=3%", baselines=3))
    assert finding.outcome == UNSURE
    assert finding.more_steps or finding.more_runs or finding.more_baselines
    finding = only(judged(Job(), Job(), "goodput=0.05%"))  # no number of runs tells that
    assert finding.outcome == UNSURE
    assert (finding.more_steps, finding.more_runs, finding.more_baselines) == (None, None, None)


def test_a_figure_that_no_start_changes_is_judged_exactly() -> None:
    before, after = runs_of(QUIET, 1, 0), runs_of(QUIET, 1, 9)
    sends = np.full(QUIET.steps, 1e9)
    for factor, outcome in ((1.0, PASS), (1.02, PASS), (1.04, REGRESSION)):
        runs = [
            [
                replace(run, columns={**run.columns, m.SYNC_BYTES: sends * k, m.SYNCS: sends / 1e9})
                for run in side
            ]
            for side, k in ((after, factor), (before, 1.0))
        ]
        found = judge_series(*runs, limits("sync.gbytes=3%"))
        assert only(found).outcome == outcome
        assert only(found).worse_share.value == pytest.approx(factor - 1)


def test_several_runs_are_sharper_than_one() -> None:
    one = only(judged(Job(), Job(), "goodput=3%", runs=1))
    four = only(judged(Job(), Job(), "goodput=3%", runs=4))
    assert four.worse_share.high - four.worse_share.low < one.worse_share.high - one.worse_share.low


def test_stalls_that_are_new_are_found_though_usual_steps_are_as_they_were() -> None:
    steady = replace(QUIET, noise=0.005, starts=0.001, steps=60)
    finding = only(judged(steady, replace(steady, stalls=0.4), "step=3%", runs=2))
    assert finding.outcome == REGRESSION


def test_steps_of_other_numbers_are_compared_all_the_same() -> None:
    before, after = runs_of(QUIET, 4, 0), runs_of(QUIET, 1, 9)
    later = [replace(run, steps=run.steps + 1000) for run in after]
    found = judge_series(later, before, limits("goodput=10%"))
    assert not found.paired
    assert found.outcome == PASS


def test_a_figure_that_nobody_recorded_cannot_be_told() -> None:
    found = judged(QUIET, QUIET, "sync=3%", "lag.p99=3%")
    assert outcomes(found) == [UNSURE, UNSURE]
    assert "did not record sync" in found.findings[0].because


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(12))
def test_any_figures_get_an_answer(seed: int) -> None:
    random = np.random.default_rng(seed)

    def worn(run: RunSeries) -> RunSeries:
        columns = {}
        for name, column in run.columns.items():
            gone = random.random()
            if name == m.LENGTH or gone < 0.4:
                columns[name] = column
            elif gone < 0.8:
                worth = random.choice([0.0, math.nan], size=run.size)
                columns[name] = np.where(random.random(run.size) < gone, worth, column)
        size = int(random.integers(1, run.size + 1))
        kept = {name: column[:size] for name, column in columns.items()}
        kept[f"{m.LAG}{random.integers(3)}"] = random.integers(0, 2, size).astype(np.float64)
        return replace(run, steps=run.steps[:size], columns=kept)

    before = [worn(run) for run in runs_of(replace(QUIET, steps=12), 3, 0)]
    after = [worn(run) for run in runs_of(replace(QUIET, steps=12), 1, 9)]
    texts = [f"{name}=3%" for name in (
        "goodput", "goodput_per_gpu", "throughput", "step", "step.p95", "lag", "lag.p99", "lag.max",
        "sync", "stage.train", "stage.train.p50", "exposed.rollout", "reward", "ess",
    )]  # fmt: skip
    bounds = [parse_condition(MAXIMUM, "lag.p99=1"), parse_condition(MINIMUM, "ess=0.5")]
    found = judge_series(after, before, [*limits(*texts), *bounds])
    assert len(found.findings) == len(texts) + 2
    assert all(finding.because for finding in found.findings)
    assert set(outcomes(found)) <= {PASS, REGRESSION, UNSURE}


@pytest.fixture(scope="module")
def known(synthetic: Synthetic) -> Baseline:
    return make_baseline([synthetic(placement="async", seed=n)[0] for n in (1, 2)])


def test_other_hardware_is_refused(synthetic: Synthetic, known: Baseline) -> None:
    other = synthetic(placement="async", gpus=4)[0]
    with pytest.raises(RltraceError, match="devices 8 and 4") as error:
        judge([other], known, limits("goodput=3%"))
    assert error.value.exit_code == UNREADABLE


def test_another_version_of_the_framework_is_judged_and_said(
    synthetic: Synthetic, known: Baseline
) -> None:
    run = synthetic(placement="async", seed=3)[0]
    upgraded = replace(known, framework={**known.framework, "python": "3.1"})
    found = judge([run], upgraded, limits("stage.train=30%"))
    assert any("python differs: 3.1" in note for note in found.notes)
    assert only(found).normalised == ""


def test_wrong_use_is_told(synthetic: Synthetic, known: Baseline, tmp_path: Path) -> None:
    run = synthetic(placement="async", seed=3)[0]
    inside = synthetic(placement="async", seed=1)[0]
    empty = run_of(tmp_path, process("learner", (Stage.TRAIN, 0, 3)))
    bound = [parse_condition(MAXIMUM, "step=9")]
    for runs, baseline, conditions, code in (
        ([run], known, [], WRONG_USAGE),
        ([], known, bound, WRONG_USAGE),
        ([run], None, limits("goodput=3%"), WRONG_USAGE),
        ([inside], known, limits("goodput=3%"), WRONG_USAGE),
        ([empty], None, bound, CANNOT_TELL),
    ):
        with pytest.raises(RltraceError) as error:
            judge(runs, baseline, conditions)
        assert error.value.exit_code == code


def test_bounds_are_facts_of_the_run(synthetic: Synthetic) -> None:
    run, truth = synthetic(placement="async")
    settled = truth.steps[2:]
    train_s = sum(step.tau_s["train"] for step in settled) / len(settled)
    most = (f"stage.train={train_s * 1.001}", f"stage.train={train_s * 0.999}",
            "lag.max=2", "lag.p99=1", "sync.gbytes=16")  # fmt: skip
    conditions = [parse_condition(MAXIMUM, text) for text in most]
    least = ("goodput_per_gpu=1", "goodput_per_gpu=1e9")
    conditions += [parse_condition(MINIMUM, text) for text in least]
    found = judge([run], None, conditions)
    assert outcomes(found) == [PASS, REGRESSION, PASS, REGRESSION, PASS, PASS, REGRESSION]
    assert found.findings[0].value == pytest.approx(train_s, rel=1e-3)
    assert math.isnan(found.findings[0].baseline)
    assert found.exit_code == ANSWER_IS_NO


@pytest.mark.parametrize("limit", ["step=1e9", "step=1e-9"])
def test_a_limit_is_not_told_by_few_steps(limit: str) -> None:
    """Its first step may be its slowest, and nobody knows whether the job has settled."""
    bound = [parse_condition(MAXIMUM, limit)]
    (whole,) = runs_of(replace(QUIET, steps=12), 1, 0)

    def first(steps: int) -> RunSeries:
        kept = {name: column[:steps] for name, column in whole.columns.items()}
        return replace(whole, steps=whole.steps[:steps], columns=kept)

    baseline = runs_of(QUIET, 5, 0)
    for steps, missing in ((1, 4), (4, 1)):
        for found in (
            judge_series([first(steps)], (), bound),
            judge_series([first(steps)], baseline, limits("goodput=3%")),
        ):
            assert (found.outcome, found.exit_code) == (UNSURE, CANNOT_TELL)
            assert only(found).more_steps == missing
            assert f"{steps} settled step" in only(found).because
    assert judge_series([first(3), whole], (), bound).outcome == UNSURE
    assert judge_series([first(8)], (), bound).outcome != UNSURE


def test_the_wall_is_that_of_the_report(synthetic: Synthetic) -> None:
    run = synthetic(placement="colocated", reward_s=9.0)[0]
    conditions = [parse_condition(WALL, name) for name in ("env/reward", "learner")]
    right, wrong = judge([run], None, conditions).findings
    assert right.outcome == PASS
    assert wrong.outcome in (REGRESSION, UNSURE)
    assert "env/reward" in wrong.because
