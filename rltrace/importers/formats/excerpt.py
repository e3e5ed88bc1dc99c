"""What somebody kept of a console, without the lines that begin a record."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from rltrace.adapters.log_table import LogRecord, log_tables
from rltrace.importers.formats.console import PrintedLog
from rltrace.importers.formats.printed_figures import (
    BORDERS,
    SURE_END,
    UNIT,
    VALUE,
    cleaned,
    shown_value,
)
from rltrace.importers.log_records import number, split

_STEP = re.compile(
    r"(?i)(?:(?<![a-z_/-])(?:global[ _])?step|(?<![a-z])iteration"
    r"|(?:train|training|trainer|rollout)/(?:global_)?step)"
    r"['\"]?\s?[ :=#]\s?(?P<step>\d{1,9})\b(?!\s?[*s%.])"
)
_COUNTER = re.compile(r"(?:.*[/_])?step")  # unless it is known as a timer
_FEWEST = 3  # figures of a framework: fewer may be anybody's words
_NAMED = re.compile(
    rf"(?<![\w./@-])[./@-]*(?P<name>[A-Za-z][\w./@-]*(?: [\w./@-]+){{0,4}})"
    rf"['\"]?\s*[:={BORDERS}]\s*['\"]?(?P<value>{VALUE}){UNIT}(?![\w.])"
)
_MOST_PAIRS = 1 << 20


@cache
def _names() -> dict[str, dict[str, str]]:
    """What a console may call a metric -> framework -> the metric."""
    found: dict[str, dict[str, str]] = {}
    for framework, table in log_tables().items():
        parts = [table, *table.get("trainers", ())]
        timers = [one.get(part, ()) for one in parts for part in ("inside", "aside", "after")]
        told = [*timers, table.get("step", ()), *table.get("known", {}).values()]
        metrics = [name for names in told for name in names]
        forms = table.get("console", ())
        prefixes = [prefix for one in forms for prefix in one.get("sections", {}).values()]
        named = {name: name for name in metrics} | table.get("labels", {})
        named |= {m.removeprefix(p): m for m in metrics for p in prefixes if m.startswith(p)}
        for name, metric in named.items():
            found.setdefault(name, {})[framework] = metric
    return found


@cache
def _frameworks(name: str) -> dict[str, str]:
    """Framework -> the metric, of those that have one of this name."""
    marked = {
        framework: name
        for framework, table in log_tables().items()
        if "/" in name and "marks" in table and re.match(table["marks"], name)
    }
    return marked | _names().get(name, {})


def read_excerpt(lines: Iterable[str]) -> PrintedLog:
    """The figures of the framework that most names are of, wherever they stand in a text. A record
    ends where the next step is named, or one of its figures comes again."""
    told: list[tuple[str, float | None]] = []
    metrics: dict[str, set[str]] = {}
    for line in lines:
        text = cleaned(line)
        found = list[tuple[int, str, float | None]]()
        found += ((step.start(), "", float(step["step"])) for step in _STEP.finditer(text))
        for match in _NAMED.finditer(text):
            words = match["name"].split(" ")
            tails = (" ".join(words[at:]) for at in range(len(words)))
            name = next((tail for tail in tails if tail in _names()), words[-1])
            if match.end() == len(line) and not SURE_END.search(text):  # it may be cut
                continue
            if name in _names() or ("/" in name and not _COUNTER.fullmatch(name)):
                found.append((match.start(), name, shown_value(match["value"], match["unit"])))
                for framework, metric in _frameworks(name).items():
                    metrics.setdefault(framework, set()).add(metric)
        told += [(name, value) for _, name, value in sorted(found, key=lambda one: one[0])]
        if len(told) > _MOST_PAIRS:
            break
    sure = {
        framework: len(names)
        for framework, names in metrics.items()
        if len(names) >= _FEWEST
        and any(re.match(log_tables()[framework].get("marks", "$"), name) for name in names)
    }
    framework = max(sure, key=lambda one: sure[one], default="")
    return _records(told, framework) if framework else PrintedLog()


def _records(told: Iterable[tuple[str, float | None]], framework: str) -> PrintedLog:
    log, step, pairs = PrintedLog(), 0, dict[str, float | None]()

    def close() -> None:
        known, infinite = split(pairs.items())
        log.not_finite.update(name for name, value in pairs.items() if number(value) is None)
        if pairs:
            log.records.append(LogRecord(step, known, not_finite=infinite))
        pairs.clear()

    for name, value in told:
        if not name and value is not None:
            if int(value) != step:
                close()
                step = int(value)
            continue
        metric = _frameworks(name).get(framework, name)
        if metric in pairs and pairs[metric] != value:
            close()
            step += 1
        pairs[metric] = value
    close()
    log.framework = framework
    said = "it is an excerpt: its figures are taken by their names, as far as they stand in it"
    log.notes += [said] * bool(log.records)
    return log
