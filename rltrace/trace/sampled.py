"""Runs of which only a share of the samples has rows (`wrap --sample`), picked by the hash of their
ids: a count of samples or tokens is that share of the whole, and no group is whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rltrace.trace.run_dir import SAMPLED


def sampled_share(meta: Mapping[str, Any]) -> float:
    """The share that a run, which this describes, has rows of; 1.0: all samples."""
    share = (meta.get("settings") or {}).get(SAMPLED)
    return float(share) if isinstance(share, int | float) and 0 < share < 1 else 1.0


def only_some(meta: Mapping[str, Any]) -> str:
    """Why nothing of a run can be told that all samples are needed for; empty where it has them."""
    return why_not_all(sampled_share(meta))


def why_not_all(share: float) -> str:
    """The same of the share that has rows."""
    return f"only {100 * share:g} % of the samples were recorded (--sample)" if share < 1 else ""
