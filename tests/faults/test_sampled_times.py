"""What a share of the samples tells of times and totals: spans are whole, samples are not."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrace
from benchmarks.synthetic.files import write
from benchmarks.synthetic.timeline import play
from benchmarks.synthetic.workload import Workload
from rltrace.analysis.gate.series import series_of
from rltrace.analysis.live.state import LiveState
from rltrace.analysis.meters.of_run import RunMeters
from rltrace.analysis.summary import Summary, summarize
from rltrace.report import live_json, markdown, to_json
from rltrace.report.html import page
from rltrace.report.live_frame import frame
from rltrace.report.perfetto import findings
from rltrace.report.prometheus import families
from rltrace.trace.run_dir import update_run_json
from rltrace.trace.schema import OF_ONE_SAMPLE
from tests.cli.conftest import invoke
from tests.hooks.conftest import wrapped

# Generation is told by spans or, with the word, by its samples only.
JOB = """
import contextlib, sys, time, rltrace
span = rltrace.span if "samples" not in sys.argv else lambda name: contextlib.nullcontext()
for n in range(6):
    with rltrace.step(n):
        with span("rollout"):
            for i in range(200):
                with rltrace.trajectory(f"{n}/{i}", group=i // 4) as t:
                    t.finish("stop", response_tokens=10 + i)
        for i in range(200):
            with rltrace.reward(f"{n}/{i}") as r: r.set(value=i % 2)
        with span("reward"): time.sleep(0.002)
        with rltrace.span("train"):
            time.sleep(0.005)
            for i in range(200):
                rltrace.use(f"{n}/{i}", "trained" if i % 5 else "filtered", tokens=10 + i)
"""
GENERATED = 6 * sum(10 + i for i in range(200))
TRAINED = 6 * sum(10 + i for i in range(200) if i % 5)
WHY = "takes all samples, and only 25 % of the samples were recorded (--sample)"


def _run(folder: Path, *arguments: str, wrap: tuple[str, ...] = ("--sample", "25%")) -> Path:
    (folder / "job.py").write_text(JOB)
    done = wrapped(folder, "--out", "run", *wrap, "--", sys.executable, "job.py", *arguments)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def by_spans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quarter of the samples; all stages have spans. Not to be written into."""
    return _run(tmp_path_factory.mktemp("spans"))


@pytest.fixture(scope="module")
def by_samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quarter of the samples, which alone tell of generation and rewards."""
    return _run(tmp_path_factory.mktemp("samples"), "samples")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All samples."""
    return _run(tmp_path_factory.mktemp("whole"), wrap=())


def _summary(run: Path) -> Summary:
    return summarize(rltrace.open_run(run))


def test_what_spans_tell_is_told_of_a_share_as_of_the_whole(by_spans: Path, whole: Path) -> None:
    share, full = _summary(by_spans), _summary(whole)
    assert share.steps.exposed_unknown == full.steps.exposed_unknown == ""
    of_share, of_whole = ({r.name: r.spans for r in found.stages} for found in (share, full))
    assert of_share == of_whole
    exposed = sum(row.exposed_s.mean for row in share.stages) + share.steps.unattributed_s.mean
    assert exposed == pytest.approx(share.steps.step_s.mean)
    assert share.composition is not None
    text = markdown.render(share)
    assert "spans are whole, and so are the times of stages" in text
    assert "what held a step up" not in text


def test_totals_of_the_whole_are_within_the_intervals_of_a_share(
    by_spans: Path, whole: Path
) -> None:
    share, full = _summary(by_spans).goodput, _summary(whole).goodput
    assert share is not None
    assert full is not None
    assert full.estimated is None
    assert all(loss.tokens_interval is None for loss in full.losses)
    assert full.generated_tokens == GENERATED
    assert sum(loss.tokens for loss in full.losses) == GENERATED - TRAINED
    found = share.estimated
    assert found is not None
    assert found.generated_samples.low <= 6 * 200 <= found.generated_samples.high
    assert found.generated_tokens.low <= GENERATED <= found.generated_tokens.high
    assert found.trained_tokens.low <= TRAINED <= found.trained_tokens.high
    assert found.generated_tokens.value == share.generated_tokens
    lost = {loss.reason: loss.tokens_interval for loss in share.losses}["filtered"]
    assert lost is not None
    assert lost.low <= GENERATED - TRAINED <= lost.high


def test_useful_tokens_are_unknown_wherever_they_stand(by_spans: Path, tmp_path: Path) -> None:
    found = _summary(by_spans)
    text = markdown.render(found)
    assert "tokens trained on per core-second (95 % " in text
    assert "Useful tokens: unknown, as only 25 % of the samples were recorded (--sample)" in text
    assert "Useful: unknown." in text
    for wrong in ("useful tokens per", "Useful: 1", "0 (0 %) in groups of equal reward"):
        assert wrong not in text, wrong
    document = json.loads(json.dumps(to_json.render(found)))
    told = document["goodput"]
    unknown = ("useful_tokens_per_device_s", "useful_known_tokens_per_device_s")
    assert [told[name] for name in (*unknown, "useful_tokens_per_usd")] == [None] * 3
    assert [told["trained"][name] for name in ("useful_tokens", "useful_known_tokens")] == [
        None
    ] * 2
    assert told["trained"]["zero_advantage_tokens"] is None
    ends = told["trained_tokens_per_device_s_interval"]
    assert ends["low"] < told["trained_tokens_per_device_s"] < ends["high"]
    reasons = [one["reason"] for one in document["cascade"]["tokens"]]
    assert reasons == ["trained on", "filtered"]
    shown = page.render(rltrace.open_run(by_spans), found)
    assert "useful tokens per" not in shown
    assert "Useful: unknown." in shown
    done = invoke("top", "--once", "--json", by_spans)
    live = json.loads(done.stdout)
    assert live["useful_tokens_per_device_s"] is None
    assert live["window"]["trained"]["useful_tokens"] is None
    assert "useful" not in invoke("top", "--once", by_spans).stdout
    steps = findings.find(rltrace.open_run(by_spans)).figures
    assert all(math.isnan(one) for one in steps["goodput.useful_tokens"])


def test_what_held_a_step_up_is_unknown_where_samples_alone_tell_a_stage(
    by_samples: Path,
) -> None:
    found = _summary(by_samples)
    assert found.steps.exposed_unknown == f"the time of rollout and reward {WHY}"
    assert all(row.exposed_s.n == row.hidden_s.n == 0 for row in found.stages)
    assert {row.name for row in found.stages if row.tau_s.n} == {"train"}
    assert found.binding.stage is None
    assert found.composition is None
    assert found.critical_path is not None
    assert found.critical_path.shares == ()
    text = markdown.render(found)
    assert f"Exposed and hidden times are unknown: the time of rollout and reward {WHY}." in text
    for wrong in ("most exposed", "unattributed", "no span", "exposed: only this stage"):
        assert wrong not in text, wrong
    document = json.loads(json.dumps(to_json.render(found)))
    assert {row["share"] for row in document["stages"]} == {None}
    assert {s for t in document["steps"]["times"] for s in t["exposed_s"].values()} == {None}
    assert document["steps"]["exposed_unknown"] == found.steps.exposed_unknown
    factors = {one["name"]: one for one in document["cascade"]["factors"]}
    assert factors["placement efficiency"]["value"] is None
    assert WHY in factors["placement efficiency"]["basis"]
    assert "What held each step up" not in page.render(rltrace.open_run(by_samples), found)
    assert not any(
        "exposed" in name for name in findings.find(rltrace.open_run(by_samples)).figures
    )


def test_live_gates_and_metrics_leave_such_times_out(by_samples: Path, by_spans: Path) -> None:
    state = LiveState(by_samples)
    state.poll()
    shot = state.snapshot()
    assert shot.window is not None
    assert all(math.isnan(one.exposed_s) and math.isnan(one.share) for one in shot.window.stages)
    assert {one["share"] for one in live_json.render(shot)["window"]["stages"]} == {None}
    assert [one.stage for one in shot.window.stages if one.tau_s > 0] == ["train"]
    assert {name for one in shot.window.recent for name in one.tau_s} == {"train"}
    lines = [line.plain for line in frame(shot, 100, 40)]
    assert any("exposed: unknown (--sample)" in line for line in lines)
    columns = series_of(rltrace.open_run(by_samples)).columns
    assert not any(name.startswith("exposed.") for name in columns)
    assert [name for name in columns if name.startswith("busy.")] == ["busy.train"]
    for run, stages in ((by_samples, {"train"}), (by_spans, {"train", "rollout", "reward"})):
        meters = RunMeters(run)
        meters.look()
        assert {stage for _, stage in families(meters)["rltrace_stage_tau_seconds_total"]} == stages


def test_a_comparison_tells_no_stage_where_one_run_does_not(
    by_samples: Path, by_spans: Path, whole: Path
) -> None:
    done = invoke("compare", by_samples, whole)
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert "Which stages made the difference is unknown: the time of rollout and reward" in said
    assert "exposed, ms" not in said
    assert "exposed, ms" in invoke("compare", by_spans, whole).stdout


def test_a_gate_says_why_goodput_is_unknown(by_spans: Path, whole: Path, tmp_path: Path) -> None:
    assert invoke("baseline", whole, "-o", tmp_path / "whole.json", "--anyway").exit_code == 0
    done = invoke("gate", by_spans, "--baseline", tmp_path / "whole.json")
    assert done.exit_code == 3, done.output
    said = " ".join(done.stdout.split())
    assert (
        "Only 25 % of the samples were recorded (--sample): tokens and samples are scaled" in said
    )


def _rounded(value: Any) -> Any:
    """The same with numbers of nine digits: two threads add them up in any order."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if is_dataclass(value):
        return [_rounded(getattr(value, one.name)) for one in fields(value)]
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [*map(_rounded, value)] if isinstance(value, tuple) else value


WORKLOADS = (
    {"placement": "colocated"},
    {"placement": "one-step-off"},
    {"placement": "async", "mixed": 0.3},
    {"dropped": (("failed", 0.1),), "zero_groups": 0.4},
)


@pytest.mark.parametrize("knobs", WORKLOADS, ids=str)
def test_nothing_that_a_share_tells_of_stages_contradicts_the_whole(
    knobs: dict[str, Any], tmp_path: Path
) -> None:
    load = Workload(steps=12, prompts=16, group=8, **knobs)
    share = 0.25
    made = {}
    for name in ("whole", "share"):
        timeline = play(load)
        if name == "share":
            for of_process in timeline.processes:
                of_process.columns = _sampled(of_process.columns, share)
        write(tmp_path / name, load, timeline)
        more = {"sampled": share} if name == "share" else {}
        run = rltrace.open_run(tmp_path / name)
        settings = {**(run.meta.get("settings") or {}), **more}
        update_run_json(str(tmp_path / name), settings=settings)
        made[name] = _summary(tmp_path / name)
    full, some = made["whole"], made["share"]
    assert some.goodput is not None
    assert full.goodput is not None
    assert some.steps.step_s == full.steps.step_s
    assert _rounded(some.syncs) == _rounded(full.syncs)
    if not some.steps.exposed_unknown:
        assert _rounded(some.stages) == _rounded(full.stages)
        assert _rounded(some.composition) == _rounded(full.composition)
        assert _rounded(some.steps.times) == _rounded(full.steps.times)
    else:
        assert all(row.exposed_s.n == 0 for row in some.stages)
    assert some.goodput.window_s == full.goodput.window_s
    assert some.goodput.trained.useful_tokens is None
    found = some.goodput.estimated
    assert found is not None
    assert found.generated_tokens.low < full.goodput.generated_tokens < found.generated_tokens.high
    trained = found.steady_trained_tokens
    assert trained.low < full.goodput.trained.tokens < trained.high


def _sampled(columns: dict[str, list[dict[str, Any]]], share: float) -> dict[str, Any]:
    """The rows that `wrap --sample` keeps; ids of synthetic runs have 63 bits."""
    found: dict[str, Any] = dict(columns)
    for table in set(OF_ONE_SAMPLE) & set(columns):
        found[table] = []
        for rows in columns[table]:
            ids = np.asarray(rows["trajectory"], np.int64).view(np.uint64) << np.uint64(1)
            kept = ids < np.uint64(int(share * 2**64))
            found[table].append({name: _of(values, kept) for name, values in rows.items()})
    return found


def _of(values: Any, kept: Any) -> Any:
    return np.asarray(values)[kept] if np.ndim(values) else values
