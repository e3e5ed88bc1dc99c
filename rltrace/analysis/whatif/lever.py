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
from rltrace.trace.errors import WRONG_USAGE, RltraceError
from rltrace.trace.vocabulary import Stage


class NotApplicable(Exception):
    """The lever moves nothing that this workload has; the message says what is missing."""


Change = Callable[[Workload, str, Constants], Workload]

ON = ("1",)


@dataclass(frozen=True)
class Lever:
    """`tries` are the values of the ranked table; those of order 0 are moved before all others. A
    lever whose `tries` are `ON` is there or is not. One that is `within` a stage shortens that and
    changes nothing else: it cannot gain more than the stage costs."""

    name: str
    meaning: str
    change: Change
    tries: tuple[str, ...]
    order: int = 1
    within: Stage | None = None

    def moved(self, load: Workload, value: str, constants: Constants) -> Workload:
        """The workload with the lever moved. Errors: `NotApplicable`; `RltraceError` for a value
        that makes no sense."""
        if self.tries == ON:
            on = value.lower() in ("", "1", "yes", "true", "on")
            rule = "yes (1, true, on or nothing): leave it out to keep what is"
            check(on, self.name, value, rule)
        return self.change(load, value, constants)


def factor_of(value: str, now: float) -> float:
    """`x2` is a factor, `4` a number of what there is now."""
    factor = number("the value", value[1:]) if value.startswith("x") else 0.0
    factor = factor or number("the value", value.removeprefix("x")) / now
    check(factor > 0, "the value", value, "above 0")
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
        raise RltraceError(f"{name} must be {rule}, not {value!r}", WRONG_USAGE)


def needs(holds: bool, why: str) -> None:
    """Errors: `NotApplicable` where the workload lacks what the lever moves."""
    if not holds:
        raise NotApplicable(why)
