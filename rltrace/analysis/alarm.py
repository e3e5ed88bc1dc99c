"""One thing that is wrong with a run."""

from __future__ import annotations

from dataclasses import dataclass

ALARM = "alarm"
NOTE = "note"

CRASH = "crash"
"""Kind of the alarm that says how a job ended that did not end by itself."""

STALL_TIMES = 3.0
"""A step that takes this many times the usual one stalled, unless both are very short."""

LEAST_HANG_S = 5.0
"""What takes less is no hang, however short the usual step: garbage collection, a compilation, a
slow disk or the end of a job takes seconds, too."""

LOST_SHARE = 0.1
"""What cost less of the run than this is a note."""

NAMED = 5
"""Steps that a sentence names."""


@dataclass(frozen=True)
class Alarm:
    """One thing that is wrong: its kind, how grave it is (`ALARM` or `NOTE`), a sentence, and
    whether the run is judged `beside` it, by what else it did."""

    kind: str
    severity: str
    says: str
    beside: bool = False

    @property
    def forbids(self) -> bool:
        """Whether it forbids advice on tuning."""
        return self.severity == ALARM and not self.beside
