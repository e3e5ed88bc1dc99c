"""Console logs that have metrics somewhere in a line.

They are `step:3 - timing_s/gen:2.01 - ...`, or a dict that Python printed, `Global step 3:
{'timing/generation': 2.01, ...}` or `perf 3: {...}`, or JSON behind `metrics_tag:`.
Around it may be colours, a progress bar, `(TaskRunner pid=7)`, `[repeated 2x across cluster]`; with
NumPy 2 a value may read `np.float64(2.01)`. Processes print into each other, and a crash cuts a
line off: its last number may be cut, too (12.5 reads as 1), and is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from rltrace.importers.formats import json_lines
from rltrace.importers.log_records import Counted, LogRecord, number, shown_number, split

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_START = re.compile(
    r"(?<![A-Za-z_/.:])step:(?P<dashed>\d{1,19}) - "
    r"|(?:Global step|(?<![A-Za-z_/.:])(?:global step|perf)) (?P<dict>\d{1,19}): \{"
    r"|metrics_tag: \{\"step\": (?P<tagged>\d{1,19}), \"metrics\": \{"
)
_WORDS = ("step:", "lobal step ", "perf ", "metrics_tag: ")  # one is in each, and quickly found
_BETWEEN = " - "
_TRL = "{'loss': "
# Matches whatever comes, so that no text is looked at twice; what is not closed is no item.
_ITEM = re.compile(r"['\"]([^'\"]*)['\"]: ((?:[^,(){}]|\([^()]*\))*)(,|\}|$)?")
_NUMPY = re.compile(r"np\.\w+\(([^()]*)\)")
_REPEATED = re.compile(r"\[repeated \d+x .*$")


def read(
    lines: Iterable[str], settings: Mapping[str, re.Pattern[str]]
) -> tuple[list[LogRecord], list[str], Counter[str], dict[str, str]]:
    """The records, what was skipped, how often each metric was no finite number, and the first
    match (group 1) of each pattern in `settings` in all other lines."""
    records: list[LogRecord] = []
    said: dict[str, str] = {}
    not_finite = Counter[str]()
    torn, foreign, last_is_torn = Counted(), Counted(), False
    for at, line in enumerate(lines, 1):
        text, is_ended = _ANSI.sub("", line).rstrip(), line.endswith(("\n", "\r"))
        is_torn = False
        found = list(_pieces(text, is_ended)) if looks_like(text) else []
        for step, pairs, is_whole in found:
            records.append(_record(step, pairs if is_whole else pairs[:-1], not_finite))
            is_torn |= not is_whole
        if is_torn and is_ended:
            torn.add(at)
        last_is_torn = is_torn and not is_ended
        if found:
            continue
        if _TRL in text or json_lines.is_step(text):
            foreign.add(at)
        for name, pattern in settings.items():
            if name not in said and (match := pattern.search(text)):
                said[name] = match[1]
    skipped = []
    if torn.count:
        skipped.append(f"the last number of {torn}, torn or run into another")
    if last_is_torn:
        skipped.append("the last number of the last line, which is torn")
    if foreign.count:
        skipped.append(f"{foreign}: figures as another framework or logger writes them")
    return records, skipped, not_finite, said


def looks_like(line: str) -> bool:
    """Whether there are metrics in a line, in one of these forms."""
    return any(word in line for word in _WORDS) and _START.search(line) is not None


def _pieces(text: str, is_ended: bool) -> Iterator[tuple[int, list[tuple[str, str]], bool]]:
    """What a line has of each step that begins in it, as names and how their values are shown, and
    whether that is all of it."""
    starts = [
        start
        for number, start in enumerate(_START.finditer(text))
        if number == 0 or not text.endswith(_BETWEEN, 0, start.start())  # a metric called so
    ]
    ends = [*(start.start() for start in starts[1:]), len(text)]
    for start, end in zip(starts, ends, strict=False):
        shown = text[start.end() : end]
        if start["dashed"] is not None:
            yield int(start["dashed"]), _dashed(shown), is_ended and end == len(text)
        else:
            yield int(start["dict"] or start["tagged"]), _items(shown), "}" in shown


def _record(step: int, pairs: list[tuple[str, str]], not_finite: Counter[str]) -> LogRecord:
    values = [(name, shown_number(_bare(shown))) for name, shown in pairs]
    metrics, infinite = split(pair for pair in values if pair[0])
    not_finite.update(name for name, value in values if not name or number(value) is None)
    return LogRecord(step, metrics, not_finite=infinite)


def _dashed(text: str) -> list[tuple[str, str]]:
    parts = (part.rpartition(":") for part in _REPEATED.sub("", text).split(_BETWEEN))
    return [(name.strip(), shown) for name, _, shown in parts]


def _items(text: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in _ITEM.finditer(text) if match[3] is not None]


def _bare(shown: str) -> str:
    """A number without the type that NumPy 2 shows around it."""
    numpy = _NUMPY.fullmatch(shown.strip())
    return numpy[1] if numpy else shown
