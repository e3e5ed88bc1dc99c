"""Writes an imported run as an ordinary run directory.

Where a log says how long things took, not when they began, the stages of a step are laid end to
end, in the framework's order. A step ends when it was logged; where the log says no times, steps
are laid end to end and the last one ends when the file was last written. What another process did
before the step's own work could begin is laid to end there.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rltrace.adapters.log_table import PlacedRow, PlacedSpan, is_real_ns
from rltrace.analysis.figures.coverage import NOT_LOGGED
from rltrace.analysis.fixes.job_settings import named_configuration, settings_shown
from rltrace.importers.formats.json_text import Objects
from rltrace.importers.log_records import Log
from rltrace.importers.placed_events import PlacedEvents, ProcessWriter, numbered, write_placed
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.metadata_validation import update_run_json
from rltrace.trace.read.framework_figure import ANY_VERSION
from rltrace.trace.run_dir import PROBLEMS, append_line, create_run
from rltrace.trace.vocabulary import STEP_SPAN, Stage

WHO = "imported"
"""The one process of an imported run, and its node: which processes there were is not known."""

NEVER_LOGGED = (
    "latency of each trajectory",
    "which samples were trained on",
    "bytes and phases of weight sync",
    "what ran at once: no time is known to be hidden",
    "processes and devices",
)
"""What no framework logs."""


@dataclass(frozen=True)
class Timed:
    """A stage of a step: the framework's name for it and how long it took."""

    stage: Stage
    name: str
    seconds: float


@dataclass(frozen=True)
class ImportedStep:
    """`inside` lie within its `seconds` (None: its length is not known), `after` between it and the
    next one. `before` is what another process had to end, while this step or an earlier one ran,
    for `inside` to begin; where there is any, `inside` ends with the step. `counters` are readings
    at its end; `real_ns` is when it was logged, None where that is not known. An evaluation is no
    step, but has counters."""

    number: int
    seconds: float | None
    before: tuple[Timed, ...] = ()
    inside: tuple[Timed, ...] = ()
    after: tuple[Timed, ...] = ()
    counters: dict[str, float] = field(default_factory=dict)
    real_ns: int | None = None
    is_evaluation: bool = False

    @property
    def is_overfull(self) -> bool:
        parts_s = sum(part.seconds for part in self.inside)
        return self.seconds is not None and parts_s > 1.01 * self.seconds + 1e-3


