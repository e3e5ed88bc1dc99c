"""The report as one HTML file, and its first screen for a notebook."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from string import Template

from rltrace import dashboards
from rltrace.analysis.fixes.fixes import Fix
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Summary, Verdict
from rltrace.analysis.walls.wall import CANNOT_TELL, LIKELY
from rltrace.report import run_description, screen, units
from rltrace.report.full_report import sections
from rltrace.report.html import drawing, parts
from rltrace.report.html import sample_parts as samples
from rltrace.report.html.drawing import NOTHING, Html, join, prose, sentence, tag, text
from rltrace.report.html.step_parts import goodput_part, step_part
from rltrace.report.layout import numbers, table
from rltrace.report.run_description import cells
from rltrace.report.sections import evidence_sections as evidence
from rltrace.report.sections import verdict_section
from rltrace.report.sections.verdict_section import best_fix, gain_words, sentences, setting_words
from rltrace.trace.untrusted_files import write_given


def render(analysis: RunAnalysis, summary: Summary, own_figures: bool = False) -> str:
    """The page; `own_figures` as in `sections`."""
    asked = list(_questions(analysis, summary, own_figures))
    answers = []
    for key, said, shown in asked:
        name = f"{key}-heading"
        content = tag("h2", said, id=name), *shown
        answers.append(tag("section", *content, id=key, class_="question", aria_labelledby=name))
    script = asset("pictures.js") + asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(asset("page.html")).substitute(
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        title=text(f"rltrace report · {summary.run.id}"),
        style=asset("screen.css") + asset("page.css"),
        run=prose(summary.run.id),
        contents=join(*(tag("a", said, href=f"#{key}") for key, said, _ in asked)),
        parts=join(answer(summary), *answers),
        script=script,
    )


def write(analysis: RunAnalysis, summary: Summary, path: Path, own_figures: bool = False) -> int:
    """Writes the page; its size in bytes. Errors: `RltraceError`."""
    page = render(analysis, summary, own_figures).encode("utf-8", errors="replace")
    write_given(path, page)
    return len(page)


def _questions(
    analysis: RunAnalysis, summary: Summary, own_figures: bool
) -> Iterator[tuple[str, str, list[Html]]]:
    """What a reader asks, in that order: a key, the question, and the parts that answer it."""
    probe = summary.probe
    walls = [walls_part(summary.verdict)]
    if probe:
        walls.append(parts.of_section("probe", evidence.probe_section(probe)))
    yield "wall", "What binds?", walls
    spent = [step_part(summary)]
    if own_figures and summary.own_figures:
        spent.append(parts.of_section("own-figures", evidence.own_figures_section(summary)))
    spent += [samples.sync_part(analysis, summary), goodput_part(summary)]
    spent.append(samples.device_part(analysis, summary))
    yield "time", "Where do time and tokens go?", spent
    yield "change", "What to change?", [fixes_part(summary)]
    told = [(name, sentence(said)) for name, said in cells(summary) if said]
    told.append(("command", tag("code", prose(summary.run.command or summary.run.id))))
    data = [
        parts.part("health", "Health", parts.listed(told)),
        samples.tail_part(analysis, summary),
    ]
    data += [samples.lag_part(analysis, summary), samples.reward_part(summary)]
    yield "data", "Is the data good?", data
    unseen = parts.of_section("unseen", evidence.coverage_section(summary))
    yield "belief", "Can I believe it?", [unseen]
    *_, (title, [meant]) = sections(summary, own_figures)
    words = (line.partition(": ") for line in meant.lines)
    yield "words", title, [parts.listed((name, sentence(meaning)) for name, _, meaning in words)]


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
    warnings = [tag("li", sentence(one)) for one in run_description.warnings(summary)]
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
    lead = tag("b", f"{verdict_section.try_words(best.goodput_gain)}: ")
    title = tag("p", lead, prose(best.sized), class_="label")
    effect = tag("p", sentence(f"predicted: {screen.effect(summary, best)}"), class_="effect")
    if not best.setting:
        return tag("div", title, effect, class_="try")
    setting, check = tag("p", _setting(best), class_="setting"), NOTHING
    if tried := screen.check_of(summary, best):
        check = tag("p", "Check it: ", parts.copied(tried[0]), f" {tried[1]}", class_="check")
    return tag("div", title, setting, effect, check, class_="try")


def _setting(fix: Fix) -> Html:
    setting = setting_words(fix)
    return join(parts.copied(setting), prose(screen.how(fix).removeprefix(setting)))


def _step(summary: Summary) -> Html:
    found = screen.where(summary)
    if found is None:
        return NOTHING
    pieces = []
    for row in found.rows:
        figures = row.name, units.seconds(row.exposed_s), units.share(row.share)
        pieces.append(((parts.css(row.name), row.share), figures))
    title = tag("b", found.title), " ", tag("b", found.length), f" {found.sure}".rstrip()
    label = tag("p", *title, class_="label")
    drawn = parts.shares(pieces, f"{found.title}, by stage")
    beside = tag("p", sentence(found.beside), class_="facts") if found.beside else None
    return tag("div", label, drawn, beside, class_="step")


def walls_part(verdict: Verdict) -> Html:
    walls = {wall.name: wall for wall in verdict.walls}
    known = [wall.cost for wall in verdict.walls if wall.cost.known]
    ends = 0.0, max([0.05, *(max(cost.share, cost.high) for cost in known)])

    def row(cells: tuple[str, ...]) -> tuple[str, ...]:
        wall = walls[cells[0]]
        cost, css = wall.cost, "binds" if wall in verdict.binding else "bar"
        low, high = (cost.share if math.isnan(x) else x for x in (cost.low, cost.high))
        drawn = drawing.interval(ends, low, cost.share, high, css) if cost.known else NOTHING
        mood = {LIKELY: "sure", CANNOT_TELL: "open"}.get(wall.confidence, "unsure")
        sure = tag("span", cells[3], class_=f"chip {mood}")
        return cells[0], _drawn(drawn, cells[1]), cells[2], sure

    return parts.of_section("walls", parts.with_rows(verdict_section.walls_section(verdict), row))


def _drawn(picture: Html, said: str) -> Html:
    return tag("span", picture, sentence(said), class_="drawn")


def fixes_part(summary: Summary) -> Html:
    """All fixes, best first: the section on them with the step before and after."""
    found, run = summary.verdict, verdict_section.tried_run(summary)
    section = verdict_section.fixes_section(found, run)
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
            drawn = drawing.interval(ends, low, middle, high, "gain" if middle >= 0 else "loss")
        step = screen.step_change(summary, fix) or units.UNKNOWN
        rows.append((name, step, _drawn(drawn, gain_words(gain)), screen.EFFORT[fix.effort]))
    if section.grid is not None:
        grid = table(rows, "fix", *numbers("step", "goodput per device"), "effort")
        section = replace(section, grid=grid)
    return parts.of_section("fixes", section)
