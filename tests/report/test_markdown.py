"""The report as Markdown, whose tables are whole and whose names are no markup; and as SVG."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rltrace.report.formats import markdown
from rltrace.testing.inside.report import Column, Grid, Section, terminal
from tests.report.summaries import KINDS, Summaries


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_whole_and_no_symbol_is_taken_for_markup(summary: Summaries, kind: str) -> None:
    text = markdown.render(summary(kind))
    cells = 0
    for line in text.splitlines():
        found = len(re.findall(r"(?<!\\)\|", line)) - 1 if line.startswith("|") else 0
        assert not cells or not found or cells == found, line
        cells = found
    assert not re.search(r"τ_", text)
    assert text.startswith("# ")
    assert kind != "colocated" or "| rollout | τ\\_R |" in text


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<script>x</script>&lt;", "&lt;script>x&lt;/script>&amp;lt;"),
        ("![i](http://e.vil/x.png)", r"!\[i\](http\://e.vil/x.png)"),
        ("see https://e.vil, WWW.e.vil", r"see https\://e.vil, WWW\.e.vil"),
        ("me@e.vil @everybody 3 @ 4", "me@<!-- -->e.vil @<!-- -->everybody 3 @ 4"),
        ("::stop-commands::x", r"\::stop-commands::x"),
        ("`a` ~~b~~ ~5", r"\`a\` \~\~b\~\~ ~5"),
        ("a\n\n# b", r"a\\n\\n# b"),
        ("\x1b[31m\u202e", r"\\x1b\[31m\\u202e"),
        ("# a", r"\# a"),
        ("> a", r"\> a"),
        ("1. a", r"1\. a"),
        ("- a", r"\- a"),
        ("---", r"\---"),
        ("1.5 s at -3 %", "1.5 s at -3 %"),
    ],
)
def test_a_name_is_no_markup(name: str, shown: str) -> None:
    lines = list(markdown.section_lines(Section("names", (name,))))
    assert lines == ["## names", "", shown]


def test_a_name_stays_in_its_cell() -> None:
    grid = Grid((Column("name"), Column("more")), (("a|b\\|c\n| d |", "e"),))
    *_, row = markdown.section_lines(Section("names", grid=grid))
    assert row == r"| a\|b\\\|c\\n\| d \| | e |"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("a `b` ``c``", "``` a `b` ``c`` ```"),
        ("`", "`` ` ``"),
        ("a\nb", "`a\\nb`"),
    ],
)
def test_a_command_stays_in_its_code(summary: Summaries, command: str, shown: str) -> None:
    found = summary("colocated")
    text = markdown.render(replace(found, run=replace(found.run, command=command)))
    assert shown in text.splitlines()


def test_a_picture_is_whole_and_asks_nobody(summary: Summaries, tmp_path: Path) -> None:
    terminal.write_svg(partial(terminal.render, summary("colocated")), tmp_path / "report.svg")
    drawn = (tmp_path / "report.svg").read_text("utf-8")
    texts = "".join(ElementTree.fromstring(drawn).itertext()).replace("\u00a0", " ")
    assert "rltrace report" in texts
    assert "Walls" in texts
    without_comments = re.sub(r"<!--.*?-->", "", drawn, flags=re.DOTALL)
    links = re.findall(r"https?://[^\"')]*", without_comments)
    assert set(links) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in without_comments.replace("url(#", "")
