"""What rltrace.sync says of weights that it moved for a framework.

The framework's adapter writes the row of `syncs`, of the same calls as for any other transport, so
that transports can be compared. What only the mover knows (bytes, pieces, transport, digest) or
only the adapter (when the framework's update began) is left on an object that both know.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ATTRIBUTE = "_rltrace_moved"
_SINCE = "_rltrace_since_ns"


def say(owner: Any, columns: dict[str, int]) -> None:
    """`owner` has just sent or taken an update: columns of its row."""
    setattr(owner, _ATTRIBUTE, columns)


def said(owner: Any) -> dict[str, int]:
    """What was said of the last update; empty where rltrace.sync did not move it."""
    columns: dict[str, int] = getattr(owner, _ATTRIBUTE, {})
    return dict(columns)


def begins(owner: Any, since_ns: int) -> None:
    """The framework begins an update of `owner`; its span began at `since_ns` (monotonic)."""
    setattr(owner, _SINCE, since_ns)


def begun(owner: Any) -> int:
    """When the update under way began; -1 where nobody said. Each is told once."""
    since_ns: int = getattr(owner, _SINCE, -1)
    if since_ns > 0:
        setattr(owner, _SINCE, -1)
    return since_ns
