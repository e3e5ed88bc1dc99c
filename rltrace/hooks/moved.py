"""What rltrace.sync says of weights that it has moved for a framework.

The framework's adapter writes the row of `syncs`, of the same calls as for any other transport, so
that transports can be held against each other. What only the mover knows (bytes, pieces, transport,
digest) is left on an object of the framework's that both know.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ATTRIBUTE = "_rltrace_moved"


def say(owner: Any, columns: dict[str, int]) -> None:
    """`owner` has just sent or taken an update: columns of its row."""
    setattr(owner, _ATTRIBUTE, columns)


def said(owner: Any) -> dict[str, int]:
    """What was said of the last update; empty where rltrace.sync did not move it."""
    columns: dict[str, int] = getattr(owner, _ATTRIBUTE, {})
    return dict(columns)
