"""TRL's logs: trainer_state.json, TensorBoard events, wandb's files, JSON lines, console lines.

Figures of a step are `train/...` in TensorBoard and wandb, bare elsewhere. How long its parts took
the synchronous trainers tell wandb only, in rows before the step's, one a call; the asynchronous
ones have it among their figures (TRL's sources, 0.28 to 1.16, and logs of 1.16).
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rltrace.importers.formats import console, json_lines
from rltrace.importers.log_numbers import whole
from rltrace.importers.log_reader import read_log
from rltrace.importers.log_records import (
    Counted,
    Lines,
    Log,
    LogRecord,
    check_filled,
    is_text,
    joined,
    readable,
    shown_number,
    split,
    start_of,
)
from rltrace.importers.run_writer import ImportedRun
from rltrace.importers.scalars import Scheme, lay_out
from rltrace.trace.errors import RltraceError
from rltrace.trace.untrusted_files import read_given

STATE = "trainer_state.json"
_PROFILED = "profiling/Time taken: "  # what timed blocks are logged as: `<class>.<block>` follows
_PREFIX = "train/"
_STEP_NAMES = ("train/global_step", "global_step")  # wandb's own step counts its rows
_MAPPING = re.compile(r"\{'[^{}]*\}")
_FIGURES = re.compile(r"'(?:epoch|loss)': ")
_TORN = re.compile(r"\{'(?:[^{}]*')?(?:epoch|loss|eval_loss)': ")
_LONGEST_MAPPING = 1 << 18  # characters: Python takes a thousand times the bytes to read one
_EVALUATION = ("eval_", "eval/")  # TensorBoard and wandb have the latter
_SUMS = ("train_", "total_flos")  # what that line has, which other formats put beside a step's
_OF_SAMPLES = ("num_tokens", "reward", "completions/")
_LOGGING_STEPS = "logging_steps"
_END = "train_runtime"  # of the line that sums a training up

_BLOCKS = {"sync_weights", "_calculate_rewards", "compute_loss"}  # and what begins as below
_GENERATING = ("vLLM.generate", "transformers.generate")


def read(path: Path) -> ImportedRun:
    """Reads a log of TRL. Errors: `RltraceError` when there is nothing of its in it."""
    state = path / STATE if path.is_dir() else path
    if state.name.endswith(".json") and state.is_file():
        return of_log(_read_state(state))
    printed = _read_console(path) if path.is_file() else None
    return of_log(read_log(path) if printed is None else printed)


def of_log(log: Log) -> ImportedRun:
    """The run that a log of any format tells of. Errors: `RltraceError` when it is not TRL's."""
    stated = log.settings.get(_LOGGING_STEPS)
    every = _with_steps(_of_steps(log.records), int(stated) if stated else 1)
    records = tuple(_a_step(record) for record in every)
    run = lay_out(replace(log, records=records), Scheme.of("trl"))
    return run if run.placement == "async" else replace(run, generating=_generating(records))


