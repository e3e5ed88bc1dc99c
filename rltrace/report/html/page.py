"""The page as one file, with a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from string import Template

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Summary
from rltrace.report.formats.atomic_file import write_file
from rltrace.report.full_report import sections
from rltrace.report.html import sample_parts as samples
from rltrace.report.html.drawing import Html, join, prose, sentence, tag, text
from rltrace.report.html.head import answer, asset, fixes_part, walls_part
from rltrace.report.html.parts import listed, of_section, part
from rltrace.report.html.step_parts import goodput_part, step_part
from rltrace.report.sections import evidence_sections as evidence
from rltrace.report.sections.health_lines import cells


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
    title = f"rltrace report · {summary.run.id}"
    return Template(asset("page.html")).substitute(
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        title=text(title),
        style=asset("screen.css") + asset("page.css"),
        run=prose(summary.run.id),
        contents=join(*(tag("a", said, href=f"#{key}") for key, said, _ in asked)),
        parts=join(answer(summary), *answers),
        script=script,
    )


def write(analysis: RunAnalysis, summary: Summary, path: Path, own_figures: bool = False) -> int:
    """Writes the page; its size in bytes. `own_figures` as in `sections`. Errors:
    `RltraceError`."""
    page = render(analysis, summary, own_figures).encode("utf-8", errors="replace")
    write_file(path, page)
    return len(page)


def _questions(
    analysis: RunAnalysis, summary: Summary, own_figures: bool
) -> Iterator[tuple[str, str, list[Html]]]:
    """What a reader asks, in that order: a key, the question, and the parts that answer it."""
    probe = summary.probe
    walls = [walls_part(summary.verdict)]
    if probe:
        walls.append(of_section("probe", evidence.probe_section(probe)))
    yield "wall", "What binds?", walls
    spent = [step_part(summary)]
    if own_figures and summary.own_figures:
        spent.append(of_section("own-figures", evidence.own_figures_section(summary)))
    spent += [
        samples.sync_part(analysis, summary),
        goodput_part(summary),
        samples.device_part(analysis, summary),
    ]
    yield "time", "Where do time and tokens go?", spent
    yield "change", "What to change?", [fixes_part(summary)]
    told = [(name, sentence(said)) for name, said in cells(summary) if said]
    told.append(("command", tag("code", prose(summary.run.command or summary.run.id))))
    data = [
        part("health", "Health", listed(told)),
        samples.tail_part(analysis, summary),
        samples.lag_part(analysis, summary),
    ]
    yield "data", "Is the data good?", [*data, samples.reward_part(summary)]
    yield "belief", "Can I believe it?", [of_section("unseen", evidence.coverage_section(summary))]
    *_, (title, [meant]) = sections(summary, own_figures)
    words = (line.partition(": ") for line in meant.lines)
    yield "words", title, [listed((name, sentence(meaning)) for name, _, meaning in words)]
