"""Logs of scalars by step, read by a framework's table in schemes.toml."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any

from rltrace.importers.log_detection import check_framework, name_of, schemes
from rltrace.importers.log_numbers import counted, first_of, is_time, whole
from rltrace.importers.log_reader import Settings, read_log
from rltrace.importers.log_records import Log, LogRecord, joined
from rltrace.importers.run_writer import NEVER_LOGGED, ImportedRun, ImportedStep, Timed
from rltrace.trace.errors import RltraceError
from rltrace.trace.vocabulary import Stage


@dataclass(frozen=True)
class Told:
    """What a log tells: its trainer's name, placement and version ("" for unknown), the timers of a
    step, metric -> stage, and what the log or a metric does not say. See schemes.toml."""

    trainer: str = ""
    placement: str = ""
    version: str = ""
    inside: Mapping[str, str] = field(default_factory=dict)
    aside: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)
    holds: Mapping[str, list[str]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)

    @property
    def timers(self) -> Mapping[str, Stage]:
        every = {**self.inside, **self.aside, **self.after}
        return {name: Stage[stage.upper()] for name, stage in every.items()}


Tell = Callable[[Told, list[LogRecord], Mapping[str, str]], Told]
"""What else the records and the settings tell of a trainer."""


@dataclass(frozen=True)
class Scheme:
    """How a framework logs: its `table` in schemes.toml, `settings` to look for, more to `tell`."""

    framework: str
    table: Mapping[str, Any]
    settings: Settings = field(default_factory=dict)
    tell: Tell = lambda told, records, settings: told

    @classmethod
    def of(cls, framework: str, **more: Any) -> Scheme:
        table = schemes()[framework]
        return cls(framework, schemes()[table.get("like", framework)], **more)

    @property
    def name(self) -> str:
        return name_of(self.framework)

    @property
    def step(self) -> list[str]:
        return list(self.table.get("step", []))

    def __call__(self, path: Path) -> ImportedRun:
        """Errors: `RltraceError` when there is nothing of the framework's in the log."""
        return lay_out(read_log(path, self.settings), self)

    def told(self, records: list[LogRecord], settings: Mapping[str, str]) -> Told:
        trainers = self.table.get("trainers", [{}])
        own = next(trainer for trainer in trainers if _is_told(trainer, records))
        merged: dict[str, Any] = {
            part: {**own.get(part, {}), **self.table.get(part, {})}
            for part in ("inside", "aside", "after", "holds", "unknown", "figures")
        }
        found = Told(own.get("name", ""), own.get("placement", ""), **merged)
        return self.tell(found, records, settings)


def _is_told(trainer: Mapping[str, Any], records: list[LogRecord]) -> bool:
    def typical(name: str) -> float:
        found = [record.metrics[name] for record in records if name in record.metrics]
        return median(found) if found else 0.0

    if "longer" in trainer:
        first, second = map(typical, trainer["longer"])
        return first > 1.02 * second
    wanted = "with" not in trainer or has(records, *trainer["with"])
    return wanted and not has(records, *trainer.get("without", ()))


def has(records: Iterable[LogRecord], *names: str) -> bool:
    """Whether there is one of the metrics; in their names `*` stands for anything."""
    every = {name for record in records for name in record.metrics}
    return any(fnmatchcase(metric, name) for name in names for metric in every)


def lay_out(log: Log, scheme: Scheme) -> ImportedRun:
    """The run that a log tells of. Errors: `RltraceError` when it is no log of the framework's."""
    records, _ = joined(_numbered(log.records, scheme.table))
    if not records:
        missing = f"{log.path} holds no metrics of {scheme.name}: no numbers of a step"
        skipped = f" (skipped: {'; '.join(log.skipped)})" if log.skipped else ""
        raise RltraceError(missing + skipped)
    check_framework(log, scheme.framework)
    told = scheme.told(records, log.settings)
    names = {name for record in records for name in record.metrics}
    if not names & {*scheme.step, *told.timers}:
        kinds = sorted({name.split("/")[0] for name in names})
        raise RltraceError(
            f"{log.path} is no log of {scheme.name}'s trainer: it has no timer of its (what it has "
            f"begins with {', '.join(kinds[:6]) or 'nothing'})"
        )
    if scheme.table.get("complete") and names.isdisjoint(scheme.step):
        lacks = f"{log.path} has timers of {scheme.name} but no {scheme.step[0]}"
        raise RltraceError(f"{lacks}: how long a step took is not known")
    lengths = _lengths(records, scheme)
    steps = tuple(
        step
        for record, length in zip(records, lengths, strict=True)
        for step in _repeated(_step(record, length, told, scheme), record.steps)
    )
    return ImportedRun(
        log=log,
        framework=scheme.framework,
        version=told.version,
        trainer=told.trainer,
        placement=told.placement,
        steps=steps,
        not_logged=tuple(_not_logged(scheme, told, records)),
        notes=tuple((name, what) for name, what in told.figures.items() if name in names),
        oddities=tuple(_oddities(records, steps, scheme, told)),
        steps_a_mean=_usual_steps(records),
    )


