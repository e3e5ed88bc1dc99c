"""Console logs of metrics: `step:3 - timing_s/gen:2.01 - ...`, or a dict that Python printed,
`Global step 3: {'timing/generation': 2.01, ...}` or `perf 3: {...}`, or as JSON behind
`metrics_tag:`, somewhere in a line.

Around it may be what a terminal and Ray put there: colours, a progress bar, `(TaskRunner pid=7)`,
`[repeated 2x across cluster]`. Under NumPy 2 a value may read `np.float64(2.01)`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from rltrace.importers.log import Record, no_number, number

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STEP = re.compile(r"(?<![\w/.:])step:(\d{1,19}) - (.*)")
_DICT = re.compile(r"(?<![\w/.:])(?:[Gg]lobal step|perf) (\d{1,19}): \{(.*)")
_TAGGED = re.compile(r"metrics_tag: \{\"step\": (\d{1,19}), \"metrics\": \{(.*)")
_ITEM = re.compile(r"['\"]([^'\"]*)['\"]: ((?:[^,(){}]|\([^()]*\))*)(,|\}|$)")
_NUMPY = re.compile(r"np\.\w+\(([^()]*)\)")
_REPEATED = re.compile(r"\s*\[repeated \d+x .*$")


def read(
    lines: Iterable[str], settings: Mapping[str, re.Pattern[str]]
) -> tuple[list[Record], list[str], Counter[str], dict[str, str]]:
    """The records, what was skipped, how often each metric was no finite number, and the first
    match of each of the patterns in `settings` (group 1), which are looked for in all other
    lines."""
    records: list[Record] = []
    said: dict[str, str] = {}
    not_finite, torn = Counter[str](), False
    for line in lines:
        text = _ANSI.sub("", line).rstrip()
        found = _STEP.search(text) or _DICT.search(text) or _TAGGED.search(text)
        if found is None:
            for name, pattern in settings.items():
                if name not in said and (match := pattern.search(text)):
                    said[name] = match[1]
            continue
        metrics, infinite = dict[str, float](), dict[str, float]()
        dashed = found.re is _STEP
        pairs = _dashed(found[2]) if dashed else _items(found[2])
        torn = not line.endswith(("\n", "\r")) and (dashed or "}" not in found[2])
        if torn:
            pairs = pairs[:-1]  # its last number may be cut: 12.5 reads as 1
        for name, shown in pairs:
            value = _number(shown)
            if name and value is not None:
                metrics[name] = value
            else:
                not_finite[name] += 1
            if name and (none := no_number(_bare(shown))) is not None:
                infinite[name] = none
        records.append(Record(int(found[1]), metrics, not_finite=infinite))
    skipped = []
    if torn:
        skipped.append("the last number of the last line, which is torn")
    return records, skipped, not_finite, said


def _dashed(text: str) -> list[tuple[str, str]]:
    parts = (part.rpartition(":") for part in _REPEATED.sub("", text).split(" - "))
    return [(name.strip(), shown) for name, _, shown in parts]


def _items(text: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in _ITEM.finditer(text)]


def _bare(shown: str) -> str:
    """A number without the type that NumPy 2 shows around it."""
    numpy = _NUMPY.fullmatch(shown.strip())
    return numpy[1] if numpy else shown


def _number(shown: str) -> float | None:
    try:
        return number(float(_bare(shown)))
    except ValueError:
        return None
