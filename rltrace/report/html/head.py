"""The first screen of a page or notebook; then the walls and the fixes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from rltrace import dashboards
from rltrace.analysis.fixes.fixes import Fix
from rltrace.analysis.summary import Summary, Verdict
from rltrace.analysis.walls.wall import CANNOT_TELL, LIKELY
from rltrace.report import run_lines, screen, units
from rltrace.report.html import parts
from rltrace.report.html.drawing import NOTHING, Child, Html, interval, join, prose, sentence, tag
from rltrace.report.layout import numbers, table
from rltrace.report.sections import verdict_section
from rltrace.report.sections.verdict_section import best_fix, gain_words, sentences, setting_words


def asset(name: str) -> str:
    """The text of a file of `dashboards/report/`."""
    return Path(dashboards.folder("report"), name).read_text(encoding="utf-8")


def in_notebook(summary: Summary) -> str:
    """The first screen with its style, to stand in a page of somebody else."""
    style = tag("style", Html(asset("screen.css")))
    return tag("div", style, answer(summary), class_="rltrace")


def answer(summary: Summary) -> Html:
    """How the run ended, what is wrong with it, the wall, what to try first, where a step goes."""
    run, command = summary.run, summary.run.command
    warnings = [tag("li", sentence(one)) for one in run_lines.warnings(summary)]
    first, *others = sentences(summary)
    return tag(
        "section",
        tag("p", tag("b", "rltrace"), " · ", prose(run.id), class_="run-id"),
        tag("p", tag("code", prose(screen.brief(command))), class_="command") if command else None,
        tag("p", sentence(screen.what_ran(summary)), class_="facts"),
        tag("ul", *warnings, class_="warnings", aria_label="warnings") if warnings else None,
        tag("h1", sentence(first), id="answer-heading"),
        *(tag("p", sentence(one)) for one in others),
        _try_first(summary),
        _step(summary),
        id="answer",
        class_="answer",
        aria_labelledby="answer-heading",
    )


def _try_first(summary: Summary) -> Html:
    best = best_fix(summary.verdict)
    if summary.verdict.alarms or best is None:
        return NOTHING
    check: Child = None
    if best.setting:
        command, takes = screen.check_of(summary, best)
        check = tag("p", "Check it: ", parts.copied(command), f" {takes}", class_="check")
    return tag(
        "div",
        tag("p", tag("b", "Try first: "), prose(best.sized), class_="label"),
        tag("p", _setting(best), class_="setting") if best.setting else None,
        tag("p", sentence(f"predicted: {screen.effect(summary, best)}"), class_="effect"),
        check,
        class_="try",
    )


def _setting(fix: Fix) -> Html:
    setting = setting_words(fix)
    return join(parts.copied(setting), prose(screen.how(fix).removeprefix(setting)))


def _step(summary: Summary) -> Html:
    found = screen.where(summary)
    if found is None:
        return NOTHING
    pieces = [
        ((parts.css(row.name), row.share),
         (row.name, units.seconds(row.exposed_s), units.share(row.share)))
        for row in found.rows
    ]  # fmt: skip
    return tag(
        "div",
        tag("p", tag("b", found.title), " ", tag("b", found.length), f" {found.sure}".rstrip(),
            class_="label"),
        parts.shares(pieces, f"{found.title}, by stage"),
        tag("p", sentence(found.beside), class_="facts") if found.beside else None,
        class_="step",
    )  # fmt: skip


def walls_part(verdict: Verdict) -> Html:
    walls = {wall.name: wall for wall in verdict.walls}
    known = [wall.cost for wall in verdict.walls if wall.cost.known]
    ends = 0.0, max([0.05, *(max(cost.share, cost.high) for cost in known)])

    def row(cells: tuple[str, ...]) -> tuple[str, ...]:
        wall = walls[cells[0]]
        cost, css = wall.cost, "binds" if wall in verdict.binding else "bar"
        low, high = (cost.share if math.isnan(x) else x for x in (cost.low, cost.high))
        drawn = interval(ends, low, cost.share, high, css) if cost.known else NOTHING
        mood = {LIKELY: "sure", CANNOT_TELL: "open"}.get(wall.confidence, "unsure")
        sure = tag("span", wall.confidence, class_=f"chip {mood}")
        return cells[0], _drawn(drawn, cells[1]), cells[2], sure

    return parts.of_section("walls", parts.with_rows(verdict_section.walls_section(verdict), row))


def _drawn(drawing: Html, said: str) -> Html:
    return tag("span", drawing, sentence(said), class_="drawn")


def fixes_part(summary: Summary) -> Html:
    """All fixes, best first: the section on them with the step before and after."""
    found, section = summary.verdict, verdict_section.fixes_section(summary.verdict)
    if section is None:
        return parts.unknown("fixes", "Fixes", next(sentences(summary)))
    gains = [fix.goodput_gain for fix in found.fixes if fix.goodput_gain is not None]
    ends = min([0.0, *(gain.low - 1 for gain in gains)]), max([1e-9, *(g.high - 1 for g in gains)])
    rows = []
    for number, fix in enumerate(found.fixes, 1):
        setting = tag("p", _setting(fix), class_="setting") if fix.setting else None
        name = join(tag("b", prose(f"{number}. {fix.sized}")), setting)
        drawn = NOTHING
        if (gain := fix.goodput_gain) is not None:
            low, middle, high = (x - 1 for x in (gain.low, gain.value, gain.high))
            drawn = interval(ends, low, middle, high, "gain" if middle >= 0 else "loss")
        step = screen.step_change(summary, fix) or units.UNKNOWN
        rows.append((name, step, _drawn(drawn, gain_words(gain)), screen.EFFORT[fix.effort]))
    if section.grid is not None:
        grid = table(rows, "fix", *numbers("step", "goodput per device"), "effort")
        section = replace(section, grid=grid)
    return parts.of_section("fixes", section)
