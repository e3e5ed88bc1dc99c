"""The report as Markdown, for a pull request, an issue or a log book."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rltrace.analysis.summary import Summary
from rltrace.report import run_description
from rltrace.report.full_report import sections
from rltrace.report.layout import Section
from rltrace.report.sections import verdict_section
from rltrace.trace.safe_text import visible

_MARKUP = re.compile(r"[\\`*_\[\]]|~(?=~)|(?<=~)~")
_BLOCK = re.compile(r"^( *(?:[0-9]+(?=[.)]))?)([#>=]|-(?=-)|:(?=:)|[-+.)](?= |$))")
"""What begins a heading, a quotation or a list at the start of a line, or a command to GitHub."""
_LINK = re.compile(r"(?i)(?<=[a-z]):(?=//)|(?<=www)\.|(?<=mailto):|(?<=xmpp):")
_AT = re.compile(r"@(?=[\w-])")
# Parts a name from its sign: GitHub makes links of names, escaped or not.
_NOTHING = "<!-- -->"


def render(summary: Summary, own_figures: bool = False) -> str:
    """The whole report; ends without a newline. `own_figures` as in `sections`."""
    return "\n".join(_lines(summary, own_figures))


def _lines(summary: Summary, own_figures: bool) -> Iterator[str]:
    headline, *evidence = verdict_section.sentences(summary)
    yield f"# {_plain(headline)}"
    for line in run_description.warnings(summary):
        yield ""
        yield f"**{_plain(line)}**"
    yield ""
    for line in evidence:
        yield f"- {_line(line)}"
    yield ""
    command, _ = run_description.facts(summary)
    yield _code(command)
    for question, parts in sections(summary, own_figures):
        yield ""
        yield f"## {question}"
        for section in parts:
            yield ""
            yield from section_lines(section, "###")


def section_lines(section: Section, level: str = "##") -> Iterator[str]:
    """A section on its own, with a title of that `level`."""
    if section.title:
        yield f"{level} {_plain(section.title)}"
    for line in section.lines:
        yield ""
        yield _line(line)
    if section.grid is not None:
        yield ""
        columns = section.grid.columns
        titles = tuple(column.title for column in columns)
        rules = tuple("---:" if column.right else "---" for column in columns)
        for row in (titles, rules, *section.grid.rows):
            yield "| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in row) + " |"
    for note in section.notes:
        yield ""
        yield f"<sub>{_plain(note)}</sub>"


def _plain(text: str) -> str:
    """Text on one line in which nothing is taken for markup: a job calls things what it likes."""
    shown = _MARKUP.sub(r"\\\g<0>", visible(text).replace("&", "&amp;").replace("<", "&lt;"))
    return _AT.sub(f"@{_NOTHING}", _LINK.sub(r"\\\g<0>", shown))


def _line(text: str) -> str:
    """As `_plain`, where it begins a line."""
    return _BLOCK.sub(r"\1\\\2", _plain(text))


def _code(text: str) -> str:
    """Text as code; it may hold any number of backticks."""
    shown = visible(text)
    longest = max(map(len, re.findall("`+", shown)), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{shown}{space}{fence}"
