"""OpenRLHF's logs: how long the parts of a step took, as the controller sees them (`timing/*`).

Logged since 0.9.6 (its asynchronous trainer: 0.9.7). Names are `train/...` and `eval/...` in
TensorBoard and wandb, bare in the console (read in its sources, 0.9.1 to 0.11.2).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from rltrace.adapters.openrlhf.tables import LABELS
from rltrace.importers.fitting import is_time, whole
from rltrace.importers.frameworks import check_framework
from rltrace.importers.log import (
    Log,
    Record,
    impossible,
    impossible_said,
    joined,
    out_of_order_said,
)
from rltrace.importers.reading import read_log
from rltrace.importers.run_writer import NEVER_LOGGED, ImportedRun, ImportedStep, step_end
from rltrace.trace.errors import RltraceError
from rltrace.trace.vocabulary import Stage

GENERATION, EXPERIENCE = "timing/generation", "timing/make_experience"
TRAIN, BROADCAST, STEP = "timing/ppo_train", "timing/broadcast", "timing/step_total"
PARTS = (GENERATION, EXPERIENCE, TRAIN, BROADCAST)
"""The timers of a step, in the order in which the synchronous trainer runs them."""

SETTINGS = {"colocated": re.compile(r"\bcolocate_all(?:_models)?=(True|False)\b")}
"""What wandb keeps of the configuration that tells the placement."""

_LOGGED_SINCE_0_9_8 = "rollout/num_samples"
_PREFIX = "train/"
_STEP_NAMES = ("global_step", "eval/global_step")  # wandb's own step counts its rows
_SUM = 1e-6  # TensorBoard keeps 24 bits of a number


def read(path: Path) -> ImportedRun:
    """Reads a log of OpenRLHF. Errors: `RltraceError` when there is nothing of its in it, or no
    times."""
    return lay_out(read_log(path, SETTINGS))


def lay_out(log: Log) -> ImportedRun:
    """The run that a log tells of. Errors: `RltraceError` when it is no log of OpenRLHF's PPO
    trainers with times in it."""
    records, _ = joined(_by_global_step(log.records))
    _check(log, records)
    timings = [_timings(record) for record in records]
    is_async = any(not _is_sum(timing) for timing in timings if STEP in timing)
    stages = {name: Stage[LABELS[name].upper()] for name in PARTS}
    if is_async:
        stages[BROADCAST] = Stage.WAIT
    steps = tuple(
        _step(record, timing, stages, is_async)
        for record, timing in zip(records, timings, strict=True)
    )
    names = {name for record in records for name in record.metrics}
    return ImportedRun(
        log=log,
        framework="openrlhf",
        version="0.9.8 or later" if _LOGGED_SINCE_0_9_8 in names else "0.9.6 or 0.9.7",
        trainer="PPOTrainerAsync" if is_async else "PPOTrainer",
        placement="async" if is_async else _PLACEMENTS.get(log.settings.get("colocated", ""), ""),
        steps=steps,
        not_logged=(*_unusable(records, timings, stages), *_not_logged(is_async)),
        notes=tuple(_figures(is_async, names)),
        oddities=tuple(_oddities(records, steps)),
    )


_PLACEMENTS = {"True": "colocated", "False": "disaggregated"}


def _by_global_step(records: tuple[Record, ...]) -> Iterator[Record]:
    """The records with the names that OpenRLHF itself uses, each at its step of training."""
    for record in records:
        metrics = {name.removeprefix(_PREFIX): v for name, v in record.metrics.items()}
        found = [whole(metrics.pop(name, None)) for name in _STEP_NAMES]
        stated = [step for step in found if step is not None]
        infinite = {name.removeprefix(_PREFIX): v for name, v in record.not_finite.items()}
        if metrics:
            yield Record(stated[0] if stated else record.step, metrics, record.real_ns, infinite)


def _check(log: Log, records: list[Record]) -> None:
    if not records:
        raise RltraceError(
            f"{log.path} holds no metrics of OpenRLHF: no "
            + ("“Global step 1: {...}”" if log.kind == "console log" else "numbers of a step")
            + log.what_was_skipped()
        )
    check_framework(log, "openrlhf")
    names = {name for record in records for name in record.metrics}
    if STEP in names:
        return
    if TRAIN in names:
        raise RltraceError(
            f"{log.path} has no {STEP}, as of the asynchronous trainer of OpenRLHF 0.9.6: how long "
            "a step took is not known"
        )
    if names & {"actor_lr", "critic_lr"}:
        raise RltraceError(
            f"{log.path} is of OpenRLHF, and has no times: it logs them since 0.9.6 "
            "(asynchronous: 0.9.7)"
        )
    kinds = sorted({name.split("/")[0] for name in names})
    raise RltraceError(
        f"{log.path} is no log of OpenRLHF's PPO trainers: it has no {STEP} (what it has begins "
        f"with {', '.join(kinds[:6])})"
    )


def _timings(record: Record) -> dict[str, float]:
    """The timers of a record in seconds, without those that no clock can have shown."""
    return {
        name: record.metrics[name]
        for name in (*PARTS, STEP)
        if is_time(record.metrics.get(name, -1.0))
    }


def _is_sum(timing: dict[str, float]) -> bool:
    """Whether `step_total` is what the synchronous trainer takes for it."""
    parts_s = sum(timing.get(name, 0.0) for name in PARTS)
    return math.isclose(timing[STEP], parts_s, rel_tol=_SUM)


def _step(
    record: Record, timing: dict[str, float], stages: dict[str, Stage], is_async: bool
) -> ImportedStep:
    aside = (GENERATION,) if is_async else ()
    inside = [name for name in PARTS if name not in aside]
    return ImportedStep.of(record, timing.get(STEP), stages, timing, before=aside, inside=inside)


def _unusable(
    records: list[Record], timings: list[dict[str, float]], stages: dict[str, Stage]
) -> Iterator[tuple[Stage | None, str]]:
    usable = {name for timing in timings for name in timing}
    for name in impossible(records, lambda name: name in PARTS):
        if name not in usable:
            yield stages[name], f"what the log has as {name} is never a usable time"


def _not_logged(is_async: bool) -> Iterator[tuple[Stage | None, str]]:
    if is_async:
        yield Stage.SYNC, f"it takes at most {BROADCAST}, which holds waiting for the engines too"
    scored = f"functions, servers and agents score within {GENERATION}, reward models within "
    yield Stage.REWARD, scored + EXPERIENCE
    yield Stage.ENV, f"agents step within {GENERATION}"
    for stage in (Stage.REFERENCE, Stage.LOGPROB, Stage.VALUE):
        yield stage, f"its forward passes run within {EXPERIENCE}, with all others"
    yield Stage.SWITCH, "engines and models wake and sleep within other timers"
    yield Stage.CHECKPOINT, "OpenRLHF does not time it"
    yield Stage.EVAL, "OpenRLHF does not time it"
    yield None, "lag and length of each trajectory (counters: mean length of a step, no lag)"
    yield from ((None, what) for what in NEVER_LOGGED)


def _figures(is_async: bool, names: set[str]) -> Iterator[tuple[str, str]]:
    """What OpenRLHF's figures do not say by their names."""
    if is_async:
        yield (
            BROADCAST,
            "from before the lock: it waits there for the generation that is running (or, with "
            "partial rollout, for the engines to pause)",
        )
        yield (
            GENERATION,
            "of the batch that the step trains on, by another process: laid out to end when the "
            "trainer's own work begins, and over then or before",
        )
        yield STEP, "evaluation, and what the trainer waits for it, is left out"
    else:
        yield (
            STEP,
            "the sum of the four timers: what runs between them is in none, nor a checkpoint",
        )
    if "rollout/response_length_mean" in names:
        yield (
            "rollout/response_length_mean",
            "from the first to the last generated token: what an environment said between counts",
        )


def _oddities(records: list[Record], steps: tuple[ImportedStep, ...]) -> Iterator[str]:
    end = step_end(steps)
    yield f"times are laid out from durations: the order is OpenRLHF's, a step's end is {end}"
    yield from impossible_said(impossible(records, lambda name: name in (*PARTS, STEP)))
    untimed = [s.number for s in steps if s.seconds is None and TRAIN in s.counters]
    if untimed:
        shown = ", ".join(map(str, untimed[:5]))
        yield f"steps without {STEP}, of which only counters are kept: {shown}"
    apart = [b.number - a.number for a, b in pairwise(s for s in steps if s.seconds is not None)]
    if any(steps_on > 1 for steps_on in apart):
        yield "steps are missing in it (logging_steps?): they show as time between the others"
    yield from out_of_order_said(r for r in records if TRAIN in r.metrics)
