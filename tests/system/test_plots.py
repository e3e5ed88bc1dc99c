"""Figures by a real matplotlib: what they show is what the analysis says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.colors import same_color
from PIL import Image

import rltrace
from benchmarks.make_trace import Truth, Workload, make
from rltrace.report.notebook import Run
from rltrace.report.plots.paper import colour
from rltrace.trace.errors import RltraceError
from rltrace.trace.run_dir import create_run
from rltrace.trace.vocabulary import Stage
from tests.analysis.handmade import process, rows, run_of
from tests.report.hostile import hostile_run

PLOTS = ("steps", "waterfall", "stages", "lags", "latency", "goodput", "timeline")


@pytest.fixture(autouse=True)
def _agg() -> Iterator[None]:
    mpl.use("Agg")
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Truth]:
    path = tmp_path_factory.mktemp("synthetic") / "run"
    load = Workload(placement="async", steps=12, prompts=8, group=4, unknown_versions=0.1)
    truth = make(path, load)
    return rltrace.open_run(path), truth


def plot(run: Run, name: str, **options: Any) -> Any:
    return getattr(run, f"plot_{name}")(**options)


def widths(bars: Any) -> list[float]:
    return [bar.get_width() for bar in bars]


@pytest.mark.parametrize("name", PLOTS)
def test_a_figure_is_drawn_with_title_and_units(made: Any, name: str, tmp_path: Path) -> None:
    ax = plot(made[0], name)
    if name != "timeline":
        assert ax.get_title()
    assert ax.get_xlabel()
    ax.figure.savefig(tmp_path / "x.png")
    drawn = np.asarray(Image.open(tmp_path / "x.png").convert("RGB")).reshape(-1, 3)
    assert len(np.unique(drawn, axis=0)) > 10


@pytest.mark.parametrize("name", PLOTS)
def test_a_figure_is_drawn_where_the_caller_says(made: Any, name: str) -> None:
    figure, (left, right) = pyplot.subplots(1, 2)
    assert plot(made[0], name, ax=right) is right
    assert right.has_data()
    assert not left.has_data()
    assert pyplot.get_fignums() == [figure.number]


@pytest.mark.parametrize("name", PLOTS)
def test_of_an_empty_run_a_figure_says_why_it_is_empty(name: str, tmp_path: Path) -> None:
    create_run(str(tmp_path / "run"), ["python", "train.py"], {}, "test")
    ax = plot(rltrace.open_run(tmp_path / "run"), name)
    assert len(ax.texts[0].get_text()) > 10
    assert not ax.has_data()


def test_columns_of_a_step_add_up_to_it(made: Any) -> None:
    run, _ = made
    ax = plot(run, "steps")
    times = run.summary.steps.times
    tops = np.max(
        [patch.get_data().values for patch in ax.patches if hasattr(patch, "get_data")], 0
    )
    assert tops == pytest.approx([step.seconds for step in times])
    trained = next(p for p in ax.patches if p.get_label() == "train")
    seconds = trained.get_data().values - trained.get_data().baseline
    assert seconds == pytest.approx([step.exposed_s["train"] for step in times])
    assert same_color(trained.get_facecolor(), colour("train"))


def test_the_waterfall_shows_when_a_stage_ran(tmp_path: Path) -> None:
    driver = process("driver", (("step", 4), 0, 10), (("step", 5), 10, 30))
    worker = process("rollout", (Stage.ROLLOUT, 0, 5), (Stage.TRAIN, 15, 30))
    run = run_of(tmp_path, driver, worker)
    ax = plot(run, "waterfall", step=4)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rollout"]
    assert ax.get_xlim() == (0, 10)
    (row,) = (patch.get_data() for patch in ax.patches)
    height = row.baseline - row.values
    assert (height[:60] > 0.8).all()
    assert height[60:] == pytest.approx(np.zeros(60), abs=1e-6)
    with pytest.raises(RltraceError, match="no completed step 6"):
        plot(run, "waterfall", step=6)


def test_bars_of_stages_are_exposed_and_hidden_seconds(made: Any) -> None:
    run, _ = made
    exposed, hidden = plot(run, "stages").containers
    rows_ = run.summary.stages
    assert widths(exposed) == pytest.approx([row.exposed_s.mean for row in rows_])
    assert widths(hidden) == pytest.approx([row.hidden_s.mean for row in rows_])


def test_bars_of_lags_are_the_truth_and_unknown_stands_apart(made: Any) -> None:
    run, truth = made
    ax = plot(run, "lags")
    known, unknown = ax.containers
    total = sum(truth.lag_trajectories.values())
    shown = {str(round(b.get_x() + b.get_width() / 2)): b.get_height() * total for b in known}
    assert shown | {"unknown": unknown[0].get_height() * total} == pytest.approx(
        truth.lag_trajectories
    )
    assert "unknown" in [text.get_text() for text in ax.texts]


def test_the_latency_curve_passes_through_its_quantiles(tmp_path: Path) -> None:
    worker = rows(
        process("rollout", (("step", 0), 0, 200)),
        "trajectories",
        start_s=[0.0] * 101,
        end_s=[1.0 + n for n in range(101)],
        trajectory=list(range(101)),
    )
    ax = plot(run_of(tmp_path, worker), "latency")
    (curve, *_) = ax.lines
    at = dict(zip(curve.get_ydata(), curve.get_xdata(), strict=True))
    assert (at[0.0], at[0.5], at[0.99], at[1.0]) == pytest.approx((1, 51, 100, 101))
    assert [text.get_text() for text in ax.texts] == ["p50 51.0 s", "p99 100 s"]


def test_the_cascade_ends_at_the_goodput(made: Any) -> None:
    run, _ = made
    ax = plot(run, "goodput")
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert (names[0], names[-1]) == ("generated while at work", "goodput")
    cascade = run.summary.cascade
    assert widths(ax.containers[-1]) == pytest.approx([cascade.effective_tokens_per_device_s])
    left = [bars for bars in ax.containers if bars.get_label() == "lost"]
    lost = sum(widths(bars)[0] for bars in left)
    peak = widths(ax.containers[0])[0]
    assert peak - lost == pytest.approx(cascade.effective_tokens_per_device_s)


def test_the_timeline_has_a_band_for_each_process(tmp_path: Path) -> None:
    one = process("rollout", (Stage.ROLLOUT, 0, 5), (Stage.ENV, 1, 2))
    two = process("learner", (Stage.TRAIN, 5, 9), rank=3)
    run = run_of(tmp_path, one, two)
    ax = plot(run, "timeline")
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert sorted(labels) == ["learner 3: spans", "rollout 0: spans"]
    boxes = [path.get_extents() for c in ax.collections for path in c.get_paths()]
    assert sorted((box.x0, box.x1) for box in boxes) == [(0, 5), (1, 2), (5, 9)]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["rollout", "env", "train"]
    part = plot(run, "timeline", since_s=6, until_s=8)
    assert part.get_xlim() == (6, 8)
    assert [label.get_text() for label in part.get_yticklabels()] == ["learner 3: spans"]
    with pytest.raises(RltraceError, match="must lie before"):
        plot(run, "timeline", since_s=6, until_s=4)


def test_figures_need_no_screen(made: Any, tmp_path: Path) -> None:
    program = f"""
import rltrace
run = rltrace.open_run({str(made[0].path)!r})
run.plot_steps().figure.savefig({str(tmp_path / "x.svg")!r})
"""
    subprocess.run([sys.executable, "-c", program], env={"HOME": str(tmp_path)}, check=True)
    assert "<svg" in (tmp_path / "x.svg").read_text()


def test_no_name_is_a_formula_or_markup(tmp_path: Path) -> None:
    run = rltrace.open_run(hostile_run(tmp_path))
    for name in PLOTS:
        drawn = tmp_path / f"{name}.svg"
        plot(run, name).get_figure().savefig(drawn)
        shown = drawn.read_text("utf-8")
        assert "<img" not in shown
        assert "<script" not in shown
    shown = (tmp_path / "timeline.svg").read_text("utf-8")
    assert "&lt;img src=x" in shown
    assert r"$\frac{" in shown
