"""How long a run lasted: the one definition that `ls`, `info` and the report share."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def lasted_s(meta: dict[str, Any]) -> float | None:
    """Seconds from when the run directory was made to when its command ended; None while that is
    not known (it runs, or nobody saw its end)."""
    start, end = meta.get("start_real_ns"), meta.get("end_real_ns")
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    return (end - start) / 1e9
