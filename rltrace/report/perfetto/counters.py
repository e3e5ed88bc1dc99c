"""Counter tracks: readings of the run, and what follows from its samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rltrace.report.perfetto.scene import OPEN, Ints, Points, Scene, factor
from rltrace.report.perfetto.slices import COUNTERS
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Fate

_SQL = packaged_toml("report/perfetto/slices.toml")
Values = NDArray[np.float64]
Series = tuple[int | None, str, str, Ints, Values]  # process (None: the run), name, unit, readings
IN_FLIGHT, OF_PROCESS = "trajectories in flight", "in flight here"
WAITING = "samples waiting for the learner"
LARGEST_LAG, MEAN_LAG = "lag of what is trained on: largest", "lag of what is trained on: mean"

# The unit that the last word of a counter's name states.
_UNITS = {"bytes": "bytes", "ns": "ns", "seconds": "s", "hz": "Hz"}
_UNITS |= {"percent": "%", "watts": "W", "joules": "J"}


def readings(scene: Scene, run: OpenedRun, texts: dict[int, str]) -> Points:
    columns = run.ask_columns(
        "SELECT process, counter, device, time_ns, value FROM raw_samples WHERE NOT isnan(value)"
    )

    def track(process: int, counter: int, device: int) -> int:
        name = texts.get(counter, "?")
        unit = _UNITS.get(name.rpartition("_")[2], "")
        return scene.row(process, name if device < 0 else f"{name} {device}", unit=unit)

    keys = (np.asarray(columns[c]) for c in ("process", "counter", "device"))
    time, value = np.asarray(columns["time_ns"]), np.asarray(columns["value"], np.float64)
    return Points(scene.each(track, *keys), time, value)


def derived(scene: Scene, run: OpenedRun) -> list[Points]:
    found: list[Points] = []
    for process, name, unit, time, value in (*_in_flight(run), *_waiting(run), *_lags(run)):
        if len(time):
            track = scene.row(process, name, COUNTERS + len(found), unit)
            found.append(Points(np.full(len(time), track), time, value))
    return found


def _in_flight(run: OpenedRun) -> Iterator[Series]:
    """Of the whole run, and of each process where several generate."""
    columns = run.ask_columns("SELECT process, start_ns, end_ns FROM raw_trajectories")
    process, start, end = (np.asarray(columns[c]) for c in ("process", "start_ns", "end_ns"))
    processes, number = factor(process)
    end = np.where(end < 0, OPEN, np.maximum(start, end))
    yield None, IN_FLIGHT, "", *_level(start, end)
    for nth, one in enumerate(processes.tolist() if len(processes) > 1 else ()):
        mine = number == nth
        yield one, OF_PROCESS, "", *_level(start[mine], end[mine])


def _waiting(run: OpenedRun) -> Iterator[Series]:
    """Samples that were generated and not yet met by the learner, of those that it met."""
    columns = run.ask_columns(_SQL["waited"])
    ready, used = (np.asarray(columns[c]) for c in ("ready_ns", "used_ns"))
    yield None, WAITING, "", *_level(ready, used)


def _level(start: Ints, end: Ints) -> tuple[Ints, Values]:
    """How many intervals hold each moment at which that changes."""
    ended = end[end != OPEN]
    time = np.concatenate([start, ended])
    change = np.concatenate([np.ones(len(start), np.int64), np.full(len(ended), -1, np.int64)])
    order = np.argsort(time, kind="stable")
    time, level = time[order], np.cumsum(change[order])
    last = np.append(time[1:] != time[:-1], True)[: len(time)]
    return time[last], level[last].astype(np.float64)


def _lags(run: OpenedRun) -> Iterator[Series]:
    """Of the samples of each update that are trained on, when the learner took the first."""
    columns = run.ask_columns(_SQL["lags"].format(Fate=Fate))
    time = np.asarray(columns["time_ns"])
    for name, column in ((LARGEST_LAG, "largest"), (MEAN_LAG, "mean")):
        yield None, name, "versions", time, np.asarray(columns[column], np.float64)