def _usual_steps(records: Iterable[LogRecord]) -> int:
    """Over how many steps most records are means that are means at all; else 1."""
    found = Counter(record.steps for record in records if record.steps > 1)
    return found.most_common(1)[0][0] if found else 1


def _repeated(step: ImportedStep, times: int) -> list[ImportedStep]:
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


def _numbered(records: tuple[LogRecord, ...], table: Mapping[str, Any]) -> Iterator[LogRecord]:
    """The records by the framework's own names, each at the step that it states. If any states one,
    those that do not are of something else (an optimizer's update, say) and left out."""
    cut, numbers = table.get("cut", ""), table.get("numbers", ())
    bare = [
        replace(
            record,
            metrics={name.removeprefix(cut): v for name, v in record.metrics.items()},
            not_finite={name.removeprefix(cut): v for name, v in record.not_finite.items()},
        )
        for record in records
    ]
    is_stated = bool(numbers) and has(bare, *numbers)
    for record in bare:
        stated = [whole(record.metrics.pop(name)) for name in numbers if name in record.metrics]
        if stated and stated[0] is not None:
            yield replace(record, step=stated[0])
        elif not is_stated:
            yield record


def _lengths(records: list[LogRecord], scheme: Scheme) -> list[float | None]:
    """How long each step took, in seconds, as far as the log has it."""
    found = [
        next((record.metrics[name] for name in scheme.step if name in record.metrics), None)
        for record in records
    ]
    if scheme.table.get("previous"):
        found = [*found[1:], None]
    return [value if value and is_time(value) else None for value in found]


def _step(record: LogRecord, length: float | None, told: Told, scheme: Scheme) -> ImportedStep:
    prefix, stages = scheme.table.get("prefix", ""), told.timers

    def timed(names: Iterable[str]) -> tuple[Timed, ...]:
        took = {name: _own(record, name, told.holds) for name in names}
        return tuple(
            Timed(stages[name], name.removeprefix(prefix), seconds)
            for name, seconds in took.items()
            if seconds > 0
        )

    parts = timed(told.aside), timed(told.inside), timed(told.after)
    if length is None and (scheme.table.get("previous") or not scheme.step):
        length = sum(timer.seconds for timer in parts[1]) or None
    if length is None:
        parts = (), (), ()
    return ImportedStep(record.step, length, *parts, record.readings, record.real_ns)


def _own(record: LogRecord, name: str, holds: Mapping[str, list[str]]) -> float:
    """How long a timer ran without those that ran within it, in seconds; 0 where not at all."""
    took = record.metrics.get(name, -1.0)
    if not is_time(took):
        return 0.0
    within = sum(max(record.metrics.get(inner, 0.0), 0.0) for inner in holds.get(name, ()))
    return max(took - within, 0.0)


def _not_logged(
    scheme: Scheme, told: Told, records: list[LogRecord]
) -> Iterator[tuple[Stage | None, str]]:
    logged = {name for record in records for name in record.readings}
    usable = {name for r in records for name, value in r.metrics.items() if is_time(value)}
    seen = {stage for name, stage in told.timers.items() if name in usable}
    for name, stage in told.timers.items():
        if name in logged - usable:
            yield stage, f"what the log has as {name} is never a usable time"
    said = {Stage[stage.upper()]: why for stage, why in told.unknown.items()}
    yield from ((stage, why) for stage, why in said.items() if stage not in seen)
    for stage in dict.fromkeys(told.timers.values()):
        own = [name for name, of in told.timers.items() if of == stage and name not in logged]
        if stage in seen or stage in said or stage > Stage.SWITCH or not own:
            continue
        if not scheme.table.get("complete"):
            yield stage, f"the log has no {' or '.join(own[:3])}"
    yield None, "lag and length of each trajectory (counters: what the framework has of a step)"
    yield from ((None, what) for what in NEVER_LOGGED)


def _oddities(
    records: list[LogRecord], steps: tuple[ImportedStep, ...], scheme: Scheme, told: Told
) -> Iterator[str]:
    end = "when each was logged" if steps[0].real_ns else "the log's last change, gaps unknown"
    yield (
        "times are laid out from durations, and nothing is said to overlap: the order in a step "
        f"is {scheme.name}'s, its end is {end}"
    )
    if (usual := _usual_steps(records)) > 1:
        yield (
            f"figures are means over {usual} steps: each of these is laid out as long as the mean, "
            "so how they differ is not known, and readings stand at the last of them"
        )
    if not scheme.step:
        yield "a step is as long as its timers together: what runs between them is in none"
    timers = {*told.timers, *scheme.step}
    odd = Counter(
        name
        for record in records
        for name, value in record.metrics.items()
        if name in timers and not is_time(value)
    )
    if odd:
        yield f"timers that show what no clock can are left out: {counted(odd)}"
    untimed = [s.number for s in steps if s.seconds is None and not timers.isdisjoint(s.counters)]
    if untimed:
        kept = "steps whose length is not known, of which only counters are kept"
        yield f"{kept}: {first_of(untimed)}"
    if over := [str(step.number) for step in steps if step.is_overfull]:
        yield f"steps with timers that add up to more than the step: {', '.join(over[:5])}"
