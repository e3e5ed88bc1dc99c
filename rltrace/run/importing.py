"""`rltrace import`: a finished run's log becomes a run directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from rltrace import __version__
from rltrace.importers import IMPORTERS, MAPPED, NEEDS_MAPPING
from rltrace.importers.log_detection import looks_like
from rltrace.importers.run_writer import ImportedRun, write_run
from rltrace.importers.scalars import Scheme
from rltrace.run.run_folders import new_run_path
from rltrace.trace.errors import RltraceError, WrongUsage, did_you_mean
from rltrace.trace.vocabulary import Stage, word


@dataclass(frozen=True)
class Imported:
    """What was imported and where to. `stages` counts spans by stage; `not_logged` is what the log
    cannot tell, `notes` what is wrong with its figures, `log_notes` what was odd or skipped."""

    path: str
    framework: str
    framework_version: str
    trainer: str
    log: str
    kind: str
    steps: int
    first_step: int | None
    last_step: int | None
    spans: int
    stages: dict[str, int]
    readings: int
    not_logged: tuple[str, ...]
    notes: tuple[str, ...]
    log_notes: tuple[str, ...]


def import_log(
    framework: str, log: Path, out: Path | None = None, mapping: Path | None = None
) -> Imported:
    """Imports `log` into `out`, by default a new directory in `rltrace-runs/`. `mapping` says what
    the names of a generic trace mean. Errors: `RltraceError` for an unknown framework, a log that
    cannot be used, a mapping that is missing or not wanted, a place that is taken."""
    target = IMPORTERS.get(framework)
    if target is None:
        near = did_you_mean(framework, *IMPORTERS)
        known = ", ".join(IMPORTERS)
        raise WrongUsage(f"there is no importer for {framework!r}{near}: known are {known}")
    module, _, name = target.partition(":")
    own = getattr(import_module(module), name) if target else None
    read: Callable[..., ImportedRun] = own or Scheme.of(framework)
    if mapping is not None and framework not in MAPPED:
        raise WrongUsage(f"{framework} names its own stages: --map is for {' and '.join(MAPPED)}")
    if mapping is None and framework in NEEDS_MAPPING:
        raise WrongUsage(f"what the names in {log} mean has to be said: give a file with --map")
    try:
        run = read(log) if mapping is None else read(log, mapping)
    except RltraceError as error:
        hint = "" if "rltrace import" in str(error) else looks_like(log, framework)
        if not hint:
            raise
        raise WrongUsage(f"{error}; {hint}") from None
    path = out or new_run_path([log.resolve().name])
    write_run(path.absolute(), run, __version__)
    return _told(path, run)


def _told(path: Path, run: ImportedRun) -> Imported:
    spans = () if run.placed is None else run.placed.spans
    timed = [step.number for step in run.steps if step.seconds is not None]
    timed += sorted(span.step for span in spans if span.stage == Stage.STEP)
    stages = Counter(
        word(t.stage) for step in run.steps for t in (*step.before, *step.inside, *step.after)
    )
    stages.update(word(span.stage) for span in spans if span.stage != Stage.STEP)
    return Imported(
        path=str(path),
        framework=run.framework,
        framework_version=run.version,
        trainer=run.trainer,
        log=run.log.path,
        kind=run.log.kind,
        steps=len(timed),
        first_step=min(timed, default=None),
        last_step=max(timed, default=None),
        spans=len(timed) + sum(stages.values()),
        stages=dict(stages.most_common()),
        readings=sum(len(step.counters) for step in run.steps),
        not_logged=tuple(what if s is None else f"{word(s)}: {what}" for s, what in run.not_logged),
        notes=tuple(f"{target}: {detail}" for target, detail in run.notes),
        log_notes=run.log_notes,
    )
