"""Where the step goes: a usual step, every step one by one, and the stages in figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rltrace.analysis.stages import StageRow, TypicalStep
from rltrace.analysis.summary import StepTimes, Summary
from rltrace.report import units
from rltrace.report.html import drawing as draw
from rltrace.report.html import parts
from rltrace.report.html.markup import NOTHING, Child, Html, join, prose, tag
from rltrace.report.own_figures_section import pointer
from rltrace.report.sections import stages_section
from rltrace.trace.vocabulary import Stage, word

_LEFT, _RIGHT = 100.0, draw.WIDTH - 10
_ROW, _TOP = 24.0, 8.0
_LEVELS = 20  # degrees of how busy a stage was
_SEAM = 0.5  # by which neighbours overlap, or the ground would shine through
_FAR = 1.6


def step_part(summary: Summary) -> parts.Part:
    section = stages_section(summary, pointer(summary))
    pictures: list[Child] = []
    if summary.typical is not None and summary.typical.busy:
        pictures.append(parts.picture(_waterfall(summary.typical, summary)))
    if not summary.steps.whole_run and summary.steps.times:
        pictures.append(parts.picture(_each_step(summary.steps.times)))
    if section.grid is None:
        return parts.part(
            "step", "Where the step goes", section.title, parts.missing(section.lines[0])
        )
    return parts.of_section(section, "step", "Where the step goes", *pictures, cell=_cells(summary))


def _waterfall(typical: TypicalStep, summary: Summary) -> parts.Picture:
    """A row for each stage: stretches of equal degree as one rectangle."""
    stages = [word(stage) for stage in Stage if word(stage) in typical.busy]
    height = _TOP + _ROW * len(stages) + 44
    axis = draw.Axis(0, 1, _LEFT, _RIGHT)
    drawn: list[Html] = []
    for n, stage in enumerate(stages):
        y, busy = _TOP + n * _ROW, np.asarray(typical.busy[stage])
        width = (_RIGHT - _LEFT) / len(busy)
        degrees = np.where(busy > 0, np.maximum(1, np.rint(busy * _LEVELS)), 0).astype(np.int64)
        shades = [
            draw.box(_LEFT + a * width, y + 3, (b - a) * width + _SEAM, _ROW - 6,
                f"{parts.css(stage)} m{degree}")
            for a, b, degree in draw.stretches(degrees)
            if degree
        ]  # fmt: skip
        name = draw.label(_LEFT - 8, y + _ROW / 2 + 4, stage, "end", "name")
        drawn.append(tag("g", name, *shades, data_row=n))
    whole_run = summary.steps.whole_run
    of = "the whole run" if whole_run else f"step {typical.step}, of median length"
    return parts.Picture(
        key="waterfall",
        title="When each stage runs" if whole_run else "When each stage runs in a step",
        says="The stronger, the more of that moment any process is in the stage."
        + (parts.LAID_OUT if summary.run.laid_out else ""),
        drawing=draw.drawing(
            height,
            draw.x_axis(axis, height - 40, (0, 0.2, 0.4, 0.6, 0.8, 1), draw.percent, _TOP),
            tag("g", *drawn, class_="waterfall"),
            draw.label((_LEFT + _RIGHT) / 2, height - 6, f"{of}: {units.seconds(typical.seconds)}",
                "middle", "tick"),
            title="For each stage, when in a step it runs",
        ),
        columns=("stage", *(f"{10 * i} to {10 * i + 10} % of it" for i in range(10))),
        rows=[
            (stage, *(units.share(float(v)) for v in
                      np.asarray(typical.busy[stage]).reshape(10, -1).mean(axis=1)))
            for stage in stages
        ],
    )  # fmt: skip


def _each_step(times: Sequence[StepTimes]) -> parts.Picture:
    stages = [
        name
        for name in parts.COLOURED
        if name == parts.UNATTRIBUTED or any(time.exposed_s.get(name) for time in times)
    ]
    bars = draw.groups(len(times), parts.MOST_BARS)
    means = [_means([times[i] for i in bar], stages) for bar in bars]
    totals = [sum(values) for values in means]
    top = _height_of(totals, [not any(times[i].steady for i in bar) for bar in bars])
    height, bottom, left = 230.0, 196.0, 62.0
    x = draw.Axis(0, max(draw.FEWEST_BARS, len(bars)), left, _RIGHT)
    y = draw.Axis(0, top, bottom, 14)
    gap = min(1.5, 0.15 * (x(1) - left))
    drawn: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in stages}
    cut = []
    for n, values in enumerate(means):
        at, wide = x(n) + gap / 2, x(1) - left - gap
        base = 0.0
        for name, value in zip(stages, values, strict=True):
            high = min(base + value, top)
            if value > 0 and base < top:
                drawn[name].append((at, y(high), wide, y(base) - y(high)))
            base += value
        if base > top * 1.0001:
            cut.append(draw.label(at + wide / 2, 10, "▲", "middle", "tick"))
    seconds = draw.ticks(0, top, 5)
    slow = sum(time.warmup for time in times)
    grouped = f" Each bar is the mean of up to {len(bars[0])} steps." if len(bars[0]) > 1 else ""
    above = " ▲: longer than the scale." if cut else ""
    warm = f" The first {slow} (left of the line) are warm-up." if slow else ""
    edge = x(slow / len(bars[0])) if slow else 0.0
    steps = [draw.numbered([times[i].step for i in bar]) for bar in bars]
    return parts.Picture(
        key="each-step",
        title="What held each step up",
        says=f"Exposed time by stage; a bar's height is the step's length.{warm}{grouped}{above}",
        around=parts.stage_legend(stages),
        drawing=draw.drawing(
            height,
            draw.y_axis(y, left, _RIGHT, seconds, draw.seconds_of(seconds)),
            *(draw.boxes(drawn[name], parts.css(name)) for name in stages),
            *cut,
            draw.line(edge, 14, edge, bottom, "edge") if slow else None,
            draw.some(steps, left, x(1) - left, bottom + 16),
            draw.label((left + _RIGHT) / 2, height - 2, "step", "middle", "tick"),
            draw.hits(left, x(1) - left, len(bars), 0, bottom),
            title="Length of each step by the stage that held it up",
        ),
        columns=("step", "seconds", *stages),
        rows=[
            (step, units.seconds(total), *map(units.seconds, values))
            for step, total, values in zip(steps, totals, means, strict=True)
        ],
    )  # fmt: skip


def _means(times: Sequence[StepTimes], stages: Sequence[str]) -> list[float]:
    return [
        sum(
            t.unattributed_s if name == parts.UNATTRIBUTED else t.exposed_s.get(name, 0.0)
            for t in times
        )
        / len(times)
        for name in stages
    ]


def _height_of(totals: Sequence[float], warm: Sequence[bool]) -> float:
    """The top of the scale: the longest bar, unless it is far longer than nearly all others."""
    usual = [total for total, slow in zip(totals, warm, strict=True) if not slow] or list(totals)
    cap = _FAR * float(np.quantile(usual, 0.98))
    return min(max(totals), cap) * 1.04 or 1.0


def _cells(summary: Summary) -> parts.Cell:
    """Draws into the table of stages how much of each was exposed, and how much hidden."""
    step_s = summary.steps.step_s.mean
    longest = (row.tau_s.mean for row in summary.stages if row.tau_s.n)
    axis = draw.Axis(0, max([step_s, *longest]), 0, 160)

    def cell(row: int, column: int, said: str) -> Child:
        stages = summary.stages
        if column == 0:
            name = stages[row].name if row < len(stages) else said
            key = tag("i", class_=f"key {parts.css(name)}")
            return None if name == "step" else join(key, prose(said))
        if column == 7 and row < len(stages):
            return tag("span", _bar(stages[row], axis), prose(said), class_="drawn")
        return None

    return cell


def _bar(row: StageRow, axis: draw.Axis) -> Html:
    exposed, tau = row.exposed_s.mean, row.tau_s.mean
    if math.isnan(exposed) or math.isnan(tau):
        return NOTHING
    return draw.in_cell(
        162,
        22,
        draw.box(0, 5, axis.length(tau), 12, f"{parts.css(row.name)} hidden-part"),
        draw.box(0, 5, axis.length(exposed), 12, parts.css(row.name)) if exposed else None,
    )