@dataclass(frozen=True)
class ImportedRun:
    """`placement` is one of `workload.PLACEMENTS`, empty for unknown. `placed` is what a log with
    times holds: then there are no steps to lay out. `not_logged` are pairs of a stage (None: no one
    stage) and what of it is unknown; `notes` are pairs of a metric or place and what is to be known
    of it, `oddities` what is to be known of the log. `steps_a_mean`: over how many steps each
    figure is a mean; `generating`: the steps that generated, where only some did and the log does
    not say how long; `known`: what a metric tells -> its name (`known` of a log table);
    `waits_for`: a span -> the stage that it waits for."""

    log: Log
    framework: str
    trainer: str
    not_logged: tuple[tuple[Stage | None, str], ...]
    oddities: tuple[str, ...]
    version: str = ""
    placement: str = ""
    steps: tuple[ImportedStep, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    placed: PlacedEvents | None = None
    steps_a_mean: int = 1
    generating: tuple[int, ...] = ()
    known: Mapping[str, str] = field(default_factory=dict)
    waits_for: Mapping[str, str] = field(default_factory=dict)

    @property
    def log_notes(self) -> tuple[str, ...]:
        skipped = (f"skipped: {what}" for what in self.log.skipped)
        return (*skipped, *self.log.notes, *self.oddities)


_NEVER_PLACED = ("which samples were trained on", "bytes and phases of weight sync", "devices")
"""What no log with times of its own tells."""


def traced_run(
    path: Path, framework: str, trainer: str, kind: str, spans: Iterable[PlacedSpan], of: Objects,
    *, rows: Iterable[PlacedRow] = (), placement: str = "",
    unknown: Iterable[tuple[Stage | None, str]] = (), notes: Iterable[str] = (),
) -> ImportedRun:  # fmt: skip
    """The run of what a log (`of`) places. Errors: `RltraceError` where it places nothing."""
    told = list(spans)
    kept = [s for s in told if is_real_ns(s.start_ns) and s.start_ns <= s.end_ns]
    placed = PlacedEvents(numbered(kept), tuple(rows))
    if not placed.spans:
        raise RltraceError(f"{path} holds no span of {framework} that has a beginning and an end")
    odd = len(told) - len(kept)
    dateless = [f"{odd} spans at times that no clock shows: left out"] * (odd > 0)
    not_logged = (*unknown, *((None, what) for what in _NEVER_PLACED))
    log = Log(str(path), kind, (), changed_ns=of.changed_ns)
    oddities = (*of.notes, *notes, *dateless)
    return ImportedRun(log, framework, trainer, not_logged, oddities, "", placement, placed=placed)


def write_run(path: Path, run: ImportedRun, version: str) -> None:
    """Makes the directory `path`; `version`: rltrace's. Errors: `RltraceError` where it cannot."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise WrongUsage(f"{path} is there already: name a new directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        # Made beside and named when it is whole: an import that was stopped leaves no run.
        made = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            made.chmod(0o755)
            create_run(str(made), ["rltrace", "import", run.framework, run.log.path], {}, version)
            _write(made, run)
            update_run_json(str(made), id=path.name)
            made.rename(path)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        why = error.strerror or os.strerror(error.errno or errno.EIO)
        raise RltraceError(f"cannot write the run into {path}: {why}") from None


def _write(path: Path, run: ImportedRun) -> None:
    began_ns = ended_ns = run.log.changed_ns
    imported: dict[str, Any] = {"log": run.log.path, "kind": run.log.kind, "trainer": run.trainer}
    more = {
        "placed": run.placed is not None,
        "steps_a_mean": run.steps_a_mean * (run.steps_a_mean > 1),
        "generating": run.generating,
        "waits_for": dict(run.waits_for),
        "known": dict(run.known),
        "ended" if run.log.ended.from_outside else "failed": run.log.end,
        "settings": settings_shown(run.framework, run.version, run.log.words, run.log.values),
        "config": named_configuration(run.framework, run.log.words),
    }
    imported |= {name: told for name, told in more.items() if told}
    placement = run.placement or None
    facts: dict[str, Any] = {"adapter": run.framework, "placement": placement, "imported": imported}
    facts["versions"] = {run.framework: run.version or ANY_VERSION}
    if run.placed is not None:
        began_ns, ended_ns = run.placed.began_ns, run.placed.ended_ns
        write_placed(path, run.placed, WHO, **facts)
    else:
        if not is_real_ns(1 + sum(map(_length_ns, run.steps))):
            raise RltraceError(
                f"the steps of {run.log.path} are longer than any clock can have shown"
            )
        writer = ProcessWriter(path, WHO)
        for step, start_ns in _starts(run):
            end_ns = _step(writer, step, start_ns)
            began_ns, ended_ns = min(began_ns, start_ns), end_ns
        writer.describe(began_ns, host=WHO, node=WHO, role="trainer loop", **facts)
    for problem in _problems(run):
        append_line(f"{path}/{PROBLEMS}/{WHO}.jsonl", problem)
    update_run_json(
        str(path), start_real_ns=began_ns, end_real_ns=ended_ns, framework=run.framework,
        framework_version=run.version or None, node=WHO, wrap_pid=None, imported=imported,
    )  # fmt: skip


def _starts(run: ImportedRun) -> Iterator[tuple[ImportedStep, int]]:
    """Each step and when it began (Unix ns), never before the one before was over."""
    lengths_ns = [_length_ns(step) for step in run.steps]
    rest_ns = list(itertools.accumulate(reversed(lengths_ns), initial=0))[:0:-1]
    cursor_ns = 0
    for step, length_ns, left_ns in zip(run.steps, lengths_ns, rest_ns, strict=True):
        ended_ns = step.real_ns
        start_ns = run.log.changed_ns - left_ns if ended_ns is None else ended_ns - length_ns
        start_ns = max(start_ns, cursor_ns, 1)
        yield step, start_ns
        cursor_ns = start_ns + length_ns


def _length_ns(step: ImportedStep) -> int:
    """At least 1: readings of steps whose length is not known have an order, too."""
    parts_ns = sum(_ns(timed.seconds) for timed in (*step.before, *step.inside))
    within_ns = parts_ns if step.seconds is None else _ns(step.seconds)
    return max(1, within_ns + sum(_ns(timed.seconds) for timed in step.after))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _step(writer: ProcessWriter, step: ImportedStep, start_ns: int) -> int:
    """Writes one step; returns when it is over."""

    def write(timed: Timed, at_ns: int, until_ns: int, lane: int = 0) -> None:
        writer.span(at_ns, until_ns, timed.name, timed.stage, step=step.number, lane=lane)

    end_ns = start_ns + _length_ns(replace(step, after=()))
    if step.seconds is not None:
        writer.span(start_ns, end_ns, STEP_SPAN, Stage.STEP, step=step.number, lane=0)
    cursor_ns = start_ns
    if step.before:
        cursor_ns = max(start_ns, end_ns - sum(_ns(timed.seconds) for timed in step.inside))
        for lane, timed in enumerate(step.before, len(step.inside)):
            write(timed, max(1, cursor_ns - _ns(timed.seconds)), cursor_ns, lane)
    for lane, timed in enumerate(step.inside):
        length_ns = _ns(timed.seconds)
        # Timers that add up to more than the step overlapped: this one ends with it, in its lane.
        at_ns = max(start_ns, min(cursor_ns, end_ns - length_ns))
        last_ns = at_ns + length_ns
        write(timed, at_ns, last_ns, lane if at_ns < cursor_ns else 0)
        cursor_ns = max(cursor_ns, last_ns)
    cursor_ns = end_ns
    for timed in step.after:
        write(timed, cursor_ns, cursor_ns + _ns(timed.seconds))
        cursor_ns += _ns(timed.seconds)
    for counter, value in step.counters.items():
        writer.row("samples", time_ns=max(cursor_ns, 1), counter=counter, value=value)
    return cursor_ns


def _problems(run: ImportedRun) -> Iterator[dict[str, Any]]:
    for stage, what in run.not_logged:
        of_stage = {} if stage is None else {"stage": stage.name.lower()}
        yield {"what": NOT_LOGGED, "target": what, **of_stage}
    for target, detail in run.notes:
        yield {"what": f"{run.framework}'s figure", "target": target, "detail": detail}
    for note in run.log_notes:
        yield {"what": "log", "target": Path(run.log.path).name, "detail": note}
