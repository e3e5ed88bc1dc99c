"""Figures of the framework's own: for which versions, and what an imported log tells in them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rltrace.trace.read.run import OpenedRun


@dataclass(frozen=True)
class OwnFigure:
    """A figure of the framework's own that is not what it seems, and what to hold it against.

    - `metrics`: its names in what the framework logs, added up where several are logged; none: the
      framework logs no such figure, which `name` then names.
    - `stages`: what it is taken for: seconds of a step in which any of these stages ran, or of the
      step itself (`step`). With `unit="B"` it is bytes of a weight update.
    - `scale`: how many of the unit (seconds, bytes) one of the framework's is.
    - `since_last`: it is the mean of the steps since it was logged before, not of one step.
    - `reason`: why the two differ, in a few words.

    A figure may read differently in another trainer or version of the framework, so several may
    name the same metrics: the first counts that fits. `versions` is a range such as `">=0.9"`;
    `placements` are those of the report; `beside` is a metric that is logged too; `at_most` is the
    most that its median may be, in the unit.
    """

    metrics: tuple[str, ...]
    stages: tuple[str, ...]
    reason: str
    name: str = ""
    unit: str = "s"
    scale: float = 1.0
    versions: str = ""
    placements: tuple[str, ...] = ()
    beside: str = ""
    at_most: float = math.inf
    since_last: bool = False


_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
_HOLDS = {">=": ge, "<=": le, "==": eq, "!=": ne, ">": gt, "<": lt}
_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*")


ANY_VERSION = "unknown version"
"""The version of a framework of which a log does not tell it: it may be any."""


def satisfies(version: str, wanted: str) -> bool:
    """Whether a version lies in a range. An unknown version does, and any does in an empty range.
    Where a log tells a few (`0.8 or later`, `0.9.6 or 0.9.7`, `ANY_VERSION`), all of them have to.
    Suffixes (`rc1`, `+cpu`) do not count. Errors: `ValueError` for a range that cannot be read."""
    return all(_lies_in(one, wanted) for one in _told(version))


def may_satisfy(version: str, wanted: str) -> bool:
    """The same, but where a log tells a few versions, one of them or between them does."""
    told = _told(version)
    limits = [limit for _, limit in _CLAUSE.findall(wanted)] if len(told) > 1 else []
    between = [one for one in limits if _lies_in(one, f">={told[0]},<={told[-1]}")]
    return any(_lies_in(one, wanted) for one in told + between)


def _told(version: str) -> list[str]:
    version = "0 or later" if version == ANY_VERSION else version
    few = {"older": ["0"], "later": ["9999"]}.get(version.rpartition(" or ")[2], [])
    several = [*_NUMBERS.findall(version)[:2], *few] if " or " in version else []
    return sorted(several, key=_numbers) or [version]


def _lies_in(version: str, wanted: str) -> bool:
    found = _NUMBERS.match(version)
    if not wanted or found is None:
        return True
    have = _numbers(found.group())
    for clause in wanted.split(","):
        parts = _CLAUSE.fullmatch(clause)
        if parts is None:
            raise ValueError(f"{wanted!r} is no version range such as '>=0.6,<0.10'")
        sign, limit = parts.group(1), _numbers(parts.group(2))
        length = max(len(have), len(limit))
        a, b = ([*n, *[0] * (length - len(n))] for n in (have, limit))
        if not _HOLDS[sign](a, b):
            return False
    return True


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(".")]


@dataclass(frozen=True)
class LoggedFigure:
    """A figure of the log, `metric` by name: over `n` records, the first and the last of them."""

    metric: str
    n: int
    mean: float
    first: float
    last: float


def logged_figures(run: OpenedRun) -> Mapping[str, LoggedFigure]:
    """What is told (`known` of a log table: reward, truncated, ...) -> the figure that tells it."""
    from rltrace.trace.compact.stored_rows import quoted  # numpy: hooks need the rest of this

    imported = run.meta.get("imported")
    known = imported.get("known") if isinstance(imported, dict) else None
    found: dict[str, LoggedFigure] = {}
    for what, metric in known.items() if isinstance(known, dict) else ():
        ((n, *values),) = run.ask(
            "select count(*), avg(value), arg_min(value, time_ns), arg_max(value, time_ns) "
            "from raw_samples join names on names.id = counter "
            f"where text = {quoted(str(metric))} and time_ns > 0 and isfinite(value)"
        )
        if n:
            found[str(what)] = LoggedFigure(str(metric), n, *values)
    return found
