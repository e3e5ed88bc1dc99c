"""Logs of how long things took by step, laid out by a framework's table."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import Any

from rltrace.adapters.log_table import (
    LogRecord,
    Told,
    code_of,
    has,
    is_beside,
    is_time,
    name_of,
    table_of,
    whole,
)
from rltrace.analysis.timeline.steps import warmup_by_margin
from rltrace.importers.formats.json_lines import COUNTED
from rltrace.importers.log_detection import check_framework, is_of
from rltrace.importers.log_records import Log, check_many, counted, first_of, joined
from rltrace.importers.run_writer import NEVER_LOGGED, ImportedRun, ImportedStep, Timed
from rltrace.trace.errors import RltraceError
from rltrace.trace.vocabulary import Stage


@dataclass(frozen=True)
class Scheme:
    """How a framework logs: its name and its table."""

    framework: str
    table: Mapping[str, Any]

    @property
    def name(self) -> str:
        return name_of(self.framework)

    @property
    def step(self) -> list[str]:
        return list(self.table.get("step", []))

    def told(self, records: list[LogRecord], settings: Mapping[str, str]) -> Told:
        trainers = self.table.get("trainers", [{}])
        own = next(trainer for trainer in trainers if _is_told(trainer, records))
        merged: dict[str, Any] = {
            part: {**own.get(part, {}), **self.table.get(part, {})}
            for part in ("inside", "aside", "after", "holds", "unknown", "figures")
        }
        merged |= {part: own[part] for part in ("placement", "version", "previous") if part in own}
        found = Told(own.get("name", ""), **merged)
        tell = code_of(self.framework, "tell")
        found = found if tell is None else tell(found, records, settings)
        if found.trainer and not found.placement and (said := settings.get("colocated")):
            found = replace(found, placement="disaggregated" if said == "False" else "colocated")
        return replace(found, version=settings.get(f"{self.framework}_version", found.version))


def _is_told(trainer: Mapping[str, Any], records: list[LogRecord]) -> bool:
    def typical(name: str) -> float:
        found = [record.metrics[name] for record in records if name in record.metrics]
        return median(found) if found else 0.0

    if "longer" in trainer:
        first, second = map(typical, trainer["longer"])
        return first > 1.02 * second
    wanted = "with" not in trainer or has(records, *trainer["with"])
    return wanted and not has(records, *trainer.get("without", ()))


def read_durations(log: Log, framework: str) -> ImportedRun:
    """The run that a framework's log tells of. Errors: `RltraceError` where it is none."""
    scheme = Scheme(framework, table_of(framework))
    own_names = code_of(scheme.framework, "records")
    found = log.records if own_names is None else own_names(log.records, log.settings)
    if [record.step for record in found] != [record.step for record in log.records]:
        log = replace(log, notes=tuple(note for note in log.notes if note != COUNTED))
    records, again = _last_attempts(joined(_numbered(found, scheme.table))[0], scheme.table)
    if all(is_beside(record.readings, scheme.table) for record in records):
        missing = f"{log.path} holds no metrics of {scheme.name}: no numbers of a step"
        missing = f"{missing}; {log.end}" if log.end else missing
        skipped = f" (skipped: {'; '.join(log.skipped)})" if log.skipped else ""
        raise RltraceError(missing + skipped)
    check_framework(log, scheme.framework)
    told = scheme.told(records, log.settings)
    names = {name for record in records for name in record.metrics}
    if not names & {*scheme.step, *told.timers} and not is_of(log, scheme.framework):
        kinds = sorted({name.split("/")[0] for name in names})
        raise RltraceError(
            f"{log.path} is no log of {scheme.name}'s trainer: none of its timers is there "
            f"(what it has begins with {', '.join(kinds[:6]) or 'nothing'})"
        )
    if not any(re.match(scheme.table.get("only_rl", ""), name) for name in names):
        raise RltraceError(
            f"{log.path} has figures of training only, none of generation or rewards: that is no RL"
        )
    check_many(range(sum(record.steps for record in records)))  # one may stand for many
    lengths = _lengths(records, scheme, told)
    some = any(length is not None for length in lengths)  # else all are laid out by their parts
    every = [
        _repeated(_step(record, length, told, scheme, some), record.steps)
        for record, length in zip(records, lengths, strict=True)
    ]
    steps = tuple(chain(*every)) if again else _with_slow_start(every)
    generates = code_of(scheme.framework, "generating")
    generating = () if generates is None or told.placement == "async" else generates(records)
    differ = _by_difference(steps, generating, scheme.table)
    numbers = {step.number for step in steps if not step.is_evaluation}
    done = max(log.done, max(numbers, default=0) + (0 in numbers))
    told_again = [f"of steps that were done again the last attempt counts: {first_of(again)}"]
    log = replace(log, notes=(*log.notes, *told_again * bool(again)), done=done)
    prefix, waits = scheme.table.get("prefix", ""), scheme.table.get("waits_for", {})
    return ImportedRun(
        log, scheme.framework, told.trainer, tuple(_not_logged(scheme, told, records)),
        (*_oddities(records, steps, scheme, told), *[_DIFFERENCE] * bool(differ)),
        version=told.version, placement=told.placement, steps=differ or steps,
        notes=tuple((name, what) for name, what in told.figures.items() if name in names),
        steps_a_mean=_usual_steps(records), generating=() if differ else generating,
        known=_known(scheme.table, names),
        waits_for={name.removeprefix(prefix): stage for name, stage in waits.items()},
    )  # fmt: skip


