"""A plan as JSON: every figure, its unit in the key, unknown as null."""

from __future__ import annotations

from typing import Any

from rltrace.analysis.plan.advice import Advice
from rltrace.analysis.plan.plan import Plan
from rltrace.report.to_json import plain

SCHEMA = "rltrace-plan/1"


def plan_json(found: Plan, advice: Advice) -> dict[str, Any]:
    """The plan and the advice on it."""
    spec, choice = found.spec, advice.choice
    of = found.parts.rollout.lengths
    first = advice.first
    return {
        "schema": SCHEMA,
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
            "cap_tokens": plain(of.cap),
            "longest_tokens": of.longest(spec.samples),
            "longest_of_group_tokens": of.longest_of_group(spec.group),
            "cut_share": of.cut_share,
            "log_deviation": of.s,
        },
        "stages": plain(found.stages),
        "memory": [{**plain(use), "fits": use.fits} for use in found.memory],
        "placements": plain(found.rows),
        "best": found.best.name,
        "step_s": plain(found.step_s),
        "walls": plain(found.walls.walls),
        "binding": [wall.name for wall in found.walls.binding],
        "split_curve": plain(found.split_curve),
        "balanced_rollout_share": plain(found.balanced_part),
        "busy_sandboxes": plain(found.env_places),
        "first": None if first is None else {
            "wall": first.wall,
            "move": first.move,
            "lever": first.lever,
            "goodput_gain": None if first.found is None else plain(first.found.goodput_gain),
            "risk": first.risk,
        },
        "risks": list(advice.risks),
        "move_on": list(advice.move_on),
        "framework": {
            "name": choice.framework.name,
            "reasons": list(choice.reasons),
            "others": list(choice.others),
            "papers": list(choice.papers),
            "opinions_of": choice.opinions,
        },
        "launch": plain(advice.launch),
        "rests_on": list(found.rests_on),
    }  # fmt: skip
