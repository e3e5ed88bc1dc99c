"""The report as JSON: every figure of the analysis, its unit in the key, unknown as null.

Keys are stable within a `schema`: they may be added, but keep their names and meaning.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any

from rltrace.analysis.probe import HALF_WIDTH
from rltrace.analysis.summary import Summary
from rltrace.report import run_lines, verdict
from rltrace.trace.vocabulary import word

SCHEMA = "rltrace-report/1"


def render(summary: Summary) -> dict[str, Any]:
    """The report as JSON values."""
    document: dict[str, Any] = {"schema": SCHEMA, **_value(summary)}
    binding, composition, goodput = summary.binding, summary.composition, summary.goodput
    document["binding"] |= {
        "headline": verdict.stage_line(summary),
        "stage": None if binding.stage is None else binding.stage.name,
        "runner_up": None if binding.runner_up is None else binding.runner_up.name,
        "tied": [row.name for row in binding.tied],
    }
    found = summary.verdict
    document["verdict"] |= {
        "headline": verdict.headline(summary),
        "evidence": list(verdict.evidence(summary)),
        "first": None if found.first is None else found.first.name,
        "co_walls": [wall.name for wall in found.co_walls],
        "do_nothing": found.do_nothing,
    }
    for one, values in zip(found.measured, document["verdict"]["measured"], strict=True):
        values |= {"contradicts": one.contradicts, "agrees": one.agrees}
    if summary.probe is not None:
        for stage, values in zip(summary.probe.stages, document["probe"]["stages"], strict=True):
            values["contradicts_computed"] = stage.contradicts
            values["more_steps"] = stage.more_steps_for(HALF_WIDTH)
    document["health"]["well"] = summary.health.well
    document["warnings"] = list(run_lines.warnings(summary))
    if composition is not None:
        document["composition"] |= {
            "difference_s": _value(composition.difference_s),
            "difference_share": _value(composition.difference_share),
        }
    if summary.run.only_some:
        document |= {"staleness": None, "tail": None}  # of no sample is known anything
    if goodput is not None:
        document["goodput"] |= {
            "useful_tokens_per_device_s": _value(goodput.useful_tokens_per_device_s),
            "useful_known_tokens_per_device_s": _value(goodput.useful_known_tokens_per_device_s),
            "trained_tokens_per_device_s": _value(goodput.trained_tokens_per_device_s),
            "useful_tokens_per_usd": _value(goodput.useful_tokens_per_usd()),
        }
    return document


def plain(value: Any) -> Any:
    """Any result of the analysis as JSON values."""
    return _value(value)


def _value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        shown = (one for one in fields(value) if one.metadata.get("json", True))
        return {one.name: _value(getattr(value, one.name)) for one in shown}
    if isinstance(value, IntEnum):
        return word(value)
    if isinstance(value, dict):
        return {str(key): _value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_value(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
