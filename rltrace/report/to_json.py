"""Results as JSON: units in the keys, unknown as null.

Keys are stable within a `schema`: they may be added, but keep their names and meaning.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from rltrace.analysis.probe import HALF_WIDTH
from rltrace.analysis.summary import Summary
from rltrace.report import run_lines, verdict
from rltrace.trace.vocabulary import word

if TYPE_CHECKING:
    from rltrace.analysis.plan.advice import Advice
    from rltrace.analysis.plan.plan import Plan

SCHEMA = "rltrace-report/2"
PLAN_SCHEMA = "rltrace-plan/1"


def render(summary: Summary) -> dict[str, Any]:
    document: dict[str, Any] = {"schema": SCHEMA, **plain(summary)}
    goodput = summary.goodput
    found = summary.verdict
    document["verdict"] |= {
        "headline": verdict.headline(summary),
        "evidence": list(verdict.evidence(summary)),
        "first": None if found.first is None else found.first.name,
        "co_walls": [wall.name for wall in found.co_walls],
        "do_nothing": found.do_nothing,
    }
    if summary.probe is not None:
        for stage, values in zip(summary.probe.stages, document["probe"]["stages"], strict=True):
            more_steps = stage.more_steps_for(HALF_WIDTH)
            values |= {"contradicts_computed": stage.contradicts, "agrees": stage.agrees}
            values["more_steps"] = more_steps
    document["health"]["well"] = summary.health.well
    document["warnings"] = list(run_lines.warnings(summary))
    if goodput is not None:
        rates = ("useful_tokens_per_device_s", "useful_known_tokens_per_device_s")
        document["goodput"] |= _of(goodput, *rates)
        document["goodput"] |= _of(goodput, "joules_per_useful_token")
        document["goodput"]["useful_tokens_per_usd"] = plain(goodput.useful_tokens_per_usd())
    return document


def _of(result: object, *properties: str) -> dict[str, Any]:
    """What follows from the fields of a result."""
    return {name: plain(getattr(result, name)) for name in properties}


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
    of = found.parts.rollout.lengths
    return {
        "schema": PLAN_SCHEMA,
        "workload": {
            "name": spec.name,
            "model": plain(spec.model),
            "gpu": plain(spec.gpu),
            "gpus": spec.gpus,
            "prompts": spec.prompts,
            "group": spec.group,
            "tokens": spec.response_tokens,
            "lag_bound": spec.lag_bound,
            "planned_lag_bound": found.parts.lag_bound,
            "prices": spec.priced,
        },
        "assumed": list(spec.assumed),
        "lengths": {
            "mean_tokens": of.mean,
            "cap_tokens": of.cap,
            "longest_tokens": of.longest(spec.samples),
            "cut_share": of.cut_share,
            "log_deviation": of.s,
        },
        "stages": plain(found.stages),
        "memory": plain(found.memory),
        "placements": plain(found.rows),
        "best": found.best.name,
        "step_s": plain(found.step_s),
        "walls": plain(found.walls),
        "binding": list(found.binding),
        "first": None if first is None else {
            "wall": first.wall,
            "move": first.move,
            "lever": first.lever,
            "goodput_gain": None if first.found is None else plain(first.found.goodput_gain),
            "risk": first.risk,
        },
        "risks": list(advice.risks),
        "framework": {
            "name": choice.framework.name,
            "reasons": list(choice.reasons),
        },
        "launch": plain(advice.launch),
        "rests_on": list(found.rests_on),
    }  # fmt: skip
