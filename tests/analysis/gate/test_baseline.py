"""A baseline on disk, and the series in it; what makes runs comparable; what a user may state."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrace
from rltrace.analysis.gate.baseline import (
    Baseline,
    differences,
    facts_that_differ,
    framework_facts,
    hardware_of,
    make_baseline,
    read_baseline,
    settings_of,
    write_baseline,
)
from rltrace.analysis.gate.metrics import (
    MAX_REGRESSION,
    MAXIMUM,
    MINIMUM,
    WALL,
    Condition,
    parse_condition,
    stated_in,
)
from rltrace.testing.handmade_runs import process, rows, run_of, stating, turns
from rltrace.testing.inside.analysis import (
    MOST_STEPS,
    RunSeries,
    StepSelection,
    analysed_part_narrow,
    find_metric,
    judge_series,
    series_of,
)
from rltrace.testing.inside.analysis import metrics as m
from rltrace.testing.inside.trace import (
    CANNOT_TELL,
    UNREADABLE,
    WRONG_USAGE,
    Fate,
    RltraceError,
    Stage,
)
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.analysis.conftest import Made
from tests.analysis.walls.walled import in_steps

Synthetic = Callable[..., Made]
FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(scope="module")
def baseline(synthetic: Synthetic) -> Baseline:
    return make_baseline([synthetic(placement="async", seed=n)[0] for n in (1, 2)])


def test_a_baseline_comes_back_as_it_was_and_is_small(baseline: Baseline, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(baseline, path)
    again = read_baseline(path)
    for name in ("created", "hardware", "settings", "framework"):
        assert getattr(again, name) == getattr(baseline, name)
    for before, after in zip(baseline.runs, again.runs, strict=True):
        assert before.run == after.run
        assert (before.steps == after.steps).all()
        assert before.columns.keys() == after.columns.keys()
        for name, column in before.columns.items():
            np.testing.assert_allclose(after.columns[name], column, rtol=1e-5)
    assert path.stat().st_size < 2000 + 500 * sum(run.size for run in baseline.runs)


def test_the_series_are_the_truth_of_the_run(synthetic: Synthetic) -> None:
    run, truth = synthetic(placement="colocated")
    series = series_of(run)
    assert series.steps.tolist() == [step.step for step in truth.steps]
    busy = series.columns[m.BUSY + "train"]
    assert busy == pytest.approx([step.tau_s["train"] for step in truth.steps], rel=1e-3)
    parts = sum(c for name, c in series.columns.items() if name.startswith(m.EXPOSED))
    assert parts == pytest.approx(series.columns[m.LENGTH])
    lags = sum(c.sum() for name, c in series.columns.items() if name.startswith(m.LAG))
    assert lags > 0
    assert series.columns[m.SYNC_BYTES].sum() > 0


def test_of_a_long_run_the_last_steps_are_kept(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("learner", *turns(*[6.0] * (MOST_STEPS + 5))))
    series = series_of(run)
    assert series.size == MOST_STEPS
    assert series.steps[-1] == MOST_STEPS + 4


def test_a_baseline_that_0_1_wrote_has_what_is_found_in_its_run_now(tmp_path: Path) -> None:
    (stored,) = read_baseline(FIXTURES / "baseline-0.1.json").runs
    run = shutil.copytree(FIXTURES / "run-0.1", tmp_path / "run")
    opened = rltrace.open_run(run)
    analysed_part_narrow(opened, StepSelection(12, 15))
    found = series_of(opened)
    assert found.is_same(stored)
    for name in found.columns.keys() - {"work_s"}:  # now of the run's one count of devices
        np.testing.assert_allclose(found.columns[name], stored.columns[name], rtol=1e-5)


def one_run(**changed: Any) -> dict[str, Any]:
    """A baseline of one run of one step, and this changed of it."""
    return {"runs": [{"run": "a", "start_ns": 1, "steps": [1], "columns": {}, **changed}]}


def with_columns(**columns: list[Any]) -> dict[str, Any]:
    return one_run(columns={"length_s": [1], **columns})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        *((text, "no JSON") for text in ("", "{", "[" * 100_000, "\x00\x01")),
        *((text, "no baseline") for text in ("[]", "3", '{"format": "coverage"}')),
        ('{"format": "rltrace-baseline"}', "schema version None"),
        ('{"format": "rltrace-baseline", "schema_version": 2}', "schema version 2"),
        ('{"format": "rltrace-baseline", "schema_version": 1}', "damaged"),
        *((changed, "damaged") for changed in (
            {"runs": []}, {"runs": 3}, {"runs": [{}]}, one_run(steps=[]), one_run(),
            one_run(steps=[1e99], columns={"length_s": [1]}), {"hardware": "large"},
            {"settings": None}, with_columns(**{"lag.x": [1]}), with_columns(useful_tokens=[-5]),
            *(with_columns(length_s=one) for one in ([1, 2], ["x"], [None], [0], [1e-308])),
            *(with_columns(**{name: [figure]}) for name in ("useful_tokens", "length_s", "reward")
              for figure in (1e308, -1e308)),
        )),
    ],
)  # fmt: skip
def test_what_is_no_baseline_or_damaged_is_told_in_one_sentence(
    baseline: Baseline, tmp_path: Path, content: str | dict[str, Any], says: str
) -> None:
    path = tmp_path / "baseline.json"
    if isinstance(content, dict):
        write_baseline(baseline, path)
        content = json.dumps({**json.loads(path.read_text()), **content})
    path.write_text(content)
    with pytest.raises(RltraceError, match=says) as error:
        read_baseline(path)
    assert error.value.exit_code == UNREADABLE
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_or_written_is_told(baseline: Baseline, tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(RltraceError, match="cannot be read") as error:
            read_baseline(path)
        assert error.value.exit_code == UNREADABLE
    with pytest.raises(RltraceError, match="cannot write"):
        write_baseline(baseline, tmp_path / "no" / "where.json")


def test_runs_of_other_work_or_hardware_make_no_baseline(
    synthetic: Synthetic, baseline: Baseline
) -> None:
    assert differences(synthetic(placement="async", seed=3)[0], baseline) == ()
    one = synthetic(placement="async", seed=1)[0]
    for knobs, name in (({"gpus": 4}, "devices"), ({"rollout_workers": 2}, "rollout processes")):
        other = synthetic(placement="async", **knobs)[0]
        assert name in {one.name for one in differences(other, baseline)}
        with pytest.raises(RltraceError, match="no runs of one baseline") as error:
            make_baseline([one, other])
        assert error.value.exit_code == WRONG_USAGE


def test_a_run_counts_once_and_has_a_step(synthetic: Synthetic, tmp_path: Path) -> None:
    one = synthetic(placement="async", seed=1)[0]
    empty = run_of(tmp_path, process("learner", ("train", 0, 3)))
    for runs, says, code in (
        ([one, one], "counts once", WRONG_USAGE),
        ([], "1 to", WRONG_USAGE),
        ([empty], "no complete step", CANNOT_TELL),
    ):
        with pytest.raises(RltraceError, match=says) as error:
            make_baseline(runs)
        assert error.value.exit_code == code


def run_with(path: Path, **settings: object) -> Run:
    """A run whose controller states these settings."""
    made = run_of(path, process("controller", *turns(6.0)), process("rollout"))
    made.processes[0].facts["settings"] = settings
    return made


WORK = ("max_response", "trainer.max_output_len", "algorithm", "gradient_accumulation_steps")
OTHER = ("steps", "trainer.total_epochs", "data.seed", "output_dir", "trainer.experiment_name",
         "--save-path", "joined_cluster", "checkpoint")  # fmt: skip


@pytest.mark.parametrize("name", WORK + OTHER)
def test_settings_of_the_work_count(tmp_path: Path, name: str) -> None:
    runs = [run_with(tmp_path / text, **{name: text}) for text in ("a", "b")]
    differ = facts_that_differ(*(settings_of(run) for run in runs))
    assert bool(differ) == (name in WORK)


def test_the_shape_of_a_job_counts(tmp_path: Path) -> None:
    learner, engine = process("learner", *turns(6.0)), process("rollout")
    one, two = (
        run_of(tmp_path / "a", learner, engine),
        run_of(tmp_path / "b", learner, engine, engine),
    )
    (differ,) = facts_that_differ(settings_of(one), settings_of(two))
    assert (differ.name, differ.before, differ.after) == ("rollout processes", 1, 2)


def test_what_one_run_does_not_state_is_no_difference(tmp_path: Path) -> None:
    stated, silent = run_with(tmp_path / "a", clip=0.2), run_with(tmp_path / "b")
    assert facts_that_differ(settings_of(stated), settings_of(silent)) == ()
    assert facts_that_differ({"cpu": None}, {"cpu": "EPYC"}) == ()


def test_processors_are_hardware(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("learner", *turns(6.0)), process("agent"))
    run = stating(run, {"cores": 0, "cpus": "1f0"}, {"cores": 0, "cpus": "3", "cpu": "EPYC"})
    assert hardware_of(run)["cpu"] == "EPYC"
    assert hardware_of(run)["cores"] == 7
    assert framework_facts(run).keys() >= {"framework", "python"}


@pytest.mark.parametrize(
    ("kind", "text", "subject", "limit"),
    [
        (MAX_REGRESSION, "goodput=3%", "goodput", 0.03),
        (MAX_REGRESSION, "step.p95=10%", "step.p95", 0.1),
        (MAX_REGRESSION, " stage.rollout = 2.5 %".replace(" %", "%"), "stage.rollout", 0.025),
        (MINIMUM, "goodput_per_gpu=1200", "goodput_per_gpu", 1200),
        (MAXIMUM, "lag.p99=4", "lag.p99", 4),
        (MAXIMUM, "lag.max=4", "lag.max", 4),
        (MAXIMUM, "sync.gbytes=1.5", "sync.gbytes", 1.5),
        (WALL, "rollout", "rollout", math.nan),
        (WALL, "Learner FLOPs + memory".lower(), "training", math.nan),  # as it was called before
    ],
)
def test_conditions_are_read(kind: str, text: str, subject: str, limit: float) -> None:
    found = parse_condition(kind, text)
    assert (found.kind, found.subject) == (kind, subject)
    assert found.limit == pytest.approx(limit, nan_ok=True)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (MAX_REGRESSION, "goodput", "METRIC=LIMIT"),
        (MAX_REGRESSION, "goodput=3", "percentage"),
        (MAX_REGRESSION, "goodput=0%", "more than 0"),
        (MAX_REGRESSION, "goodput=100%", "less than 100"),
        (MAX_REGRESSION, "goodput=nan%", "no number"),
        (MAX_REGRESSION, "speed=3%", "no metric"),
        (MAX_REGRESSION, "stage.thinking=3%", "no metric"),
        (MAX_REGRESSION, "goodput.p95=3%", "no metric"),
        (MAXIMUM, "lag.p99=4%", "metric's unit"),
        (MINIMUM, "reward=high", "no number"),
        (WALL, "ceiling", "is no wall"),
        (WALL, "", "is no wall"),
    ],
)
def test_what_cannot_be_meant_is_told(kind: str, text: str, says: str) -> None:
    with pytest.raises(RltraceError, match=says) as error:
        parse_condition(kind, text)
    assert error.value.exit_code == WRONG_USAGE


def test_a_table_holds_all_kinds() -> None:
    found, _ = stated_in(
        {
            "max-regression": {"goodput": "3%"},
            "min": {"goodput_per_gpu": 100},
            "max": {"lag.p99": 4},
            "wall": "rollout",
        }
    )
    assert [one.text for one in found] == [
        "max-regression goodput=3%",
        "min goodput_per_gpu=100",
        "max lag.p99=4",
        "wall rollout",
    ]
    for wrong in ({"goodput": "3%"}, {"wall": 3}, {"max": "lag=4"}):
        with pytest.raises(RltraceError) as error:
            stated_in(wrong)  # type: ignore[arg-type]
        assert error.value.exit_code == WRONG_USAGE


def test_a_maximum_is_a_percentile_of_all() -> None:
    assert find_metric("lag.max").quantile == 1.0
    assert find_metric("step.p99.9").quantile == pytest.approx(0.999)
    assert Condition(MAXIMUM, "lag.max", 2.0).text == "max lag.max=2"


STEPS, SAMPLES, TOKENS, LENGTH_S = 12, 4, 100, 10.0


def one_step_ahead(path: Path, dropped: int = 0) -> RunSeries:
    """A job that generates the batch of the next step beside each step, and none in the last one;
    `dropped` of each batch are dropped by the learner. The first batch is generated before."""
    steps = in_steps(
        LENGTH_S, (("step", 0), LENGTH_S, 2 * LENGTH_S), (Stage.TRAIN, LENGTH_S, 1.8 * LENGTH_S),
        count=STEPS,
    )  # fmt: skip
    ids = list(range(1, STEPS * SAMPLES + 1))
    batch = np.repeat(np.arange(STEPS), SAMPLES)
    place = np.tile(np.arange(SAMPLES), STEPS)
    learner = rows(
        process("learner", *steps), "uses", trajectory=ids, version=batch.tolist(),
        time_s=(LENGTH_S * (batch + 1) + 7).tolist(),
        fate=np.where(place < dropped, int(Fate.STALE), int(Fate.TRAINED)).tolist(),
    )  # fmt: skip
    engine = rows(
        process("rollout", *in_steps(LENGTH_S, (Stage.ROLLOUT, 0, 9), count=STEPS)),
        "trajectories", trajectory=ids, start_s=(LENGTH_S * batch).tolist(),
        end_s=(LENGTH_S * batch + 9).tolist(), response_tokens=[TOKENS] * (STEPS * SAMPLES),
    )  # fmt: skip
    return series_of(run_of(path, learner, engine))


@pytest.mark.parametrize("dropped", [0, 1])
def test_a_share_of_tokens_generated_ahead_is_no_more_than_all_of_them(
    tmp_path: Path, dropped: int
) -> None:
    run = one_step_ahead(tmp_path, dropped)
    assert run.columns[m.GENERATED][-1] == 0
    assert run.columns[m.USEFUL][-1] == (SAMPLES - dropped) * TOKENS
    assert run.columns[m.DECIDED].tolist() == [SAMPLES * TOKENS] * STEPS
    again = replace(run, run="again", start_ns=run.start_ns + 1)
    goodput = parse_condition(MAX_REGRESSION, "goodput=3%")
    found = judge_series([again], [run], [goodput])
    factors = {one.name: one for one in found.factors}
    assert factors["useful share"].after == pytest.approx(1 - dropped / SAMPLES)
    rate = run.columns[m.USEFUL].sum() / run.columns[m.DEVICES].sum()
    assert np.prod([one.after for one in found.factors]) == pytest.approx(rate, rel=0.02)


def test_what_the_learner_never_met_counts_where_it_ended(tmp_path: Path) -> None:
    engine = rows(
        process("rollout", (Stage.ROLLOUT, 0, 40)), "trajectories", trajectory=[1, 2, -1],
        start_s=[1.0, 11.0, 21.0], end_s=[9.0, 19.0, 29.0], response_tokens=[5, 7, 11],
    )  # fmt: skip
    steps = in_steps(10, (("step", 0), 0, 10), count=4)
    learner = rows(process("learner", *steps, (Stage.TRAIN, 0, 40)), "uses", trajectory=[1],
                   time_s=[35.0], fate=[int(Fate.TRAINED)])  # fmt: skip
    run = series_of(run_of(tmp_path, learner, engine))
    assert run.columns[m.DECIDED].tolist() == [0, 7, 11, 5]
