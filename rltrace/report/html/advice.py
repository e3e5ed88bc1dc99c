"""What to do and the eight walls: tables with each prediction and cost drawn into its row."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rltrace.analysis.fixes import Fix
from rltrace.analysis.verdict import Verdict
from rltrace.analysis.walls.wall import CANNOT_TELL, LIKELY, Wall
from rltrace.analysis.whatif.predict import Estimate
from rltrace.report.html.drawing import Axis, box, line
from rltrace.report.html.markup import NOTHING, Child, Html, join, prose, tag
from rltrace.report.html.parts import Part, missing, of_section, part
from rltrace.report.walls_section import fixes_section, walls_section

_WIDE, _HIGH = 190.0, 22.0


def fixes_part(verdict: Verdict) -> Part:
    """The fixes, best first, with the range of each prediction."""
    section = fixes_section(verdict)
    if section is None:
        why = f"which wall binds is open ({verdict.because})" if not verdict.first else "none known"
        return part("fixes", "What to do", "What to do", missing(f"No fix is advised: {why}."))
    if section.grid is None:
        return of_section(section, "fixes", "What to do")
    shown = verdict.fixes[: len(section.grid.rows)]
    axis = _gain_axis(shown)
    last = len(section.grid.columns) - 1

    def cell(row: int, column: int, said: str) -> Child:
        if column == last and (gain := shown[row].goodput_gain) is not None:
            return tag("span", _range(gain, axis), prose(said), class_="drawn")
        return None

    return of_section(section, "fixes", "What to do", cell=cell)


def _gain_axis(fixes: Sequence[Fix]) -> Axis:
    ends = [x - 1 for fix in fixes if (g := fix.goodput_gain) for x in (g.low, g.high)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    return Axis(low, high if high > low else low + 1, 6, _WIDE - 6)


def _range(gain: Estimate, axis: Axis) -> Html:
    """The predicted gain and its range; the line is no gain."""
    low, middle, high = (axis(x - 1) for x in (gain.low, gain.middle, gain.high))
    kind = "gain" if gain.middle >= 1 else "loss"
    return _in_cell(
        line(axis(0), 2, axis(0), _HIGH - 2, "zero"),
        box(low, _HIGH / 2 - 4, high - low, 8, f"range {kind}"),
        tag("circle", cx=middle, cy=_HIGH / 2, r=4, class_=f"dot {kind}"),
    )


def walls_part(verdict: Verdict) -> Part:
    """All eight walls, the dearest first."""
    walls = verdict.walls
    axis = Axis(0, max([0.05, *(w.cost.share for w in walls if w.cost.known)]), 1, _WIDE - 40)

    def cell(row: int, column: int, said: str) -> Child:
        wall = walls[row]
        if column == 1 and wall.cost.known:
            return tag("span", _cost(wall, axis, wall in verdict.binding), prose(said),
                       class_="drawn")  # fmt: skip
        if column == 3:
            mood = {LIKELY: "sure", CANNOT_TELL: "open"}.get(said, "unsure")
            return tag("span", said, class_=f"chip {mood}")
        return None

    return of_section(walls_section(verdict), "walls", "Walls", cell=cell)


def _cost(wall: Wall, axis: Axis, binds: bool) -> Html:
    """The cost as a bar and its interval as a line."""
    cost = wall.cost
    whisker = NOTHING
    if not math.isnan(cost.low):
        low, high = axis(cost.low), min(axis(cost.high), _WIDE - 2)
        whisker = join(
            line(low, _HIGH / 2, high, _HIGH / 2, "whisker"),
            *(line(x, _HIGH / 2 - 4, x, _HIGH / 2 + 4, "whisker") for x in (low, high)),
        )
    height, top = _HIGH - 8, 4
    bar = box(axis(0), top, axis.length(cost.share), height, "bar binds" if binds else "bar")
    return _in_cell(bar, whisker)


def _in_cell(*children: Child) -> Html:
    """A small drawing beside the text that says the same."""
    return tag("svg", *children, viewBox=f"0 0 {_WIDE:g} {_HIGH:g}", width=f"{_WIDE:g}",
               height=f"{_HIGH:g}", class_="in-cell", aria_hidden="true")  # fmt: skip
