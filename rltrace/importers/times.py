"""Which figures of a log are times, and words for those that are none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from rltrace.importers.log import Record

LONGEST_S = 1e8
_MOST_NAMED = 5


def is_time(value: float) -> bool:
    """Whether a clock can have shown so many seconds."""
    return 0 <= value < LONGEST_S


def impossible(records: Iterable[Record], is_timer: Callable[[str], bool]) -> Counter[str]:
    """How often each timer shows what no clock can have shown."""
    return Counter(
        name
        for record in records
        for name, value in record.metrics.items()
        if not is_time(value) and is_timer(name)
    )


def counted(names: Mapping[str, int]) -> str:
    """Names with how often each occurs: `timing_s/gen (3), timing_s/ref (1)`."""
    shown = [f"{name} ({count})" for name, count in list(names.items())[:_MOST_NAMED]]
    if len(names) > _MOST_NAMED:
        shown.append(f"{len(names) - _MOST_NAMED} more")
    return ", ".join(shown)
