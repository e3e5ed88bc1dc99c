"""What a lever is: a workload in, a workload out; and how its value is read.

A lever that does not apply to a workload says why (`NotApplicable`); a value that makes no sense is
refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rltrace.analysis.whatif.constants import Constants
from rltrace.analysis.whatif.workload import Workload
from rltrace.trace.errors import WrongUsage
from rltrace.trace.vocabulary import Stage


class NotApplicable(Exception):
    """The lever moves nothing that this workload has; the message says what is missing."""


Change = Callable[[Workload, str, Constants], Workload]

ON = ("1",)
_MOST_TIMES = 10_000
"""More of anything is a slip of the pen, and would be replayed for ever."""


@dataclass(frozen=True)
class Lever:
    """`tries` are the values of the ranked table; those of order 0 are moved before all others. A
    lever whose `tries` are `ON` is there or is not; the values of one that is `worded` are not one
    number. One that is `within` a stage shortens that and changes nothing else: it cannot gain more
    than the stage costs."""

    name: str
    meaning: str
    change: Change
    tries: tuple[str, ...]
    order: int = 1
    within: Stage | None = None
    worded: bool = False

    def moved(self, load: Workload, value: str, constants: Constants) -> Workload:
        """The workload with the lever moved. Errors: `NotApplicable`; `RltraceError` for a value
        that makes no sense."""
        if self.tries == ON:
            on = value.lower() in ("", "1", "yes", "true", "on")
            rule = "yes (1, true, on or nothing): leave it out to keep what is"
            check(on, self.name, value, rule)
        elif not self.worded:  # before anything is said of what the workload lacks
            number(self.name, value.removeprefix("x"))
        return self.change(load, value, constants)


def factor_of(name: str, value: str, now: float) -> float:
    """`x2` is a factor, `4` a number of what there is now."""
    factor = number(name, value.removeprefix("x")) / (1.0 if value.startswith("x") else now)
    check(factor > 0, name, value, "above 0")
    check(factor <= _MOST_TIMES, name, value, f"at most {_MOST_TIMES:,} times what there is")
    return factor


def number(name: str, text: str) -> float:
    """The number that a lever's value stands for. Errors: `RltraceError` for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    check(math.isfinite(value), name, text, "a number")
    return value


def check(holds: bool, name: str, value: str, rule: str) -> None:
    """Errors: `RltraceError` for a value that breaks the rule."""
    if not holds:
        raise WrongUsage(f"{name} must be {rule}, not {value!r}")


def needs(holds: bool, why: str) -> None:
    """Errors: `NotApplicable` where the workload lacks what the lever moves."""
    if not holds:
        raise NotApplicable(why)
