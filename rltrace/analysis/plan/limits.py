"""Between which values a figure makes sense; beyond them it is refused before anything is computed
with it."""

from __future__ import annotations

from rltrace.analysis.plan.constants import packaged
from rltrace.trace.errors import WRONG_USAGE, RltraceError


def check_limits(figure: str, value: float, called: str = "", where: str = "") -> None:
    """Whether `figure` ("lengths.mean_tokens") may be that; one without limits may be anything.
    `called` is what its user knows it by.

    Errors: `RltraceError`, one sentence, where it may not.
    """
    table, _, key = figure.rpartition(".")
    tables = packaged("limits")
    limits = (tables.get(table, {}) if table else tables).get(key)
    if limits is None or limits[0] <= value <= limits[1]:
        return
    raise RltraceError(
        f"{where and f'{where}: '}{called or figure} must be from {limits[0]:,} to {limits[1]:,}, "
        f"and is {value:.12g}",
        WRONG_USAGE,
    )
