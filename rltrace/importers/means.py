"""Entries of a log that are means over steps since the last entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

from rltrace.importers.log import LogRecord
from rltrace.importers.run_writer import ImportedStep


def with_steps(
    records: Iterable[LogRecord], counts: Callable[[LogRecord], bool], stated: int | None = None
) -> list[LogRecord]:
    """The records, in order, each with how many steps it stands for: as many as lie between its
    number and the one before. Where none stands before (at the begin, after a restart), or a gap is
    longer than usual and no neighbour's (entries were lost), as many as between most. `counts`:
    whether one is of training (an evaluation stands for none). `stated` is the usual number as the
    log's settings have it."""
    every = list(records)
    places = [place for place, record in enumerate(every) if counts(record)]
    numbers = [every[place].step for place in places]
    gaps = [after - before for before, after in pairwise(numbers)]
    often = Counter(gap for gap in gaps if gap > 0)
    usual = max(often, key=lambda gap: (often[gap], -gap)) if often else (stated or 1)
    for at, place in enumerate(places):
        gap = gaps[at - 1] if at else 0
        beside = gaps[max(0, at - 2) : at - 1] + gaps[at : at + 1]
        steps = gap if 0 < gap <= usual or (gap > usual and gap in beside) else usual
        every[place] = replace(every[place], steps=max(1, min(steps, numbers[at])))
    return every


def usual_steps(records: Iterable[LogRecord]) -> int:
    """Over how many steps most records are means that are means at all; else 1."""
    found = Counter(record.steps for record in records if record.steps > 1)
    return found.most_common(1)[0][0] if found else 1


def repeated(step: ImportedStep, times: int) -> list[ImportedStep]:
    """The steps that one stands for: all as long as it, and its readings at the last."""
    if step.seconds is None:
        return [step]
    each_ns = round(1e9 * (step.seconds + sum(part.seconds for part in step.after)))
    silent = [
        replace(
            step,
            number=step.number - left,
            counters={},
            real_ns=None if step.real_ns is None else max(1, step.real_ns - left * each_ns),
        )
        for left in range(times - 1, 0, -1)
    ]
    return [*silent, step]
