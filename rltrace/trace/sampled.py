"""Runs of which a share of the samples was recorded (`wrap --sample`, in 0.1): what they say of
samples is not what happened, so no table shows their rows. Spans are whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rltrace.trace.run_dir import SAMPLED


def only_some(meta: Mapping[str, Any]) -> str:
    """Why nothing is told of the samples of a run that this describes; empty where it is."""
    share = (meta.get("settings") or {}).get(SAMPLED)
    if not isinstance(share, int | float) or not 0 < share < 1:
        return ""
    return f"only {100 * share:g} % of the samples were recorded (--sample)"
