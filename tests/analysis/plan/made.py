"""Workloads for the tests of plans."""

from __future__ import annotations

from typing import Any

from rltrace.testing.inside.analysis import Spec, Tables, merged, spec_of

SHORT: Tables = {
    "model": {"name": "Qwen2.5-7B"},
    "gpus": {"kind": "16xH100"},
    "batch": {"prompts": 64, "group": 16},
    "lengths": {"mean_tokens": 1000, "cap_tokens": 8000, "prompt_tokens": 256},
}


def spec(**tables: dict[str, Any]) -> Spec:
    """A 7B model on 16 H100, with tables changed; `top` is what stands before all tables."""
    if "top" in tables:
        tables[""] = tables.pop("top")
    return spec_of(merged(SHORT, tables), "")
