"""TRL's logs: trainer_state.json, TensorBoard events, wandb's files, JSON lines, console lines.

Everywhere TRL logs figures of a step (`train/...` in TensorBoard and wandb, bare elsewhere). How
long the parts of a step took the synchronous trainers tell wandb only, in rows of their own before
the step's, one a call; the asynchronous ones have it among their figures (read in TRL's sources,
0.28 to 1.16, and in logs of 1.16).
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

from rltrace.adapters.trl.tables import LABELS, PROFILED
from rltrace.importers import console, json_lines
from rltrace.importers.fitting import whole
from rltrace.importers.log import (
    Counted,
    Lines,
    Log,
    Record,
    check_filled,
    is_text,
    joined,
    out_of_order,
    readable,
    shown_number,
    split,
    start_of,
)
from rltrace.importers.means import with_steps
from rltrace.importers.reading import read_log
from rltrace.importers.run_writer import ImportedRun
from rltrace.importers.scalars import Scheme, Told, has, lay_out
from rltrace.trace.errors import RltraceError
from rltrace.trace.given_files import read_given
from rltrace.trace.vocabulary import Stage

STATE = "trainer_state.json"
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

_BLOCKS = (
    "sync_weights",
    "vLLM.generate",
    "transformers.generate",
    "transformers.generate_batch",
    "_calculate_rewards",
    "compute_loss",
)
"""The timed blocks of a step, in the order in which the synchronous trainers run them."""

_ASYNC = (
    "perf/rollout_wait_s",
    "perf/fwd_bwd_s",
    "perf/optimizer_s",
    "perf/weight_sync_s",
    "weight_sync_time_s",
)


def read(path: Path) -> ImportedRun:
    """Reads a log of TRL. Errors: `RltraceError` when there is nothing of its in it."""
    return of_log(_log(path))


def of_log(log: Log) -> ImportedRun:
    """The run that a log of any format tells of. Errors: `RltraceError` when it is not TRL's."""
    stated = log.settings.get(_LOGGING_STEPS)
    every = with_steps(_of_steps(log.records), _is_of_training, int(stated) if stated else None)
    records = tuple(_a_step(record) for record in every)
    scheme = ASYNC if has(records, *_ASYNC) else SYNC
    run = lay_out(replace(log, records=records), scheme)
    return run if scheme is ASYNC else replace(run, generating=_generating(records))


def _log(path: Path) -> Log:
    state = path / STATE if path.is_dir() else path
    if state.name.endswith(".json") and state.is_file():
        return _read_state(state)
    if path.is_file():
        printed = _read_console(path)
        if printed is not None:
            return printed
    return read_log(path)


# --- formats of transformers' own


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
    not_finite = Counter[str]()
    records = [
        _record(number, line, not_finite)
        for line in lines
        if (number := whole(line.get("step"))) is not None
    ]
    skipped = []
    if len(records) < len(lines):
        skipped.append(f"{len(lines) - len(records)} entries without a step")
    records, odd = _in_order(records)
    steps, _ = joined(records)
    skipped += odd
    every = whole(state.get(_LOGGING_STEPS))
    said = {_LOGGING_STEPS: str(every)} if every else {}
    return Log(str(path), STATE, tuple(steps), tuple(skipped), changed_ns, said, dict(not_finite))


def _in_order(records: list[Record]) -> tuple[list[Record], list[str]]:
    """The records in the order in which they were logged, each once, and what is to be said of it.

    transformers writes them so, and takes those of the checkpoint over after a restart; a file
    that somebody else put together need not be so. An entry has no time: where no restart explains
    the order of the steps, it is that of their numbers.
    """
    once: dict[tuple[object, ...], Record] = {}
    for record in records:
        infinite = frozenset((name, str(value)) for name, value in record.not_finite.items())
        same = record.step, frozenset(record.metrics.items()), infinite
        once.setdefault(same, record)
    kept, said = list(once.values()), list[str]()
    if again := len(records) - len(kept):
        said.append(f"{again} {'entries' if again > 1 else 'entry'} that another one repeats")
    if late := out_of_order(kept):
        said.append(
            f"the order of its entries, in which step {late[0]} stands after step {late[1]}: they "
            "are sorted by step"
        )
        kept.sort(key=lambda record: record.step)
    return kept, said


def _read_console(path: Path) -> Log | None:
    """What a job printed; None where it has no line of TRL's. A line is a mapping as Python prints
    it, since transformers 5 with the numbers as texts, and says no step: they are counted."""
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
    not_finite = Counter[str]()
    steps = itertools.accumulate(int(not _is_evaluation(line)) for line in lines)
    parts = [_record(at, line, not_finite) for at, line in zip(steps, lines, strict=True)]
    records, _ = joined(parts)
    skipped = []
    if records:
        skipped.append(
            "a console log says no step: its lines are counted, each as one step (which is too few "
            "where logging_steps is more than 1)"
        )
    if torn.count:
        skipped.append(f"{torn}: figures in a mapping that is torn")
    if foreign.count:
        skipped.append(f"{foreign}: figures as another framework or logger writes them")
    kind = "console log"
    return Log(str(path), kind, tuple(records), tuple(skipped), changed_ns, {}, dict(not_finite))


