"""What is told of a parent that cannot be followed, or has nothing yet."""

from __future__ import annotations

from time import monotonic

from rltrace.sync.following import why_not
from rltrace.sync.relay import Status
from rltrace.sync.wire import Address

_PATIENCE_S = 1.0


def why_nothing(status: Status, parent: Address) -> str:
    """What keeps the first version of a parent from being here; "" where nothing is known to."""
    if status.troubles:
        return why_not(status.troubles, str(parent))
    if status.is_parent_empty and status.manifest is None:
        return f"it answers, but no version of the policy {parent.policy} is published there yet"
    return ""


class Reach:
    """A relay's parents as its user hears of them: what keeps all of them from being followed, each
    reason once, and that one is followed again."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._told: set[str] = set()

    def news(self, status: Status) -> str | None:
        """What is new in the status of now: a line, or None."""
        if not status.troubles:
            self._since = None
            if not self._told:
                return None
            self._told.clear()
            return f"reached {status.parent}"
        now = monotonic()
        self._since = now if self._since is None else self._since
        said = why_not(status.troubles)
        if said in self._told or now < self._since + _PATIENCE_S:
            return None
        self._told.add(said)
        return f"cannot reach {said}; trying again"
