"""The report as JSON: stable keys, strict JSON, the figures of the analysis."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rltrace.report.formats import to_json
from tests.report.summaries import KINDS, Summaries

SPREAD = {"n", "mean", "p50", "p95", "p99", "largest", "low", "high"}
KEYS = {
    "verdict": """walls first co_walls confidence balanced because would_tell may_cost_more
        other_work alarms fixes no_gain not_worth_it replay_error_share unpredicted headline
        evidence do_nothing bytes_take_time""",
    "critical_path": "is_traced because steps shares unknown_share steps_s segments",
    "composition": "placement placement_source overlap_share",
    "goodput": """window_s steps trained devices price lag_budget generated_samples
        generated_tokens trained_share losses uncounted_samples handed_only
        useful_tokens_per_device_s useful_known_tokens_per_device_s useful_tokens_per_usd
        joules joules_per_useful_token""",
    "staleness": """trajectories known_trajectories uses known_uses by_first_token by_last_token
        mean_lag token_weighted_lag p95_lag largest_lag mixed_share version_known_uses unit
        mean_lag_in_flight mean_lag_in_queue by_token unknown_by_token""",
    "own_cost": """events processes event_cost_ns calibrated cpu_s share""",
}
TOP = """schema schema_version run steps typical_step stages waits composition tail staleness
    syncs goodput cascade freshness health reward signal coverage logged own_cost warnings
    own_figures probe verdict critical_path gpus engine_gaps stuck"""


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_strict_json_with_the_same_keys_for_every_run(summary: Summaries, kind: str) -> None:
    document = to_json.render(summary(kind))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert set(document) == set(TOP.split())
    assert (document["schema"], document["schema_version"]) == ("rltrace-report", 2)
    for part, keys in KEYS.items():
        assert document[part] is None or set(document[part]) == set(keys.split())


def test_figures_are_those_of_the_analysis(summary: Summaries) -> None:
    found = summary("async")
    document: dict[str, Any] = to_json.render(found)
    rollout = document["stages"][0]
    assert rollout["name"] == rollout["stage"] == "rollout"
    assert rollout["symbol"] == "τ_R"
    assert set(rollout["tau_s"]) == SPREAD
    assert rollout["tau_s"]["mean"] == found.stages[0].tau_s.mean
    assert found.goodput is not None
    rate = document["goodput"]["useful_tokens_per_device_s"]
    assert rate == found.goodput.useful_tokens_per_device_s
    assert document["goodput"]["lag_budget"] is None  # infinite
    lags = {bar["lag"]: bar["trajectories"] for bar in document["staleness"]["by_first_token"]}
    assert None in lags
    on_cpu = to_json.render(summary("on CPU"))["goodput"]
    assert on_cpu["price"] is on_cpu["useful_tokens_per_usd"] is None  # unknown