def _read_state(path: Path) -> Log:
    """transformers writes it beside each checkpoint."""
    with readable(path):
        data = read_given(path)
        changed_ns = path.stat().st_mtime_ns
    check_filled(path, data)
    try:
        state = json.loads(data.decode("utf-8-sig"))
        history = list(state["log_history"])
    except json.JSONDecodeError as error:
        text = error.doc.strip()
        cut = text.startswith("{") and (error.pos >= len(error.doc.rstrip()) or text[-1] != "}")
        why = "it is cut off, its JSON ends early" if cut else "it is no JSON"
        raise RltraceError(f"{path} is no whole {STATE}: {why}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RltraceError(f"{path} is no {STATE}: it has no log_history") from None
    lines = [line for line in history if isinstance(line, dict) and _END not in line]
    records = [
        _record(number, line) for line in lines if (number := whole(line.get("step"))) is not None
    ]
    stepless = len(lines) - len(records)
    skipped = (f"{stepless} entries without a step",) * bool(stepless)
    steps, _ = joined(records)
    every = whole(state.get(_LOGGING_STEPS))
    said = {_LOGGING_STEPS: str(every)} if every else {}
    return Log(str(path), STATE, tuple(steps), skipped, changed_ns, said)


def _read_console(path: Path) -> Log | None:
    """None where no line is TRL's. A line is a mapping as Python prints it, since transformers 5
    with the numbers as texts, and says no step: they are counted."""
    try:
        start = start_of(path)
        if not is_text(start):
            return None
        with path.open(encoding="utf-8-sig", errors="replace") as text:
            lines, torn, foreign = _printed(Lines(text))
        changed_ns = path.stat().st_mtime_ns
    except OSError:
        return None  # told by the reader of all other formats
    is_json = json_lines.looks_like(start.decode("utf-8-sig", "replace"))
    if not lines and (is_json or not torn.count):
        return None
    steps = itertools.accumulate(int(not _is_evaluation(line)) for line in lines)
    records, _ = joined(map(_record, steps, lines))
    counted = "a console log says no step: its lines are counted, each as one step (which is too "
    counted += "few where logging_steps is more than 1)"
    skipped = [counted] if records else []
    if torn.count:
        skipped.append(f"{torn}: figures in a mapping that is torn")
    if foreign.count:
        skipped.append(f"{foreign}: figures as another framework or logger writes them")
    return Log(str(path), "console log", tuple(records), tuple(skipped), changed_ns)


def _printed(lines: Iterable[str]) -> tuple[list[dict[str, Any]], Counted, Counted]:
    """Mappings of figures, lines where one is torn, and those of figures in another form."""
    found: list[dict[str, Any]] = []
    torn, foreign = Counted(), Counted()
    for at, line in enumerate(lines, 1):
        mappings = [text for text in _MAPPING.findall(line) if _FIGURES.search(text)]
        read = [mapping for text in mappings if (mapping := _mapping(text)) is not None]
        for mapping in read:
            if _is_evaluation(mapping):
                mapping.pop("epoch", None)  # not that of the last line where not every step has one
        found += [mapping for mapping in read if _END not in mapping]
        if len(read) < len(mappings) or _TORN.search(_MAPPING.sub("", line)):
            torn.add(at)
        elif not mappings and (console.looks_like(line) or json_lines.is_step(line)):
            foreign.add(at)
    return found, torn, foreign


def _is_of_training(record: LogRecord) -> bool:
    """Whether a record with TRL's names is of steps, and not of an evaluation or of the end."""
    return not _is_evaluation(name for name in record.readings if not name.startswith(_SUMS))


def _with_steps(records: Iterable[LogRecord], stated: int) -> list[LogRecord]:
    """The records, in order, each with over how many steps it is a mean: as many as lie between its
    number and the one before. Where none stands before (at the begin, after a restart), or a gap is
    longer than usual and no neighbour's (entries were lost), as many as between most; for one entry
    alone, as the log's settings have `stated`. An evaluation stands for none."""
    every = list(records)
    places = [place for place, record in enumerate(every) if _is_of_training(record)]
    numbers = [every[place].step for place in places]
    gaps = [after - before for before, after in itertools.pairwise(numbers)]
    often = Counter(gap for gap in gaps if gap > 0)
    usual = max(often, key=lambda gap: (often[gap], -gap), default=stated)
    for at, place in enumerate(places):
        gap = gaps[at - 1] if at else 0
        beside = gaps[max(0, at - 2) : at - 1] + gaps[at : at + 1]
        steps = gap if 0 < gap <= usual or (gap > usual and gap in beside) else usual
        every[place] = replace(every[place], steps=max(1, min(steps, numbers[at])))
    return every


def _generating(records: tuple[LogRecord, ...]) -> tuple[int, ...]:
    """The steps that generated, where samples of one are used for updates of others, too: only
    their entries have figures of samples. None where all do."""
    entries = [record for record in records if _is_of_training(record)]
    made = [one for one in entries if any(name.startswith(_OF_SAMPLES) for name in one.readings)]
    if len(made) == len(entries):
        return ()
    return tuple(step for one in made for step in range(one.step - one.steps + 1, one.step + 1))


def _a_step(record: LogRecord) -> LogRecord:
    """A record whose blocks, which are sums over its steps, are means as its other figures are."""
    metrics = {
        name: value / record.steps if name in _BLOCKS or name.startswith(_GENERATING) else value
        for name, value in record.metrics.items()
    }
    return replace(record, metrics=metrics)


def _is_evaluation(names: Iterable[str]) -> bool:
    """Whether an entry tells of an evaluation, which is no step: it follows that of one."""
    return all(name == "epoch" or name.startswith(_EVALUATION) for name in names)


def _mapping(text: str) -> dict[str, Any] | None:
    if len(text) > _LONGEST_MAPPING:
        return None
    try:
        found = ast.literal_eval(re.sub(r": (nan|-?inf)\b", r": '\1'", text))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None  # all that Python's parser raises of texts
    return {str(name): it for name, it in found.items()} if isinstance(found, dict) else None


def _record(step: int, line: dict[str, Any]) -> LogRecord:
    values = (
        (name, shown_number(shown) if isinstance(shown, str) else shown)
        for name, shown in line.items()
        if name != "step"
    )
    metrics, infinite = split(values)
    return LogRecord(step, metrics, not_finite=infinite)


def _of_steps(records: tuple[LogRecord, ...]) -> Iterator[LogRecord]:
    """The records with TRL's own names, each at its step, with blocks on the way added up."""
    waiting: dict[str, float] = {}
    for record in records:
        metrics: dict[str, float] = {}
        for name, value in record.metrics.items():
            if name.startswith(_PROFILED):
                block = name.removeprefix(_PROFILED).partition(".")[2]
                waiting[block] = waiting.get(block, 0.0) + value
            else:
                metrics[name.removeprefix(_PREFIX)] = value
        found = (whole(record.metrics.get(name)) for name in _STEP_NAMES)
        stated = next((step for step in found if step is not None), None)
        metrics.pop("global_step", None)
        infinite = {name.removeprefix(_PREFIX): v for name, v in record.not_finite.items()}
        if metrics or infinite:
            step = record.step if stated is None else stated
            timed, waiting = waiting, {}
            yield LogRecord(step, {**timed, **metrics}, record.real_ns, infinite)
