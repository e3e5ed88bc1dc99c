"""Where the step goes, stage by stage and step by step; and where the wall-clock went."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rltrace.analysis.cascade import Cascade, SecondsOf
from rltrace.analysis.stages import StageRow, TypicalStep
from rltrace.analysis.summary import StepTimes, Summary
from rltrace.report import units
from rltrace.report.goodput_section import cascade_section, goodput_section
from rltrace.report.html import drawing as draw
from rltrace.report.html import parts
from rltrace.report.html.markup import NOTHING, Child, Html, join, prose, tag
from rltrace.report.own_figures_section import pointer
from rltrace.report.sections import stages_section
from rltrace.trace.vocabulary import Stage, word

_LEFT = 100.0
_ROW, _TOP = 24.0, 8.0
_LEVELS = 20  # degrees of how busy a stage was
_SEAM = 0.5  # by which neighbours overlap, or the ground would shine through


def step_part(summary: Summary) -> parts.Part:
    section = stages_section(summary, pointer(summary))
    pictures: list[Child] = []
    if (typical := summary.typical_step) is not None and typical.busy_shares:
        pictures.append(_waterfall(typical, summary))
    if not summary.steps.whole_run and summary.steps.times:
        pictures.append(_each_step(summary.steps.times))
    if section.grid is None:
        why = parts.missing(section.lines[0])
        return parts.part("step", "Where the step goes", section.title, why)
    return parts.of_section(section, "step", "Where the step goes", *pictures, cell=_cells(summary))


def _waterfall(typical: TypicalStep, summary: Summary) -> Html:
    """A row for each stage: stretches of equal degree as one rectangle."""
    stages = [word(stage) for stage in Stage if word(stage) in typical.busy_shares]
    bottom = _TOP + _ROW * len(stages) + 4
    axis = draw.Axis(0, 1, _LEFT, draw.RIGHT)
    drawn: list[Html] = []
    for n, stage in enumerate(stages):
        y, busy = _TOP + n * _ROW, np.asarray(typical.busy_shares[stage])
        wide, css = axis.length(1 / len(busy)), parts.css(stage)
        degrees = np.where(busy > 0, np.maximum(1, np.rint(busy * _LEVELS)), 0).astype(np.int64)
        shades = (
            draw.box(axis(a / len(busy)), y + 3, (b - a) * wide + _SEAM, _ROW - 6, f"{css} m{m}")
            for a, b, m in draw.stretches(degrees)
            if m
        )
        name = draw.label(_LEFT - 8, y + _ROW / 2 + 4, stage, "end", "name")
        drawn.append(tag("g", name, *shades, data_row=n))
    whole_run, length = summary.steps.whole_run, units.seconds(typical.step_s)
    of = "the whole run" if whole_run else f"step {typical.step}, of median length"
    tenths = {s: np.reshape(typical.busy_shares[s], (10, -1)).mean(axis=1) for s in stages}
    return parts.picture(
        key="waterfall",
        title="When each stage runs" if whole_run else "When each stage runs in a step",
        says="The stronger, the more of that moment any process is in the stage."
        + (parts.LAID_OUT if summary.run.durations_only else ""),
        drawing=draw.drawing(
            bottom + 40,
            draw.x_axis(axis, bottom, (0, 0.2, 0.4, 0.6, 0.8, 1), draw.percent, _TOP),
            tag("g", *drawn, class_="waterfall"),
            draw.label(axis(0.5), bottom + 34, f"{of}: {length}", "middle", "tick"),
            title="For each stage, when in a step it runs",
        ),
        columns=("stage", *(f"{10 * i} to {10 * i + 10} % of it" for i in range(10))),
        rows=[(stage, *(units.share(float(v)) for v in tenths[stage])) for stage in stages],
    )


def _each_step(times: Sequence[StepTimes]) -> Html:
    stages = [
        name
        for name in parts.COLOURED
        if name == parts.UNTRACED or any(time.exposed_s.get(name) for time in times)
    ]
    bars = draw.groups(times)
    means = {name: [_mean(bar, name) for bar in bars] for name in stages}
    totals = [sum(values) for values in zip(*means.values(), strict=True)]
    steady = [any(time.steady for time in bar) for bar in bars]
    end = draw.scale_end(totals, [s for s, usual in zip(totals, steady, strict=True) if usual])
    names = [draw.numbered([time.step for time in bar]) for bar in bars]
    columns = draw.Columns(names, "step", left=62, top=14, bottom=196)
    slow = sum(time.warmup for time in times)
    warm = f" The first {slow} (left of the line) are warm-up." if slow else ""
    edge = columns.x(slow / len(bars[0]))
    return parts.picture(
        key="each-step",
        title="What held each step up",
        says="Exposed time by stage; a bar's height is the step's length."
        f"{warm}{draw.said_of(bars, 'step', max(totals) > end)}",
        around=parts.stage_legend(stages),
        drawing=columns.drawing(
            columns.bars({parts.css(name): means[name] for name in stages}, end, 5),
            draw.line(edge, columns.top, edge, columns.bottom, "edge") if slow else None,
            title="Length of each step by the stage that held it up",
        ),
        columns=("step", "seconds", *stages),
        rows=[
            (name, *map(units.seconds, values))
            for name, *values in zip(names, totals, *means.values(), strict=True)
        ],
    )


def _mean(times: Sequence[StepTimes], stage: str) -> float:
    untraced = stage == parts.UNTRACED
    spent = (t.untraced_s if untraced else t.exposed_s.get(stage, 0.0) for t in times)
    return sum(spent) / len(times)


def _cells(summary: Summary) -> parts.Cell:
    """Draws into the table of stages how much of each was exposed, and how much overlapped."""
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


_LEAST_SHARE = 0.005
_LETTER = 6.3  # pixels


def goodput_part(summary: Summary) -> parts.Part:
    section, cascade = goodput_section(summary), summary.cascade
    if cascade is None:
        why = "an imported log tells no wall-clock" if summary.run.imported else "no step was begun"
        below = parts.missing(f"What goodput is made of is not known: {why}.")
    else:
        below = parts.under(cascade_section(cascade), _wall_clock(cascade))
    return parts.part("goodput", "Goodput", section.title, parts.told(section), below)


def _wall_clock(cascade: Cascade) -> Html | None:
    clock = cascade.wall_clock
    if not clock or not cascade.wall_s:
        return None
    return parts.picture(
        key="wall-clock",
        title=f"Where {units.seconds(cascade.wall_s)} of wall-clock went",
        says="Every second of the run has one reason; grey: no work of a stage held it up then.",
        drawing=_stacked(clock),
        columns=("reason", "time", "share"),
        rows=[(p.reason, units.seconds(p.wall_s), units.share(p.share)) for p in clock],
    )


def _stacked(spent: Sequence[SecondsOf]) -> Html:
    """One bar of shares, with the names of those that have room for them on two lines below it."""
    axis = draw.Axis(0, 1, 0, draw.WIDTH)
    drawn, names, at, free = [], [], 0.0, [0.0, 0.0]
    for n, part in enumerate(spent):
        if math.isnan(part.share) or part.share <= 0:
            continue
        x, wide = axis(at), axis.length(part.share)
        is_lost = part.lost or part.reason not in parts.COLOURED
        drawn.append(draw.box(x, 2, wide - 1, 30, "lost" if is_lost else parts.css(part.reason)))
        said = f"{part.reason} {units.share(part.share)}"
        needed = _LETTER * len(said) + 4
        begins = min(x, draw.WIDTH - needed)  # at the right edge a name ends where it would begin
        row = next((row for row in (0, 1) if begins >= free[row]), None)
        if part.share > _LEAST_SHARE and row is not None:
            drawn.append(draw.line(x + 0.5, 32, x + 0.5, 38 + 16 * row, "link"))
            names.append(draw.label(begins, 50 + 16 * row, said, css="tick over"))
            free[row] = begins + needed + 10
        drawn.append(draw.box(x, 0, wide, 68, "hit", data_row=n))
        at += part.share
    title = "Wall-clock of the run by reason"
    return draw.drawing(72 if free[1] else 56, *drawn, *names, title=title)
