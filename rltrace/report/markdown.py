"""The report as Markdown, for a pull request, an issue or a log book."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.summary import Summary
from rltrace.report import verdict
from rltrace.report.layout import Grid, Section
from rltrace.report.sections import sections


def render(summary: Summary, own_figures: bool = False) -> str:
    """The whole report; ends without a newline. `own_figures` as in `sections`."""
    return "\n".join(_lines(summary, own_figures))


def _lines(summary: Summary, own_figures: bool) -> Iterator[str]:
    yield f"# {_plain(verdict.headline(summary))}"
    yield ""
    for line in verdict.evidence(summary):
        yield f"- {_plain(line)}"
    yield ""
    command, facts = verdict.facts(summary)
    yield f"`{command}`  "
    yield _plain(facts)
    for line in verdict.warnings(summary):
        yield ""
        yield f"**{_plain(line)}**"
    for section in sections(summary, own_figures):
        yield ""
        yield from section_lines(section)


def section_lines(section: Section) -> Iterator[str]:
    """A section on its own."""
    yield f"## {_plain(section.title)}"
    for line in section.lines:
        yield ""
        yield _plain(line)
    if section.grid is not None:
        yield ""
        yield from _table(section.grid)
    for note in section.notes:
        yield ""
        yield f"<sub>{_plain(note)}</sub>"


def _table(grid: Grid) -> Iterator[str]:
    yield _row(tuple(column.title for column in grid.columns))
    yield _row(tuple("---:" if column.right else "---" for column in grid.columns))
    for row in grid.rows:
        yield _row(row)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in cells) + " |"


def _plain(text: str) -> str:
    """Text in which nothing is taken for markup: symbols such as τ_R hold an underscore."""
    return text.replace("_", "\\_").replace("*", "\\*").replace("<", "&lt;")