def _last_attempts(
    records: Iterable[LogRecord], table: Mapping[str, Any]
) -> tuple[list[LogRecord], list[str]]:
    """The records but for those of steps that were done again, as after a restart, and the numbers
    of these: a figure of such a step comes once more, and is another."""
    kept, newest, again = list[LogRecord](), dict[int, LogRecord](), list[str]()
    for record in records:
        if not is_beside(record.readings, table):
            known = newest.get(record.step, record).metrics
            if any(known[name] != v for name, v in record.metrics.items() if name in known):
                at = len(kept)
                while at and kept[at - 1].step >= record.step:
                    at -= 1
                if lost := kept[at:]:
                    first, last = lost[0].step - lost[0].steps + 1, lost[-1].step
                    again.append(" to ".join(map(str, dict.fromkeys((first, last)))))
                    del kept[at:]
            newest[record.step] = record
        kept.append(record)
    return kept, again


_DIFFERENCE = "generation with scoring is how much longer steps that generate are than others"


def _by_difference(
    steps: tuple[ImportedStep, ...], generating: tuple[int, ...], table: Mapping[str, Any]
) -> tuple[ImportedStep, ...]:
    """The steps with generation and what is left of them, where no timer tells either, but some
    generate and some do not; none where that does not tell."""
    rest = table.get("rest")
    others = [s.seconds for s in steps if s.number not in generating and s.seconds is not None]
    if not generating or not rest or len(others) < 1 or any(step.inside for step in steps):
        return ()
    usual = median(others)
    made = [s for s in steps if s.number in generating and s.seconds is not None]
    if not made or min(step.seconds or 0.0 for step in made) <= usual:
        return ()
    found = []
    for step in steps:
        more_s = max(0.0, (step.seconds or 0.0) - usual) if step in made else 0.0
        parts = [Timed(Stage.ROLLOUT, "generation and scoring", more_s)] * bool(more_s)
        if step.seconds is not None:
            parts.append(Timed(Stage[rest.upper()], "the rest of the step", step.seconds - more_s))
        found.append(replace(step, inside=tuple(parts)))
    return tuple(found)


def _known(table: Mapping[str, Any], names: set[str]) -> dict[str, str]:
    """What is known by another name -> the framework's, of what the log has."""
    told = table.get("known", {}).items()
    every = ((what, [name for name in known if name in names]) for what, known in told)
    return {what: found[0] for what, found in every if found}


def _usual_steps(records: Iterable[LogRecord]) -> int:
    """Over how many steps most records are means that are means at all; else 1."""
    found = Counter(record.steps for record in records if record.steps > 1)
    return found.most_common(1)[0][0] if found else 1


def _repeated(step: ImportedStep, times: int, usual: float = 1.0) -> list[ImportedStep]:
    """The steps that one stands for, with its readings at the last: all as long as it, or `usual`
    times that, and the first takes what is left."""
    if step.seconds is None:
        return [step]
    each_ns = round(1e9 * (usual * step.seconds + sum(part.seconds for part in step.after)))
    found = []
    for left in range(times - 1, -1, -1):
        long = times - (times - 1) * usual if left == times - 1 else usual
        parts = tuple(replace(part, seconds=long * part.seconds) for part in step.inside)
        end = step.real_ns and max(1, step.real_ns - left * each_ns)
        one = replace(step, seconds=long * step.seconds, inside=parts, real_ns=end)
        found.append(replace(one, number=step.number - left, counters={}) if left else one)
    return found


def _with_slow_start(every: list[list[ImportedStep]]) -> tuple[ImportedStep, ...]:
    """The steps, in order. Where the first mean alone is longer than usual, its first step was:
    what is slow at the start of a job, or of what goes on with it, is slow once."""
    timed = [steps for steps in every if steps[0].seconds is not None]
    seconds = [step.seconds or 0.0 for steps in timed for step in steps]
    if timed and 1 < (times := len(timed[0])) == warmup_by_margin(seconds):
        timed[0][:] = _repeated(timed[0][-1], times, median(seconds[times:]) / seconds[0])
    return tuple(chain(*every))


