"""What is told of a parent that cannot be followed, or has nothing yet."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from rltrace.sync.relay import Status
from rltrace.sync.wire import Address

_PATIENCE_S = 1.0


def why_nothing(status: Status, parent: Address) -> str:
    """What keeps the first version of a parent from being here; "" where nothing is known to."""
    if status.troubles:
        return _said(status.troubles, str(parent))
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
        said = _said(status.troubles)
        if said in self._told or now < self._since + _PATIENCE_S:
            return None
        self._told.add(said)
        return f"cannot reach {said}; trying again"


def _said(troubles: Mapping[str, str], known: str = "") -> str:
    """Each address and what is wrong there; the one that is known goes without saying."""
    return "; ".join(
        why if address == known else f"{address}: {why}" for address, why in troubles.items()
    )
