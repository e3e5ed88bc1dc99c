"""Results as JSON: units in the keys, unknown as null.

Within a `schema_version` keys may be added; they keep their names and meaning.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from rltrace.trace.vocabulary import word

if TYPE_CHECKING:
    from rltrace.analysis.live.snapshot import Snapshot
    from rltrace.analysis.plan.frameworks import Advice
    from rltrace.analysis.plan.plan import Plan
    from rltrace.analysis.summary import Summary

SCHEMA_VERSION = 2


def document_of(what: str, values: dict[str, Any]) -> dict[str, Any]:
    """What a command answers with `--json`; `what` is its name."""
    return {"schema": f"rltrace-{what}", "schema_version": SCHEMA_VERSION, **values}


def render(summary: Summary) -> dict[str, Any]:
    from rltrace.analysis.timeline.probe import HALF_WIDTH
    from rltrace.report import run_description
    from rltrace.report.sections import verdict_section

    document = document_of("report", plain(summary))
    goodput, found = summary.goodput, summary.verdict
    headline, *evidence = verdict_section.sentences(summary)
    document["verdict"] |= {
        "headline": headline,
        "evidence": evidence,
        "first": None if found.first is None else found.first.name,
        "co_walls": [wall.name for wall in found.co_walls],
        "do_nothing": found.do_nothing,
    }
    if summary.probe is not None:
        for stage, values in zip(summary.probe.stages, document["probe"]["stages"], strict=True):
            values |= {"contradicts_computed": stage.contradicts, "agrees": stage.agrees}
            values["more_steps"] = stage.more_steps_for(HALF_WIDTH)
    document["health"]["ok"] = summary.health.ok
    document["warnings"] = list(run_description.warnings(summary))
    if goodput is not None:
        rates = ("useful_tokens_per_device_s", "useful_known_tokens_per_device_s")
        document["goodput"] |= of(goodput, *rates, "joules_per_useful_token")
        document["goodput"]["useful_tokens_per_usd"] = plain(goodput.useful_tokens_per_usd())
    return document


def of(result: object, *names: str) -> dict[str, Any]:
    """Some of the fields of a result, or of what follows from them."""
    return {name: plain(getattr(result, name)) for name in names}


def plain(value: Any) -> Any:
    """Any result of the analysis as JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        shown = (one for one in fields(value) if one.metadata.get("json", True))
        return {one.name: plain(getattr(value, one.name)) for one in shown}
    if isinstance(value, IntEnum):
        return word(value)
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def of_plan(found: Plan, advice: Advice) -> dict[str, Any]:
    spec, choice, first = found.spec, advice.choice, advice.first
    lengths = found.parts.rollout.lengths
    values = {
        "workload": {
            **of(spec, "name", "model", "gpu", "gpus", "prompts", "group", "lag_bound"),
            "tokens": spec.response_tokens,
            "planned_lag_bound": found.parts.lag_bound,
            "prices": spec.priced,
        },
        **of(spec, "assumed"),
        "lengths": {
            "mean_tokens": lengths.mean,
            "cap_tokens": lengths.cap,
            "longest_tokens": lengths.longest(spec.samples),
            "cut_share": lengths.cut_share,
            "log_deviation": lengths.s,
        },
        **of(found, "stages", "memory", "step_s", "walls", "binding", "rests_on"),
        "placements": plain(found.rows),
        "best": found.best.name,
        "first_fix": first and {
            **of(first, "wall", "move", "lever", "risk"),
            "goodput_gain": first.prediction and plain(first.prediction.goodput_gain),
        },
        **of(advice, "risks", "launch"),
        "framework": {"name": choice.framework.name, **of(choice, "reasons")},
    }  # fmt: skip
    return document_of("plan", values)


def of_snapshot(shown: Snapshot) -> dict[str, Any]:
    """A run at one moment, and the figures that follow from it."""
    document = document_of("live", plain(shown))
    document["useful_tokens_per_device_s"] = plain(shown.goodput)
    document["job"] |= of(shown.job, "elapsed_s", "is_over")
    if shown.window is not None:
        rates = ("generated_tokens_per_s", "trained_tokens_per_s")
        document["window"] |= of(shown.window, "window_s", *rates)
    return document
