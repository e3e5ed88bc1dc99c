"""What is exported is what the dashboards ask for, in Prometheus's format."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rltrace
from rltrace import dashboards
from rltrace.report.formats.prometheus import exposition, families, judgement, to_json
from rltrace.testing.handmade_runs import at, process, run_of
from rltrace.testing.inside.analysis import RunMeters, summarize
from rltrace.testing.inside.report import METRICS
from rltrace.testing.inside.trace import Stage
from tests.report.everything import STEPS, everything

DOCS = Path(__file__).parents[2] / "docs/reference/live-figures.md"
RULES = dashboards.folder("prometheus") / "rules.yml"
ABSENT_WITHOUT_A_BUDGET = {"rltrace_lag_budget_versions"}
ABSENT_WHERE_ALL_IS_WELL = {"rltrace_run_stopped_processes", "rltrace_alarm"}


def asked() -> str:
    boards = dashboards.folder("grafana").glob("*.json")
    found = [panel for board in boards for panel in json.loads(board.read_text("utf-8"))["panels"]]
    targets = [target["expr"] for panel in found for target in panel.get("targets", ())]
    return "\n".join([*targets, RULES.read_text("utf-8")])


def names(text: str) -> set[str]:
    """The metrics that a text names; a histogram by the name of its family."""
    found = set(re.findall(r"(?<![:\w])rltrace_\w+", text))
    of_histogram = {
        f"{name}_{suffix}": name
        for name, metric in METRICS.items()
        for suffix in ("bucket", "sum", "count")
        if metric.kind == "histogram"
    }
    return {of_histogram.get(name, name) for name in found}


def test_what_is_asked_for_is_exported_and_what_is_exported_is_shown_or_explained() -> None:
    explained = names(DOCS.read_text("utf-8"))
    assert names(asked()) - set(METRICS) == set()
    assert set(METRICS) - names(asked()) - explained == set()
    assert explained - set(METRICS) == set()
    rules = set(re.findall(r"record: (\S+)", RULES.read_text("utf-8")))
    assert set(re.findall(r"\brun\w*:\w+:\w+", asked())) == rules


def test_names_and_units_are_as_prometheus_has_them() -> None:
    for metric in METRICS.values():
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert metric.labels[0] == "run"
        assert metric.kind in ("counter", "gauge", "histogram")


@pytest.fixture(scope="module")
def meters(tmp_path_factory: pytest.TempPathFactory) -> RunMeters:
    return RunMeters(everything(tmp_path_factory.mktemp("exported") / "run"))


def test_a_run_with_everything_has_every_metric(meters: RunMeters) -> None:
    absent = ABSENT_WITHOUT_A_BUDGET | ABSENT_WHERE_ALL_IS_WELL
    summary = summarize(rltrace.open_run(Path(meters.job.path)))
    found = families(meters, judgement(summary))
    assert set(METRICS) - set(found) == absent
    spent = found["rltrace_step_exposed_seconds"].values()
    assert sum(spent) == pytest.approx(summary.steps.step_s.mean), "together they are the step"
    walls = {wall.name: wall.cost.share for wall in summary.verdict.binding}
    assert {w: v for (_, w), v in found["rltrace_wall_cost_ratio"].items()} == walls


def test_of_a_job_that_crashed_the_alarm_is_told_and_no_wall(tmp_path: Path) -> None:
    steps = [(("step", n), n, n + 1) for n in range(9)]
    trained = [(Stage.TRAIN, n, n + 1) for n in range(9)]
    run = run_of(tmp_path, process("learner", *steps, *trained), end_real_ns=at(10), exit_code=3)
    told = {metric for metric, _, _ in judgement(summarize(run))}
    assert told == {"rltrace_alarm", "rltrace_step_exposed_seconds"}


def test_a_histogram_counts_up_to_each_bound(meters: RunMeters) -> None:
    name = "rltrace_step_duration_seconds"
    text = exposition(families(meters))
    found = re.findall(rf'^{name}_bucket\{{.*le="(.+)"\}} (\d+)$', text, re.M)
    counts = [int(n) for _, n in found]
    assert [bound for bound, _ in found][-1] == "+Inf"
    assert counts == sorted(counts)
    assert counts[-1] == STEPS
    assert f"{name}_count{{run=" in text
    data = {family["name"]: family for family in json.loads(json.dumps(to_json(families(meters))))}
    assert data["rltrace_steps_total"]["samples"] == [{"labels": {"run": "run"}, "value": STEPS}]
    (step,) = data[name]["samples"]
    assert step["count"] == step["at_most"]["+Inf"] == STEPS


def test_what_was_never_seen_has_no_series_and_any_text_can_be_a_label(tmp_path: Path) -> None:
    odd = process('a "role"\\\n', (Stage.TRAIN, 0, 1))
    run_of(tmp_path, odd, end_real_ns=at(2), exit_code=0)
    found = families(RunMeters(tmp_path / "run"))
    assert "rltrace_stage_seconds_total" in found
    unseen = {"steps_total", "trajectories_total", "trained_tokens_total", "policy_version"}
    assert not {f"rltrace_{name}" for name in unseen} & set(found)
    assert r'role="a \"role\"\\\n"' in exposition(found)
