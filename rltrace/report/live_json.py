"""A snapshot of a run as JSON: units in the keys, unknown as null."""

from __future__ import annotations

from typing import Any

from rltrace.analysis.live.snapshot import Snapshot
from rltrace.report.to_json import plain

SCHEMA = "rltrace-live/1"
_OF_SAMPLES = {
    *("generated_samples", "generated_tokens", "generated_tokens_per_s", "trained_samples"),
    *("trained_tokens", "lost", "in_flight"),
    *("waiting_for_first_token", "queue"),
}


def render(shown: Snapshot) -> dict[str, Any]:
    """The snapshot as JSON values, and the figures that follow from it."""
    document: dict[str, Any] = {"schema": SCHEMA, **plain(shown)}
    document["useful_tokens_per_device_s"] = plain(shown.goodput)
    document["job"] |= {"seconds": shown.job.seconds, "is_over": shown.job.is_over}
    if shown.window is not None:
        document["window"] |= {
            "seconds": shown.window.seconds,
            "generated_tokens_per_s": plain(shown.window.generated_tokens_per_s),
            "trained_tokens_per_s": plain(shown.window.trained_tokens_per_s),
        }
    if shown.only_some:
        window = document["window"] or {}
        for part in (document, document["totals"], window, *window.get("recent", ())):
            part.update(dict.fromkeys(part.keys() & _OF_SAMPLES))
    return document
