"""The report as Markdown: headings, tables whose rows have as many cells as their head."""

from __future__ import annotations

import re

import pytest

from rltrace.report import markdown
from tests.report.summaries import KINDS, Summaries


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_whole_and_no_symbol_is_taken_for_markup(summary: Summaries, kind: str) -> None:
    text = markdown.render(summary(kind))
    cells = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        found = len(re.findall(r"(?<!\\)\|", line)) - 1
        assert cells in (0, found), line
        cells = found
    assert not re.search(r"τ_", text)
    assert text.startswith("# ")


def test_the_sections_are_those_of_the_terminal(summary: Summaries) -> None:
    text = markdown.render(summary("colocated"))
    assert re.findall("^## (.*)$", text, re.MULTILINE) == [
        "What to do",
        "The eight walls",
        "Where the step goes",
        "Tail",
        "Staleness of what was trained on",
        "Weight movement",
        "Goodput",
        "What goodput is made of, whole run",
        "Reward",
        "Checks",
        "Not seen, and what tracing cost",
    ]
    assert "| rollout | τ\\_R |" in text
