"""What the critical path adds to the table of stages: one line, where it says something else."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.critical_path import UNKNOWN, CriticalPath, PathShare
from rltrace.report import units
from rltrace.report.layout import listed

APART = 0.05
"""Shares that differ by more than this are worth a line."""
_SMALL = 0.005
_TOO_LITTLE = 0.5  # explained: the path says less than the table


def path_leader(path: CriticalPath | None) -> PathShare | None:
    """The stage of which the path is made the most; None where it was not followed."""
    if path is None or not _explains(path):
        return None
    return next((one for one in path.shares if one.stage not in (UNKNOWN, "wait")), None)


def _explains(path: CriticalPath) -> bool:
    return path.is_traced and path.unknown_share < _TOO_LITTLE


def path_lines(path: CriticalPath | None) -> Iterator[str]:
    """The shares on the path, where any differs much from the exposed share."""
    if path is None or not _explains(path):
        return
    work = [one for one in path.shares if one.stage not in (UNKNOWN, "wait")]
    if not any(abs(one.share - one.exposed_share) > APART for one in work):
        return
    shown = [f"{one.stage} {units.share(one.share)}" for one in work if one.share >= _SMALL]
    apart = [
        f"{one.stage} ({units.share(one.exposed_share)} exposed)"
        for one in work
        if abs(one.share - one.exposed_share) > APART
    ]
    rest = f", unexplained {units.share(path.unknown_share)}" if path.unknown_share else ""
    yield (
        "Followed from the end of the run back to what let each thing start, the critical path is "
        f"{', '.join(shown)}{rest}. It differs from the table in {listed(apart)}."
    )
