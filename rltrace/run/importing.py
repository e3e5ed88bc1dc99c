"""`rltrace import`: a finished run's log becomes a run directory."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rltrace import __version__
from rltrace.analysis.whatif.workload import PLACEMENTS
from rltrace.importers.log_detection import holds_log
from rltrace.importers.reading import read_run
from rltrace.importers.run_writer import ImportedRun, write_run
from rltrace.run.run_folders import new_run_path
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.metadata_validation import update_run_json
from rltrace.trace.run_dir import READ_FROM, RUN_FILE, holds_run
from rltrace.trace.vocabulary import Stage, word


@dataclass(frozen=True)
class Imported:
    """What was imported and where to. `records` are the steps that it tells of, `steps` those whose
    length it has; `stages` counts spans by stage; `not_logged` is what the log cannot tell, `notes`
    what is wrong with its figures, `log_notes` what was odd or skipped, `says` what of that
    is to be said at once."""

    path: str
    framework: str
    framework_version: str
    trainer: str
    log: str
    kind: str
    records: int
    steps: int
    first_step: int | None
    last_step: int | None
    spans: int
    stages: dict[str, int]
    readings: int
    is_placed: bool
    not_logged: tuple[str, ...]
    notes: tuple[str, ...]
    log_notes: tuple[str, ...]
    says: tuple[str, ...] = ()


@contextmanager
def run_of_log(log: Path, **told: Any) -> Iterator[tuple[Path, Imported]]:
    """A run made of a log for as long as somebody looks at it: as `import_log`, with its errors."""
    with TemporaryDirectory(prefix="rltrace-") as folder:
        path = Path(folder, "stdin" if str(log) == "-" else log.resolve().name or "log")
        done = import_log(log=log, out=path, **told)
        update_run_json(str(path), **{READ_FROM: str(log)})
        try:
            yield path, done
        except RltraceError as error:  # of the run nobody knows but the log's name
            raise RltraceError(str(error).replace(f"{folder}/", ""), error.exit_code) from None


def is_log(path: Path) -> bool:
    """Whether there is something that is no run of rltrace's, but may be a log of one."""
    if path.is_dir():
        runs = any(path.glob(f"*/{RUN_FILE}"))
        return not (runs or holds_run(str(path))) and holds_log(path)
    return str(path) == "-" or path.is_file()


def found_in(done: Imported) -> str:
    """What was found in a log, in a sentence: `verl 0.7.0, console log: 6 steps (1 to 6), ...`."""
    who = " ".join(filter(None, (done.framework, done.framework_version)))
    kinds = ", ".join(filter(None, (done.trainer, done.kind)))
    count = done.steps or done.records
    steps = f"{count} step{'s' * (count != 1)}"
    if done.steps > 1:
        steps += f" ({done.first_step} to {done.last_step})"
    stages = len([stage for stage in done.stages if stage != "other"])
    if not stages:
        return f"{who} ({kinds}): {steps}, no time of any stage"
    overlap = "" if done.is_placed else ", what ran at once is not known"
    return f"{who} ({kinds}): {steps}, times of {stages} stage{'s' * (stages != 1)}{overlap}"


def import_log(
    framework: str, log: Path, out: Path | None = None, mapping: Path | None = None,
    job: int | None = None, placement: str = "",
) -> Imported:  # fmt: skip
    """Imports `log` (`-`: what comes in) into `out`, by default a new directory in `rltrace-runs/`;
    see `read_run`. No framework: the one that the log looks like; `placement`: the job's, where a
    log does not tell. Errors: `RltraceError`, and where a place is taken."""
    if placement and placement not in PLACEMENTS:
        raise WrongUsage(f"placement must be one of {', '.join(PLACEMENTS)}, not {placement!r}")
    with TemporaryDirectory(prefix="rltrace-") as folder:
        if str(log) == "-":
            log = Path(folder, "stdin")
            with log.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        here = f"{folder}{os.sep}"  # of what came in nobody knows but its name
        try:
            run = read_run(log, framework, mapping, job)
        except RltraceError as error:
            raise RltraceError(str(error).replace(here, ""), error.exit_code) from None
        named = replace(run.log, path=run.log.path.replace(here, ""))
        run = replace(run, log=named, placement=placement or run.placement)
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
        path=str(path), log=run.log.path, kind=run.log.kind,
        framework=run.framework, framework_version=run.version, trainer=run.trainer,
        records=max(sum(not s.is_evaluation for s in run.steps), len(timed)), steps=len(timed),
        first_step=min(timed, default=None), last_step=max(timed, default=None),
        spans=len(timed) + sum(stages.values()), stages=dict(stages.most_common()),
        is_placed=run.placed is not None,
        readings=sum(len(step.counters) for step in run.steps),
        not_logged=tuple(what if s is None else f"{word(s)}: {what}" for s, what in run.not_logged),
        notes=tuple(f"{target}: {detail}" for target, detail in run.notes),
        log_notes=run.log_notes,
        says=(*(f"skipped: {what}" for what in run.log.skipped), *run.log.notes),
    )  # fmt: skip
