"""An adapter that is little more than a table of hooks.

Rows stand in three tiers: what only a *call* knows (versions, bytes, single trajectories), what the
framework's own *timer* shows (its labels hardly ever change), and what its metric *sink* is given.
A stage that a call shows has an empty label in the same process, so that it is recorded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rltrace.hooks.hook import Adapter, Hook


class TableAdapter(Adapter):
    """An adapter whose hooks stand in tiers; `hooks` is all of them."""

    calls: ClassVar[Sequence[Hook]] = ()
    timers: ClassVar[Sequence[Hook]] = ()
    sinks: ClassVar[Sequence[Hook]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.hooks = (*cls.calls, *cls.timers, *cls.sinks)
