"""Where a step, each step, and the wall-clock went, with pictures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from rltrace.analysis.figures.goodput_factors import Cascade
from rltrace.analysis.summary import StepTimes, Summary
from rltrace.analysis.timeline.intervals import Floats
from rltrace.analysis.timeline.stages import TypicalStep
from rltrace.report import units
from rltrace.report.full_report import stages_section
from rltrace.report.html import drawing as draw
from rltrace.report.html import parts
from rltrace.report.html.drawing import NOTHING, Child, Html, join, prose, tag
from rltrace.report.layout import listed
from rltrace.report.screen import UNTRACED
from rltrace.report.sections.evidence_sections import pointer
from rltrace.report.sections.goodput_section import cascade_section, goodput_section
from rltrace.trace.vocabulary import Stage, word

_LANE = 22.0
_LEAST_SHARE = 0.005
_EACH_STEP = "Length of each step by the stage that it waited for"
_GREYS = ("d9", "d7", "d5", "d3")
_SEAMS = 0.06  # of the step: in so many moments one stage may end and the next begin


def step_part(summary: Summary) -> Html:
    section = stages_section(summary, pointer(summary))
    pictures: list[Child] = []
    if summary.typical_step is not None and summary.typical_step.busy_shares:
        pictures.append(_waterfall(summary.typical_step, summary))
    if not summary.steps.whole_run and summary.steps.times:
        pictures.append(_each_step(summary.steps.times))
    if section.grid is None:
        return parts.unknown("step", section.title, section.lines[0])
    return parts.of_section("step", parts.with_rows(section, _keyed), *pictures)


def _waterfall(typical: TypicalStep, summary: Summary) -> Html:
    """A lane for each stage, or for several that are never at work at once."""
    names = [word(stage) for stage in Stage]
    shares = typical.busy_shares
    busy = {name: np.asarray(shares[name]) for name in names if name in shares}
    lanes: list[dict[str, Floats]] = []
    for stage, part in busy.items():
        at = (lane for lane in lanes if ((sum(lane.values()) > 0) & (part > 0)).mean() <= _SEAMS)
        if (lane := next(at, None)) is None:
            lanes.append(lane := {})
        lane[stage] = part
    whole_run, length = summary.steps.whole_run, units.seconds(typical.step_s)
    of = "the whole run" if whole_run else f"step {typical.step}, of median length"
    axis, times = draw.Axis(0, typical.step_s), draw.ticks(0, typical.step_s)
    show, base = draw.seconds_of(times), draw.line(0, 0, draw.WIDE, 0, "base")
    lines = [draw.line(axis(v), 0, axis(v), 5, "base") for v in times]
    words = [(axis(v), show(v)) for v in times]
    rows = {stage: n for n, stage in enumerate(busy)}
    tenths = {stage: np.reshape(part, (10, -1)).mean(axis=1) for stage, part in busy.items()}
    return parts.picture(
        key="waterfall",
        title="When each stage runs" if whole_run else "When each stage runs in a step",
        says="The stronger, the more of that moment any process is in the stage."
        + " From a log of durations: what ran when in a step is not known."
        * summary.run.durations_only,
        drawing=join(
            *(_lane(lane, rows) for lane in lanes),
            draw.plot(5, base, *lines, title="Time axis", below=words, of=f"{of}: {length}"),
        ),
        columns=("stage", *(f"{10 * i} to {10 * i + 10} % of it" for i in range(10))),
        rows=[(stage, *(units.share(float(v)) for v in part)) for stage, part in tenths.items()],
    )


def _lane(busy: dict[str, Floats], rows: dict[str, int]) -> Html:
    """The shorter a stage, the later it is drawn, or a longer one would cover it."""
    total = np.sum([*busy.values()], axis=0)
    drawn, wide = [], draw.WIDE / len(total)
    for stage in sorted(busy, key=lambda stage: -busy[stage].sum()):
        of = np.where(busy[stage] > 0, total, 0)
        cells = draw.heat([of], _LANE, wide, parts.css(stage))
        drawn.append(tag("g", cells, data_row=rows[stage]))
    ground = draw.box(0, 0, draw.WIDE, _LANE, "empty")
    shape = draw.shape(_LANE, ground, *drawn, title=f"When {listed([*busy])} ran")
    return tag("div", parts.stage_legend(busy), shape, class_="lane")


def _each_step(times: Sequence[StepTimes]) -> Html:
    told = {name for time in times for name, s in time.exposed_s.items() if s} | {UNTRACED}
    stages = [name for name in parts.COLOURED if name in told]
    bars = draw.groups(times)

    def mean(times: Sequence[StepTimes], stage: str) -> float:
        untraced = stage == UNTRACED
        spent = (t.untraced_s if untraced else t.exposed_s.get(stage, 0.0) for t in times)
        return sum(spent) / len(times)

    means = {name: [mean(bar, name) for bar in bars] for name in stages}
    totals = [sum(values) for values in zip(*means.values(), strict=True)]
    steady = [any(time.steady for time in bar) for bar in bars]
    end = draw.scale_end(totals, [s for s, usual in zip(totals, steady, strict=True) if usual])
    names = [draw.numbered([time.step for time in bar]) for bar in bars]
    columns = draw.ChartColumns(names, "step", high=180)
    slow = sum(time.warmup for time in times)
    warm = f" The first {slow} (left of the line) are warm-up." if slow else ""
    edge = columns.wide * slow / len(bars[0])
    line = draw.line(edge, 0, edge, columns.high, "edge") if slow else None
    of_stages = {parts.css(name): means[name] for name in stages}
    return parts.picture(
        key="each-step",
        title="What each step waited for",
        says="Exposed time by stage; a bar's height is the step's length."
        f"{warm}{draw.said_of(bars, 'step', max(totals) > end)}",
        around=parts.stage_legend(stages),
        drawing=columns.bars(of_stages, end, line, title=_EACH_STEP),
        columns=("step", "seconds", *stages),
        rows=[
            (name, *map(units.seconds, values))
            for name, *values in zip(names, totals, *means.values(), strict=True)
        ],
    )


def _keyed(row: tuple[str, ...]) -> tuple[str, ...]:
    key = tag("i", class_=f"key {parts.css(row[0])}") if row[0] in parts.COLOURED else NOTHING
    return join(key, prose(row[0])), *row[1:]


def goodput_part(summary: Summary) -> Html:
    section, cascade = goodput_section(summary), summary.cascade
    if cascade is None:
        why = "an imported log tells no wall-clock" if summary.run.imported else "no step was begun"
        below = parts.lines([f"What goodput is made of is not known: {why}."])
    else:
        below = parts.under(cascade_section(cascade), _wall_clock(cascade))
    return parts.part("goodput", section.title, parts.told(section), below)


def _wall_clock(cascade: Cascade) -> Html | None:
    spent = [one for one in cascade.wall_clock if one.share > 0]
    if not spent or not cascade.wall_s:
        return None
    greys, pieces = itertools.cycle(_GREYS), []
    for one in spent:
        is_lost = one.lost or one.reason not in parts.COLOURED
        pieces.append((f"lost {next(greys)}" if is_lost else parts.css(one.reason), one.share))
    rows = [(one.reason, units.seconds(one.wall_s), units.share(one.share)) for one in spent]
    told = [*zip(pieces, rows, strict=True)]
    return parts.picture(
        key="wall-clock",
        title=f"Where {units.seconds(cascade.wall_s)} of wall-clock went",
        says="Every second of the run has one reason. Grey: no work of a stage was on then.",
        drawing=parts.shares(told, "Wall-clock of the run by reason", _LEAST_SHARE),
        columns=("reason", "time", "share"),
        rows=rows,
    )