def _numbered(records: Iterable[LogRecord], table: Mapping[str, Any]) -> Iterator[LogRecord]:
    """The records by the framework's own names, each at the step that it states. If any states one,
    those that do not are of something else (an optimizer's update, say) and left out."""
    cut, numbers, every = table.get("cut", ""), table.get("numbers", ()), list(records)
    older = [(old, new) for old, new in table.get("older", {}).items() if not has(every, f"{new}*")]

    def own(name: str) -> str:
        name = name.removeprefix(cut)
        named = (new + name.removeprefix(old) for old, new in older if name.startswith(old))
        return next(named, name)

    bare = [
        replace(
            record,
            metrics={own(name): value for name, value in record.metrics.items()},
            not_finite={own(name): value for name, value in record.not_finite.items()},
        )
        for record in every
    ]
    is_stated = bool(numbers) and has(bare, *numbers)
    for record in bare:
        stated = [whole(record.metrics.pop(name)) for name in numbers if name in record.metrics]
        if stated and stated[0] is not None:
            yield replace(record, step=stated[0])
        elif not is_stated:
            yield record


def _lengths(records: list[LogRecord], scheme: Scheme, told: Told) -> list[float | None]:
    """How long each step took, in seconds, as far as the log has it; else as long as its parts, if
    the loop's two ends are among them, generation and training."""
    found = [
        next((record.metrics[name] for name in scheme.step if name in record.metrics), None)
        for record in records
    ]
    if told.previous:
        found = [*found[1:], None]
    lengths = [value if value and is_time(value) else None for value in found]
    if adds_up(records, scheme, told):
        for at, record in enumerate(records):
            parts_s = sum(_own(record, name, told.holds) for name in told.inside)
            lengths[at] = lengths[at] or parts_s or None
    return lengths


def adds_up(records: list[LogRecord], scheme: Scheme, told: Told) -> bool:
    """Whether a step whose length is not logged is taken to be as long as its timers together."""
    if not scheme.step or told.previous:
        return True
    if has(records, *scheme.step) or scheme.table.get("complete"):
        return False
    stages = {stage for name, stage in told.inside.items() if has(records, name)}
    return "train" in stages and not stages.isdisjoint({"rollout", "wait"})


def _step(
    record: LogRecord, length: float | None, told: Told, scheme: Scheme, some: bool
) -> ImportedStep:
    prefix, stages = scheme.table.get("prefix", ""), told.timers

    def timed(names: Iterable[str]) -> tuple[Timed, ...]:
        took = {name: _own(record, name, told.holds) for name in names}
        return tuple(
            Timed(stages[name], name.removeprefix(prefix), seconds)
            for name, seconds in took.items()
            if seconds > 0
        )

    parts = timed(told.aside), timed(told.inside), timed(told.after)
    if length is None and some:
        parts = (), (), ()
    readings, beside = record.readings, is_beside(record.readings, scheme.table)
    return ImportedStep(record.step, length, *parts, readings, record.real_ns, beside)


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
    if adds_up(records, scheme, told):
        yield "a step is as long as its timers together: what runs between them is in none"
    timers = {*told.timers, *scheme.step}
    told_times = (it for record in records for it in record.metrics.items() if it[0] in timers)
    if odd := Counter(name for name, value in told_times if not is_time(value)):
        yield f"timers that show what no clock can are left out: {counted(odd)}"
    timed = (step for step in steps if not timers.isdisjoint(step.counters))
    if lengthless := [step.number for step in timed if step.seconds is None]:
        has_parts = any(step.inside for step in steps)
        known = "only how long their timed parts took" if has_parts else "nothing else"
        yield f"steps whose length the log does not have, {known}: {first_of(lengthless)}"
    over = [step for step in steps if step.is_overfull]
    if over:
        parts_s = sum(part.seconds for step in over for part in step.inside)
        steps_s = sum(step.seconds or 0.0 for step in over)
        numbers = first_of([step.number for step in over])
        yield (
            f"steps whose timers add up to more than the step, {parts_s:.4g} s in {steps_s:.4g} s: "
            f"{numbers}. Some ran at once, and which is not known"
        )
    for name, inner in told.holds.items():
        took = [(r, sum(r.metrics.get(n, 0.0) for n in inner)) for r in records]
        longer = [(r, s) for r, s in took if s > 1.01 * r.metrics.get(name, math.inf)]
        if longer:
            own_s, inner_s = sum(r.metrics[name] for r, _ in longer), sum(s for _, s in longer)
            yield (
                f"{name}, {own_s:.4g} s, takes less than what runs within it, {inner_s:.4g} s: "
                f"steps {first_of([r.step for r, _ in longer])}"
            )
