"""Console logs of metrics: `step:3 - timing_s/gen:2.01 - ...` somewhere in a line.

Around it may be what a terminal and Ray put there: colours, a progress bar, `(TaskRunner pid=7)`,
`[repeated 2x across cluster]`. Under NumPy 2 a value may read `np.float64(2.01)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rltrace.importers.log import Record, number

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STEP = re.compile(r"(?<![\w/.:])step:(\d+) - (.*)")
_NUMPY = re.compile(r"np\.\w+\(([^()]*)\)")
_REPEATED = re.compile(r"\s*\[repeated \d+x .*$")


def read(
    lines: Iterable[str], settings: dict[str, re.Pattern[str]]
) -> tuple[list[Record], list[str], dict[str, str]]:
    """The records, what was skipped, and the first match of each of the patterns in `settings`
    (group 1), which are looked for in all other lines."""
    records: list[Record] = []
    said: dict[str, str] = {}
    unread = 0
    whole, text = True, ""
    for line in lines:
        whole, text = line.endswith(("\n", "\r")), _ANSI.sub("", line).rstrip()
        found = _STEP.search(text)
        if found is None:
            for name, pattern in settings.items():
                if name not in said and (match := pattern.search(text)):
                    said[name] = match[1]
            continue
        metrics = dict[str, float]()
        parts = _REPEATED.sub("", found[2]).split(" - ")
        if not whole:
            parts.pop()  # its last number may be cut: 12.5 reads as 1
        for part in parts:
            name, _, shown = part.rpartition(":")
            value = _number(shown)
            if name and value is not None:
                metrics[name.strip()] = value
            else:
                unread += 1
        records.append(Record(int(found[1]), metrics))
    skipped = []
    if not whole and _STEP.search(text):
        skipped.append("the last number of the last line, which is torn")
    if unread:
        skipped.append(f"{unread} values that are no finite number")
    return records, skipped, said


def _number(shown: str) -> float | None:
    numpy = _NUMPY.fullmatch(shown.strip())
    try:
        return number(float(numpy[1] if numpy else shown))
    except ValueError:
        return None
