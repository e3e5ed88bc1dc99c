"""How long a run lasted: until its command ended, or, where what it had started went on, until the
last that was recorded (`rltrace.trace.run.Run.lasted_s`)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


OUTLIVED = "outlived_by"
"""In a run's description: how many processes that its command had started lived when it ended."""


def command_s(meta: dict[str, Any]) -> float | None:
    """Seconds from when the run directory was made to when its command ended; None while that is
    not known (it runs, or nobody saw its end)."""
    start, end = meta.get("start_real_ns"), meta.get("end_real_ns")
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    return (end - start) / 1e9
