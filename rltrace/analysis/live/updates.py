"""Weight updates, over rows that were kept: as in the report's section on weight movement."""

from __future__ import annotations

import math

import numpy as np

from rltrace.analysis.intervals import of_spans, union
from rltrace.analysis.live.snapshot import Updates
from rltrace.trace.follow import Rows
from rltrace.trace.vocabulary import SyncRole


def updates_between(rows: Rows, since_ns: int, until_ns: int) -> Updates | None:
    """The updates that began between two moments; None where there was none. Rows of an unknown
    version are each an update of their own."""
    rows = rows.where(rows["end_ns"] >= rows["start_ns"])
    number = np.where(rows["version"] >= 0, rows["version"], -rows["start_ns"]).astype(np.int64)
    numbers, which = np.unique(number, return_inverse=True)
    began = np.full(len(numbers), np.iinfo(np.int64).max)
    np.minimum.at(began, which, rows["start_ns"])
    mine = (began >= since_ns) & (began <= until_ns)
    if not mine.any():
        return None
    lane = np.zeros(len(number), np.int64)
    work = union(of_spans(which.astype(np.int64), rows["start_ns"], rows["end_ns"], lane))
    seconds = np.bincount(work.group, (work.end - work.start) / 1e9, len(numbers))
    size = np.maximum(rows["bytes"], 0).astype(np.float64)
    sent = (rows["role"] == SyncRole.SOURCE) & (rows["bytes"] >= 0)
    by_sources = np.bincount(which[sent], size[sent], len(numbers))
    has_source = np.bincount(which[sent], minlength=len(numbers)) > 0
    largest = np.full(len(numbers), -1.0)
    np.maximum.at(largest, which[rows["bytes"] >= 0], size[rows["bytes"] >= 0])
    total = np.where(has_source, by_sources, largest)[mine]
    seconds = seconds[mine]
    told = total >= 0
    length_s = (until_ns - since_ns) / 1e9
    moving_s = float(seconds[told].sum())
    return Updates(
        updates=int(mine.sum()),
        per_minute=60 * float(mine.sum()) / length_s if length_s else math.nan,
        seconds=float(seconds.mean()),
        p99_s=float(np.quantile(seconds, 0.99)),
        bytes=float(total[told].mean()) if told.any() else math.nan,
        gb_per_s=float(total[told].sum()) / moving_s / 1e9 if moving_s else math.nan,
        latest_version=int(rows["version"].max(initial=-1)),
    )
