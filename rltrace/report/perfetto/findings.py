"""What the analysis says of a run, as the timeline shows it: the verdict on each step, the path."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.activity import read_activity
from rltrace.analysis.critical_path import PathSegment, find_path
from rltrace.analysis.cut_short import whole_steps
from rltrace.analysis.goodput import step_goodput
from rltrace.analysis.stages import break_down
from rltrace.analysis.steps import find_steps
from rltrace.analysis.summary import Summary, summarize
from rltrace.report.perfetto.scene import Note, Scene
from rltrace.report.perfetto.tracks import Ints
from rltrace.trace.run import Run


@dataclass(frozen=True)
class Findings:
    """`words` and `figures` are by title and have a value for each step (None and NaN: unknown), in
    the order of `steps`, which are `(process, start_ns)`; `path` is empty where it is not known."""

    steps: tuple[tuple[int, int], ...]
    words: dict[str, list[str | None]]
    figures: dict[str, NDArray[np.float64]]
    path: tuple[PathSegment, ...]

    def notes(self, scene: Scene, process: NDArray[Any], start: Ints) -> tuple[Note, ...]:
        """What is known of the steps of these processes and beginnings."""
        place_of = {step: place for place, step in enumerate(self.steps)}
        keys = zip(process.tolist(), start.tolist(), strict=True)
        place = np.array([place_of.get(key, -1) for key in keys], np.int64)
        found = place >= 0
        notes = []
        for title, words in self.words.items():
            ids = np.array([scene.words.id(w) if w else 0 for w in words] or [0], np.int64)
            notes.append(Note(scene.titles.id(title), "word", ids[place], found & (ids[place] > 0)))
        for title, values in self.figures.items():
            value = values[place] if len(values) else np.full(len(place), np.nan)
            notes.append(Note(scene.titles.id(title), "double", value, found & ~np.isnan(value)))
        return tuple(notes)


def find(run: Run) -> Findings:
    """Analyses a run: of one that stopped recording its whole steps."""
    run = whole_steps(run)
    summary = summarize(run, predict=False)
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    windows = () if steps.whole_run else steps.windows
    path: tuple[PathSegment, ...] = ()
    if windows and not run.meta.get("imported"):
        found = find_path(run, activity, steps, break_down(activity, steps))
        path = () if isinstance(found, str) else found
    goodput = step_goodput(run, steps)
    times = summary.steps.times if windows else ()
    known = [{k: s for k, s in t.exposed_s.items() if not math.isnan(s)} for t in times]
    exposed = [
        {k: s / t.seconds for k, s in of.items() if t.seconds}
        for t, of in zip(times, known, strict=True)
    ]
    leaders = [max(shares, key=lambda name: shares[name], default=None) for shares in exposed]
    figures = {
        "goodput.useful_tokens_per_device_s": [g.useful_tokens_per_device_s for g in goodput],
        "goodput.useful_tokens": [float(g.useful_tokens) for g in goodput],
        "goodput.trained_tokens": [float(g.trained_tokens) for g in goodput],
    }
    if summary.goodput is None:
        figures = {}
    for row in summary.stages if not summary.steps.exposed_unknown else ():
        figures[f"exposed_share.{row.name}"] = [shares.get(row.name, 0.0) for shares in exposed]
    on_path = summary.critical_path
    if on_path is not None and on_path.is_traced:
        for share in on_path.shares:
            spent = [seconds.get(share.stage, 0.0) for seconds in on_path.steps_s]
            figures[f"critical_path_s.{share.stage}"] = spent
    count = len(windows)
    return Findings(
        steps=tuple((window.process, window.start_ns) for window in windows),
        words={
            "verdict.wall": [_wall(summary)] * count,
            "verdict.confidence": [summary.verdict.confidence] * count,
            "most_exposed": leaders,
            "warmup": ["yes" if window.warmup else None for window in windows],
        },
        figures={k: _known(v) for k, v in figures.items()} if count else {},
        path=path,
    )


def _wall(summary: Summary) -> str:
    verdict = summary.verdict
    if verdict.alarms:
        return "the run is not well"
    if verdict.first is None:
        return "nothing binds" if verdict.balanced else "cannot tell"
    return ", ".join(wall.name for wall in verdict.binding)


def _known(values: list[float]) -> NDArray[np.float64]:
    return np.array([v if math.isfinite(v) else math.nan for v in values], np.float64)