def _printed(lines: Iterable[str]) -> tuple[list[dict[str, Any]], Counted, Counted]:
    """The mappings of figures, the lines where one is torn, as where a job crashed or another
    process printed in between, and those of figures in another form."""
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


def _is_of_training(record: Record) -> bool:
    """Whether a record with TRL's names is of steps, and not of an evaluation or of the end."""
    return not _is_evaluation(name for name in record.readings if not name.startswith(_SUMS))


def _generating(records: tuple[Record, ...]) -> tuple[int, ...]:
    """The steps that generated, where samples of one are used for updates of others, too: only
    entries of the former have figures of samples. None where all do, or no one can tell."""
    entries = [record for record in records if _is_of_training(record)]
    did = [any(name.startswith(_OF_SAMPLES) for name in one.readings) for one in entries]
    if all(did):
        return ()
    made = (one for one, is_one in zip(entries, did, strict=True) if is_one)
    return tuple(step for one in made for step in range(one.step - one.steps + 1, one.step + 1))


def _a_step(record: Record) -> Record:
    """A record whose blocks, which are sums over its steps, are means as its other figures are."""
    metrics = {
        name: value / record.steps if name in _BLOCKS else value
        for name, value in record.metrics.items()
    }
    return replace(record, metrics=metrics)


def _is_evaluation(names: Iterable[str]) -> bool:
    """Whether an entry tells of an evaluation, which is no step: it follows that of one."""
    return all(name == "epoch" or name.startswith(_EVALUATION) for name in names)


def _mapping(text: str) -> dict[str, Any] | None:
    """What Python printed; None for what it cannot have."""
    if len(text) > _LONGEST_MAPPING:
        return None
    try:
        found = ast.literal_eval(re.sub(r": (nan|-?inf)\b", r": '\1'", text))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None  # all that Python's parser raises of texts
    return {str(name): it for name, it in found.items()} if isinstance(found, dict) else None


def _record(step: int, line: dict[str, Any], not_finite: Counter[str]) -> Record:
    values = (
        (name, shown_number(shown) if isinstance(shown, str) else shown)
        for name, shown in line.items()
        if name != "step"
    )
    metrics, infinite = split(values)
    not_finite.update(list(infinite))
    return Record(step, metrics, not_finite=infinite)


# --- steps


def _of_steps(records: tuple[Record, ...]) -> Iterator[Record]:
    """The records with the names that TRL itself uses, each at its step of training; blocks that
    were timed on the way to a step are added up and belong to it."""
    waiting: dict[str, float] = {}
    for record in records:
        metrics: dict[str, float] = {}
        for name, value in record.metrics.items():
            if name.startswith(PROFILED):
                block = name.removeprefix(PROFILED).partition(".")[2]
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
            yield Record(step, {**timed, **metrics}, record.real_ns, infinite)


def _synchronous(records: list[Record]) -> Told:
    inside = {block: LABELS[block] for block in _BLOCKS}
    if has(records, "vLLM.generate"):
        return Told("with vLLM", "", inside)
    colocated = has(records, "transformers.generate", "transformers.generate_batch")
    return Told("", "colocated" if colocated else "", inside)


_PASSES = "all forward passes are in one timed block, those of training among them"
_TOOLS = "tools run while it generates"

SYNC = Scheme(
    framework="trl",
    name="TRL",
    step="step_time",
    trainer=_synchronous,
    unknown=(
        (Stage.REFERENCE, _PASSES),
        (Stage.LOGPROB, _PASSES),
        (Stage.ENV, _TOOLS),
        (Stage.CHECKPOINT, "TRL does not time it"),
        (Stage.EVAL, "TRL does not time it"),
    ),
    figures=(
        ("step_time", "generation and rewards are in it, the optimizer's step and logging are not"),
        ("compute_loss", "the forward pass: backward and optimizer are in no timer"),
    ),
)

ASYNC = Scheme(
    framework="trl",
    name="TRL",
    step="perf/step_s",
    trainer=Told("asynchronous", "async", {name: LABELS[name] for name in _ASYNC}),
    unknown=(
        (Stage.ROLLOUT, "it runs in a process of its own: rollout/duration_s is one conversation"),
        (Stage.REWARD, "it runs in that process, too: rollout/score_s is one group"),
        (Stage.ENV, _TOOLS),
        (Stage.CHECKPOINT, "TRL does not time it"),
        (Stage.EVAL, "TRL does not time it"),
    ),
    figures=(
        ("perf/rollout_wait_s", "the first rank's wait for samples, not generation"),
        ("perf/weight_sync_s", "the pause of the server and the wait for all ranks are in it"),
        (
            "sample/staleness_mean",
            "where a sample is taken out of the queue; it is trained on a micro-batch later",
        ),
    ),
)
