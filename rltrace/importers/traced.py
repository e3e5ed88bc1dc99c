"""A run from a log that has its own times: what all readers of such logs share."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from rltrace.importers.fitting import is_real_ns
from rltrace.importers.placed import Placed, PlacedRow, PlacedSpan, numbered
from rltrace.importers.run_writer import ImportedRun
from rltrace.trace.errors import RltraceError
from rltrace.trace.vocabulary import Stage

UNKNOWN = (
    "which samples were trained on",
    "bytes and phases of weight movement",
    "devices",
)
"""What no such log tells."""


def traced_run(
    path: Path,
    framework: str,
    trainer: str,
    kind: str,
    spans: Iterable[PlacedSpan],
    changed_ns: int,
    *,
    rows: Iterable[PlacedRow] = (),
    placement: str = "",
    unknown: Iterable[tuple[Stage | None, str]] = (),
    never_told: Iterable[str] = UNKNOWN,
    notes: Iterable[str] = (),
) -> ImportedRun:
    """The run of what a log places. Errors: `RltraceError` where it places nothing."""
    told = list(spans)
    kept = [s for s in told if is_real_ns(s.start_ns) and s.start_ns <= s.end_ns]
    placed = Placed(numbered(kept), tuple(rows))
    if not placed.spans:
        raise RltraceError(f"{path} holds no span of {framework} that has a beginning and an end")
    if len(kept) < len(told):
        notes = (*notes, f"{len(told) - len(kept)} spans at times that no clock shows: left out")
    return ImportedRun(
        framework=framework,
        version="",
        trainer=trainer,
        placement=placement,
        steps=(),
        not_logged=tuple(chain(unknown, ((None, what) for what in never_told))),
        notes=(),
        log_notes=tuple(notes),
        log=str(path),
        kind=kind,
        changed_ns=changed_ns,
        placed=placed,
    )
