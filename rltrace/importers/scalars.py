"""Logs of scalars that a framework writes once a step, read by a `Scheme`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rltrace.importers.fitting import first_of, is_time, whole
from rltrace.importers.frameworks import check_framework
from rltrace.importers.log import (
    Log,
    Record,
    impossible,
    impossible_said,
    joined,
    out_of_order_said,
)
from rltrace.importers.means import repeated, usual_steps, with_readings_between
from rltrace.importers.reading import Settings, read_log
from rltrace.importers.run_writer import NEVER_LOGGED, ImportedRun, ImportedStep, step_end
from rltrace.trace.errors import RltraceError
from rltrace.trace.vocabulary import Stage, word


@dataclass(frozen=True)
class Told:
    """What a log tells of its trainer: its name, placement ("" for unknown), and the timers of a
    step, metric -> stage. `inside` lie within the step in the order in which the loop runs them,
    `aside` are what other processes had done before, `after` come between two steps. A metric in
    `holds` has those of its value within itself: what is left of it is its."""

    trainer: str
    placement: str
    inside: Mapping[str, str]
    aside: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)
    holds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def timers(self) -> Mapping[str, str]:
        return {**self.inside, **self.aside, **self.after}


@dataclass(frozen=True)
class Scheme:
    """How a framework logs. `step` is the metric with a step's length, `""` where it has none: then
    a step is as long as its parts together. `previous`: that length is of the step before.
    `numbers` are metrics that state the step's number, where the log's own counts something else.
    `trainer` tells the parts, or which they are by the metrics there are. `unknown` says what of
    which stage no log has; `figures` what a metric does not say by its name."""

    framework: str
    name: str
    step: str
    trainer: Told | Callable[[list[Record]], Told]
    numbers: tuple[str, ...] = ()
    previous: bool = False
    unknown: tuple[tuple[Stage | None, str], ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    settings: Settings = field(default_factory=dict)

    def __call__(self, path: Path) -> ImportedRun:
        """Reads the framework's log. Errors: `RltraceError` when there is nothing of its in it."""
        return lay_out(read_log(path, self.settings), self)

    def told(self, records: list[Record]) -> Told:
        return self.trainer if isinstance(self.trainer, Told) else self.trainer(records)


def has(records: Iterable[Record], *names: str) -> bool:
    return any(name in record.metrics for record in records for name in names)


def lay_out(log: Log, scheme: Scheme) -> ImportedRun:
    """The run that a log tells of. Errors: `RltraceError` when it is no log of the framework's."""
    if not log.records:
        missing = f"{log.path} holds no metrics of {scheme.name}: no numbers of a step"
        raise RltraceError(missing + log.what_was_skipped())
    check_framework(log, scheme.framework)
    records, _ = joined(_numbered(log.records, scheme.numbers))
    told = scheme.told(records)
    timers = told.timers
    names = {name for record in records for name in record.metrics}
    if not names & {scheme.step, *timers}:
        kinds = sorted({name.split("/")[0] for name in names})
        raise RltraceError(
            f"{log.path} is no log of {scheme.name}'s trainer: it has no timer of its (what it has "
            f"begins with {', '.join(kinds[:6]) or 'nothing'})"
        )
    lengths = _lengths(records, scheme)
    steps = with_readings_between(
        [
            step
            for record, length in zip(records, lengths, strict=True)
            for step in repeated(_step(record, length, told, scheme), record.steps)
        ]
    )
    odd = impossible(records, lambda name: name in timers or name == scheme.step)
    return ImportedRun(
        log=log,
        framework=scheme.framework,
        trainer=told.trainer,
        placement=told.placement,
        steps=steps,
        not_logged=tuple(_not_logged(scheme, timers, names)),
        notes=tuple((name, what) for name, what in scheme.figures if name in names),
        oddities=tuple(_oddities(records, steps, scheme, odd)),
        steps_a_mean=usual_steps(records),
    )


def _numbered(records: tuple[Record, ...], numbers: tuple[str, ...]) -> Iterator[Record]:
    """The records, each at the step that it states, if records do state one: then those that do
    not are of something else (of an optimizer's update, say) and left out."""
    stated = any(name in record.metrics for record in records for name in numbers)
    for record in records:
        found = [whole(record.metrics[name]) for name in numbers if name in record.metrics]
        if found and found[0] is not None:
            metrics = {name: v for name, v in record.metrics.items() if name not in numbers}
            yield replace(record, step=found[0], metrics=metrics)
        elif not stated:
            yield record


def _lengths(records: list[Record], scheme: Scheme) -> list[float | None]:
    """How long each step took, in seconds, as far as the log has it."""
    found = [record.metrics.get(scheme.step) for record in records]
    if scheme.previous:
        found = [*found[1:], None]
    return [value if value and is_time(value) else None for value in found]


def _step(record: Record, length: float | None, told: Told, scheme: Scheme) -> ImportedStep:
    stages = {name: Stage[stage.upper()] for name, stage in told.timers.items()}
    times = {name: _own(record, name, told.holds) for name in stages}
    seconds = length
    if seconds is None and (scheme.previous or not scheme.step):
        seconds = sum(times[name] for name in told.inside) or None
    where = {"before": told.aside, "inside": told.inside, "after": told.after}
    return ImportedStep.of(record, seconds, stages, times, **where)


def _own(record: Record, name: str, holds: Mapping[str, tuple[str, ...]]) -> float:
    """How long a timer ran without those that ran within it, in seconds; 0 where not at all."""
    took = record.metrics.get(name, -1.0)
    if not is_time(took):
        return 0.0
    within = sum(max(record.metrics.get(inner, 0.0), 0.0) for inner in holds.get(name, ()))
    return max(took - within, 0.0)


def _not_logged(
    scheme: Scheme, timers: Mapping[str, str], names: set[str]
) -> Iterator[tuple[Stage | None, str]]:
    said = {stage for stage, _ in scheme.unknown}
    seen = {Stage[stage.upper()] for name, stage in timers.items() if name in names}
    yield from ((stage, why) for stage, why in scheme.unknown if stage not in seen)
    for stage in dict.fromkeys(Stage[stage.upper()] for stage in timers.values()):
        if stage not in seen and stage not in said and stage <= Stage.SWITCH:
            called = word(stage)
            own = [name for name, of in timers.items() if of == called]
            yield stage, f"the log has no {' or '.join(own[:3])}"
    yield None, "lag and length of each trajectory (counters: what the framework has of a step)"
    yield from ((None, what) for what in NEVER_LOGGED)


def _oddities(
    records: list[Record],
    steps: tuple[ImportedStep, ...],
    scheme: Scheme,
    odd_times: Mapping[str, int],
) -> Iterator[str]:
    yield (
        "times are laid out from durations, and nothing is said to overlap: the order in a step "
        f"is {scheme.name}'s, its end is {step_end(steps)}"
    )
    if (usual := usual_steps(records)) > 1:
        yield (
            f"figures are means over {usual} steps: each of these is laid out as long as the mean, "
            "so how they differ is not known, and readings stand at the last of them"
        )
    if not scheme.step:
        yield "a step is as long as its timers together: what runs between them is in none"
    yield from impossible_said(odd_times)
    untimed = [str(step.number) for step in steps if step.seconds is None]
    if untimed:
        kept = "steps whose length is not known, of which only counters are kept"
        yield f"{kept}: {first_of(untimed)}"
    if over := [str(step.number) for step in steps if step.is_overfull]:
        yield f"steps with timers that add up to more than the step: {', '.join(over[:5])}"
    yield from out_of_order_said(records)
