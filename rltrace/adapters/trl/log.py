"""TRL's logs: over how many steps an entry is a mean, and how long the blocks of a step took.

Figures of a step are `train/...` in TensorBoard and wandb, bare elsewhere. How long its parts took
the synchronous trainers tell wandb only, in rows before the step's, one a call; the asynchronous
ones have it among their figures (TRL's sources, 0.28 to 1.16, and logs of 1.16).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import mean

from rltrace.adapters.log_table import ELAPSED_S, LogRecord, is_beside, table_of, whole

_PROFILED = "profiling/Time taken: "  # what timed blocks are logged as: `<class>.<block>` follows
_PREFIX = "train/"
_STEP_NAMES = ("train/global_step", "global_step")  # wandb's own step counts its rows
_SUMS = ("train_", "total_flos")  # what the last line has, which other formats put beside a step's
_OF_SAMPLES = ("num_tokens", "completions/"), ("reward",)  # ms-swift repeats the last reward
_LOGGING_STEPS, _EPOCH = "logging_steps", "epoch"
_ALL_STEPS = ("train_runtime", "train_steps_per_second")  # their product
_MOST = 1e9  # steps, or entries: a log of more is refused where it is read
_STEP_TIME, _BY_BAR = "step_time", "progress/step_s"
_SURE_S = 10  # between records: a bar shows whole seconds
_BLOCKS = {"sync_weights", "_calculate_rewards", "compute_loss"}  # and what begins as below
_GENERATING = ("vLLM.generate", "transformers.generate")


def records(found: Iterable[LogRecord], settings: Mapping[str, str]) -> list[LogRecord]:
    """The records by TRL's own names, each with over how many steps it is a mean."""
    every = _with_steps(*_by_epoch(list(_of_steps(found)), settings))
    _time_by_bar([record for record in every if ELAPSED_S in record.metrics])
    return [_a_step(record) for record in every]


def generating(found: Iterable[LogRecord]) -> tuple[int, ...]:
    """The steps that generated, where samples of one are used for updates of others, too: only
    their entries have figures of samples. None where all do."""
    entries = [record for record in found if _is_of_training(record)]
    for names in _OF_SAMPLES:
        made = [one for one in entries if any(name.startswith(names) for name in one.readings)]
        if made:
            break
    if len(made) == len(entries):
        return ()
    return tuple(step for one in made for step in range(one.step - one.steps + 1, one.step + 1))


def _is_of_training(record: LogRecord) -> bool:
    """Whether a record with TRL's names is of steps, and not of an evaluation or of the end."""
    names = [name for name in record.readings if not name.startswith(_SUMS)]
    return not is_beside(names, table_of("trl"))


def _by_epoch(every: list[LogRecord], settings: Mapping[str, str]) -> tuple[list[LogRecord], int]:
    """The entries and over how many steps one is a mean (1: not known), as is stated or what sums
    the training up tells: in a log that says no step, at those that their epochs tell."""
    stated = int(settings.get(_LOGGING_STEPS, 0))
    told = [one for one in every if _EPOCH in one.metrics and _is_of_training(one)]
    at = {record.step: record.metrics[_EPOCH] for record in told if ELAPSED_S not in record.metrics}
    gaps = [b - a for a, b in itertools.pairwise(at.values()) if b >= a]
    if list(at) != list(range(1, len(told) + 1)) or not any(gaps):
        return every, stated or 1
    first = at[1]
    gap = mean(gaps[0 < 2 * first < gaps[0] :] or gaps)  # but for that from the very first step
    if not stated and (end := float(settings.get(_EPOCH, 0))):
        every_step = math.prod(float(settings.get(name, 0)) for name in _ALL_STEPS)
        stated = round(min(_MOST, abs(every_step * gap / end)))
    # Entries before the first one; a small epoch is rounded to 0.
    before = (round(min(_MOST, abs(first) / gap)) or first == 0) - 1
    steps = {n: max(1, stated * (before + n)) for n in at} if stated else {}
    return [replace(one, step=steps.get(one.step, one.step)) for one in every], stated or 1


def _with_steps(found: Iterable[LogRecord], stated: int) -> list[LogRecord]:
    """The records, in order, each with over how many steps it is a mean: as many as lie between its
    number and the one before. Where none stands before (at the begin, after a restart), or a gap is
    longer than usual and no neighbour's (entries were lost), as many as between most; for one entry
    alone, as the log's settings have `stated`. An evaluation stands for none."""
    every = list(found)
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


def _time_by_bar(told: list[LogRecord]) -> None:
    """Puts in how long a step took by the progress bar, since the record before. It is the mean of
    all where that is not known, or too short for whole seconds; then TRL's own timer goes first."""
    at = [(record.step, record.metrics.pop(ELAPSED_S)) for record in told]
    begun = [(0, 0.0)] if told and told[0].step == told[0].steps else at[:1]
    spent = [  # a bar that began again did so before as many steps as the record stands for
        (b[1], record.steps) if b < a or b[1] < a[1] else (b[1] - a[1], b[0] - a[0])
        for record, (a, b) in zip(told, itertools.pairwise([*begun, *at]), strict=True)
    ]
    known = [(took_s, of) for took_s, of in spent if of > 0 and took_s >= 0]
    if not known:
        return
    whole_s, steps = map(sum, zip(*known, strict=True))
    are_long = min(known)[0] >= _SURE_S
    for record, one in zip(told, spent, strict=True):
        took_s, of = one if are_long and one in known else (whole_s, steps)
        if are_long or _STEP_TIME not in record.metrics:
            record.metrics[_BY_BAR] = took_s / of


def _a_step(record: LogRecord) -> LogRecord:
    """A record whose blocks, which are sums over its steps, are means as its other figures are."""
    metrics = {
        name: value / record.steps if name in _BLOCKS or name.startswith(_GENERATING) else value
        for name, value in record.metrics.items()
    }
    return replace(record, metrics=metrics)


def _of_steps(found: Iterable[LogRecord]) -> Iterator[LogRecord]:
    """The records with TRL's own names, each at its step, with blocks on the way added up."""
    waiting: dict[str, float] = {}
    for record in found:
        metrics: dict[str, float] = {}
        for name, value in record.metrics.items():
            if name.startswith(_PROFILED):
                block = name.removeprefix(_PROFILED).partition(".")[2]
                waiting[block] = waiting.get(block, 0.0) + value
            else:
                metrics[name.removeprefix(_PREFIX)] = value
        numbers = (whole(record.metrics.get(name)) for name in _STEP_NAMES)
        stated = next((step for step in numbers if step is not None), None)
        metrics.pop("global_step", None)
        infinite = {name.removeprefix(_PREFIX): v for name, v in record.not_finite.items()}
        if metrics or infinite:
            step = record.step if stated is None else stated
            timed, waiting = waiting, {}
            yield LogRecord(step, {**timed, **metrics}, record.real_ns, infinite)
