"""What the analysis says of a run, as the timeline shows it: the verdict on each step, the path."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.critical_path import PathSegment
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Summary, summary_of
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
        places = np.array([place_of.get(key, -1) for key in keys], np.int64)  # -1: what is put last
        words = {title: [*words, None] for title, words in self.words.items()}
        figures = {title: np.append(values, np.nan) for title, values in self.figures.items()}
        return (
            *(scene.told(title, [of[n] for n in places]) for title, of in words.items()),
            *(scene.note(title, values[places]) for title, values in figures.items()),
        )


def find(run: Run) -> Findings:
    """Analyses a run: of one that stopped recording its whole steps."""
    analysis = RunAnalysis(run)
    summary, steps = summary_of(analysis, predict=False), analysis.steps
    windows = () if steps.whole_run else steps.windows
    times = summary.steps.times if windows else ()
    exposed = [
        {k: s / t.step_s for k, s in t.exposed_s.items() if t.step_s and not math.isnan(s)}
        for t in times
    ]
    leaders = [max(shares, key=lambda name: shares[name], default=None) for shares in exposed]
    figures: dict[str, list[float]] = {}
    if summary.goodput is not None:
        for name in ("useful_tokens_per_device_s", "useful_tokens", "trained_tokens"):
            goodput = [float(getattr(step, name)) for step in analysis.goodput_of_steps]
            figures[f"goodput.{name}"] = goodput
    for row in summary.stages:
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
        figures={name: np.array(values, np.float64) for name, values in figures.items()}
        if count
        else {},
        path=analysis.drawn_path,
    )


def _wall(summary: Summary) -> str:
    verdict = summary.verdict
    if verdict.alarms:
        return "no advice: something is wrong with the run"
    if verdict.first is None:
        return "no wall" if verdict.balanced else "cannot tell"
    return ", ".join(wall.name for wall in verdict.binding)
