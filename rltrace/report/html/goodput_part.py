"""Goodput in words, and where the wall-clock went."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rltrace.analysis.cascade import Cascade
from rltrace.analysis.summary import Summary
from rltrace.report import units
from rltrace.report.goodput_section import cascade_section, goodput_section
from rltrace.report.html import parts
from rltrace.report.html.drawing import WIDTH, Axis, box, drawing, label, line
from rltrace.report.html.markup import Html

_LEAST_SHARE = 0.005
_LETTER = 6.3  # pixels


def goodput_part(summary: Summary) -> parts.Part:
    section, cascade = goodput_section(summary), summary.cascade
    if cascade is None:
        why = "an imported log tells no wall-clock" if summary.run.imported else "no step was begun"
        below = parts.missing(f"What goodput is made of is not known: {why}.")
    else:
        clock = _wall_clock(cascade)
        shown = parts.picture(clock) if clock else None
        below = parts.under(cascade_section(cascade), shown)
    return parts.part("goodput", "Goodput", section.title, parts.told(section), below)


def _wall_clock(cascade: Cascade) -> parts.Picture | None:
    if not cascade.seconds or not cascade.wall_s:
        return None
    spent = []
    for p in cascade.seconds:
        colour = "lost" if p.lost or p.reason not in parts.COLOURED else parts.css(p.reason)
        spent.append((p.reason, p.seconds, p.share, colour))
    return parts.Picture(
        key="wall-clock",
        title=f"Where {units.seconds(cascade.wall_s)} of wall-clock went",
        says="Every second of the run has one reason; grey: no work of a stage held it up then.",
        drawing=_stacked([(name, share, kind) for name, _, share, kind in spent],
                         "Wall-clock of the run by reason"),
        columns=("reason", "time", "share"),
        rows=[(name, units.seconds(s), units.share(share)) for name, s, share, _ in spent],
    )  # fmt: skip


def _stacked(shares: Sequence[tuple[str, float, str]], title: str) -> Html:
    """One bar of shares, with the names of those that have room for them on two lines below it."""
    axis = Axis(0, 1, 0, WIDTH)
    drawn, names, at, free = [], [], 0.0, [0.0, 0.0]
    for n, (name, share, kind) in enumerate(shares):
        if math.isnan(share) or share <= 0:
            continue
        x, wide = axis(at), axis.length(share)
        drawn.append(box(x, 2, max(0.5, wide - 1), 30, kind))
        said = f"{name} {units.share(share)}"
        needed = _LETTER * len(said) + 4
        begins = min(x, WIDTH - needed)  # at the right edge a name ends where it would else begin
        row = next((row for row in (0, 1) if begins >= free[row]), None)
        if share > _LEAST_SHARE and row is not None:
            drawn.append(line(x + 0.5, 32, x + 0.5, 38 + 16 * row, "link"))
            names.append(label(begins, 50 + 16 * row, said, css="tick over"))
            free[row] = begins + needed + 10
        drawn.append(box(x, 0, wide, 68, "hit", data_row=n))
        at += share
    return drawing(72 if free[1] else 56, *drawn, *names, title=title)
