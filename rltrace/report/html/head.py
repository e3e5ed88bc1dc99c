"""The top of a page: the verdict, what to do, the walls."""

from __future__ import annotations

import math
from datetime import datetime, timezone

from rltrace.analysis.stats.estimate import Estimate
from rltrace.analysis.summary import Summary
from rltrace.analysis.verdict import Verdict
from rltrace.analysis.walls.wall import CANNOT_TELL, LIKELY, WEAK, Wall
from rltrace.report import run_lines, verdict
from rltrace.report.html.drawing import Axis, box, in_cell, line
from rltrace.report.html.markup import NOTHING, Child, Html, join, prose, sentence, tag
from rltrace.report.html.parts import Part, of_section, unknown
from rltrace.report.layout import labelled, listed
from rltrace.report.walls_section import fixes_section, walls_section

_ADVICE = ("first: ", "do nothing", "no fix is known")
_MOODS = {LIKELY: "sure", WEAK: "unsure"}


def head_part(summary: Summary) -> Part:
    found = summary.verdict
    mood = "alarm" if found.alarms else _MOODS.get(found.confidence, "open")
    said = "not well" if found.alarms else "balanced" if found.balanced else found.confidence
    command, facts = run_lines.facts(summary)
    sentences = list(verdict.evidence(summary))
    # What to do before why: who has five seconds reads this.
    advice = [tag("p", sentence(s), class_="advice") for s in sentences if s.startswith(_ADVICE)]
    evidence = [tag("li", sentence(s)) for s in sentences if not s.startswith(_ADVICE)]
    warnings = [tag("li", prose(one)) for one in run_lines.warnings(summary)]
    body = tag(
        "section",
        tag("p", "Verdict ", tag("span", said, class_=f"chip {mood}"), class_="eyebrow"),
        tag("h1", sentence(verdict.headline(summary)), id="verdict-heading"),
        tag("ul", *warnings, class_="warnings", aria_label="warnings") if warnings else None,
        *advice,
        tag("ul", *evidence, class_="evidence") if evidence else None,
        _unseen(summary),
        tag("p", tag("code", command), class_="command"),
        tag("p", prose(facts), _began(summary), class_="facts"),
        id="verdict",
        class_=mood,
        aria_labelledby="verdict-heading",
    )
    return Part("verdict", "Verdict", body)


def _began(summary: Summary) -> Html:
    run = summary.run
    if not run.start_ns:
        return NOTHING
    began = datetime.fromtimestamp(run.start_ns / 1e9, timezone.utc)
    version = f" · rltrace {run.rltrace_version}" if run.rltrace_version else ""
    return join(f" · began {began:%Y-%m-%d %H:%M} UTC{version}")


def _unseen(summary: Summary) -> Html:
    """What the verdict was reached without."""
    names = [labelled(stage.name, stage.symbol) for stage in summary.coverage.unseen]
    if not names:
        return NOTHING
    where = tag("a", "why", href="#unseen")
    return tag("p", prose(f"Not seen: {listed(names)}"), " (", where, ").", class_="facts")


# --- what to do, and the walls: each prediction and cost is drawn into its row

_WIDE, _HIGH = 190.0, 22.0


def fixes_part(verdict: Verdict) -> Part:
    """The fixes, best first, with the range of each prediction."""
    section = fixes_section(verdict)
    if section is None:
        why = f"which wall binds is open ({verdict.because})" if not verdict.first else "none known"
        return unknown("fixes", "What to do", f"No fix is advised: {why}.")
    if section.grid is None:
        return of_section(section, "fixes", "What to do")
    shown = verdict.fixes[: len(section.grid.rows)]
    ends = [x - 1 for fix in shown if (g := fix.goodput_gain) for x in (g.low, g.high)]
    least, most = min([0.0, *ends]), max([0.0, *ends])
    axis = Axis(least, most if most > least else least + 1, 6, _WIDE - 6)
    last = len(section.grid.columns) - 1

    def cell(row: int, column: int, said: str) -> Child:
        if column == last and (gain := shown[row].goodput_gain) is not None:
            return tag("span", _range(gain, axis), prose(said), class_="drawn")
        return None

    return of_section(section, "fixes", "What to do", cell=cell)


def _range(gain: Estimate, axis: Axis) -> Html:
    """The predicted gain and its range; the line is no gain."""
    low, middle, high = (axis(x - 1) for x in (gain.low, gain.value, gain.high))
    kind = "gain" if gain.value >= 1 else "loss"
    return in_cell(
        _WIDE,
        _HIGH,
        line(axis(0), 2, axis(0), _HIGH - 2, "zero"),
        box(low, _HIGH / 2 - 4, high - low, 8, f"range {kind}"),
        tag("circle", cx=middle, cy=_HIGH / 2, r=4, class_=f"dot {kind}"),
    )


def walls_part(verdict: Verdict) -> Part:
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
    return in_cell(_WIDE, _HIGH, bar, whisker)
