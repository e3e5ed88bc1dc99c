"""The report as a page: whole for any run, its numbers the summary's, and no name is markup."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder

import pytest

import rltrace
from rltrace.report import html
from rltrace.testing.handmade_runs import process, rows, run_of
from rltrace.testing.inside.analysis import RunAnalysis, Summary, summarize
from rltrace.testing.inside.report import screen, units
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import RltraceError, Stage, word
from tests.analysis.made import not_none
from tests.cli.conftest import invoke
from tests.report.hostile import MARKUP, hostile_run
from tests.report.summaries import KINDS, run_of_kind

VOID = {"meta", "wbr", "img"}


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tree = TreeBuilder()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({key for key, _ in attrs}) == len(attrs), f"<{tag}> has an attribute twice"
        self.tree.start(tag, {key: value or "" for key, value in attrs})
        self.open.append(tag)
        if tag in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> ends another element"
        self.tree.end(tag)

    def handle_data(self, data: str) -> None:
        if self.open:
            self.tree.data(data)


def parse(page: str) -> Element:
    """The page's elements. Fails where tags are not balanced."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    assert parser.open == [], "an element is left open"
    return parser.tree.close()


def one(root: Element, path: str) -> Element:
    """The only element of that path."""
    (found,) = root.findall(f".//{path}")
    return found


def text_of(root: Element, path: str) -> str:
    return "".join(one(root, path).itertext())


def rows_of(figure: Element) -> list[list[str]]:
    """The cells of a figure's table by row, its head first."""
    table = one(figure, "table[@class='numbers']")
    return [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]


Pages = Callable[[str], tuple[Run, Summary, Element]]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """`(run, summary, page)` of a kind of run, each made once."""

    @cache
    def of(kind: str) -> tuple[Run, Summary, Element]:
        run = run_of_kind(kind, tmp_path_factory.mktemp("run"))
        summary = summarize(run)
        return run, summary, parse(html.render(RunAnalysis(run), summary, own_figures=True))

    return of


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_screen_says_what_the_terminal_says(pages: Pages, kind: str) -> None:
    _, summary, root = pages(kind)
    said = " ".join(text_of(root, "section[@id='answer']").replace("\xa0", " ").split())
    for sentence in (screen.what_ran(summary), *screen.sentences(summary)):
        assert " ".join(sentence.replace("`", "").split()) in said
    shares = ["".join(one.itertext()) for one in root.iterfind(".//*[@id='answer']//ul/li/span")]
    where = screen.where(summary)
    assert shares[-len(where.rows) :] == [row.name for row in where.rows] if where else not shares


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_whole_and_asks_nobody_whatever_the_run_lacks(pages: Pages, kind: str) -> None:
    _, _, root = pages(kind)
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    assert {link.attrib["href"].removeprefix("#") for link in root.iter("a")} <= set(ids)
    assert len([*root.iter("h1")]) == 1
    for figure in root.iter("figure"):
        head, *body = rows_of(figure)
        assert body
        assert all(len(row) == len(head) for row in body)
        drawn = [e.attrib["data-row"] for e in figure.iter() if "data-row" in e.attrib]
        assert {int(row) for row in drawn} <= set(range(len(body))), "what is drawn has its row"
    for element in root.iter():
        assert not {"src", "srcset", "action", "data", "xlink:href"} & element.attrib.keys()
        assert not any(key.startswith("on") for key in element.attrib)
    policy = one(root, "meta[@http-equiv='Content-Security-Policy']").attrib["content"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not re.search(r"url\(|@import", text_of(root, "style"))


def test_what_cannot_be_told_is_said(pages: Pages) -> None:
    _, _, root = pages("empty")
    for key in ("fixes", "step", "tail", "lag", "sync", "gpus", "reward"):
        assert "cannot tell" in text_of(root, f"p[@id='{key}']"), key
    assert not [*root.iter("figure")]
    _, _, root = pages("no steps")
    assert [figure.get("id") for figure in root.iter("figure")].count("waterfall") == 1
    assert not root.findall(".//figure[@id='each-step']")


def test_the_numbers_are_those_of_the_summary(pages: Pages) -> None:
    _, summary, root = pages("colocated")
    head, *body = rows_of(one(root, "figure[@id='each-step']"))
    assert len(body) == len(summary.steps.times)
    for row, time in zip(body, summary.steps.times, strict=True):
        told = dict(zip(head, row, strict=True))
        assert told["step"] == str(time.step)
        assert told["seconds"] == units.seconds(time.step_s)
        assert told["train"] == units.seconds(time.exposed_s["train"])
        assert told["untraced"] == units.seconds(time.untraced_s)
    typical = not_none(summary.typical_step)
    body = rows_of(one(root, "figure[@id='waterfall']"))[1:]
    assert [row[0] for row in body] == [word(s) for s in Stage if word(s) in typical.busy_shares]
    clock = rows_of(one(root, "figure[@id='wall-clock']"))[1:]
    assert [row[0] for row in clock] == [p.reason for p in not_none(summary.cascade).wall_clock]


def test_nobodys_words_are_markup(tmp_path: Path, pages: Pages) -> None:
    run = rltrace.open_run(hostile_run(tmp_path))
    page = parse(html.render(RunAnalysis(run), summarize(run)))
    usual = {element.tag for element in pages("colocated")[2].iter()}
    assert {element.tag for element in page.iter()} <= usual | {"wbr"}
    assert len([*page.iter("script")]) == 1
    assert MARKUP in text_of(page, "title")
    assert any(MARKUP in "".join(code.itertext()) for code in page.iter("code"))


def test_the_command_writes_one_form(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 0, 10), (Stage.TRAIN, 1, 9))
    rows(driver, "rewards", start_s=[2.0], end_s=[3.0], trajectory=[1])  # a tail without lengths
    run = run_of(tmp_path, driver)
    out = tmp_path / "report.html"
    done = invoke("report", run.path, "--html", out)
    assert done.exit_code == 0, done.output
    assert str(out) in done.output
    assert text_of(parse(out.read_text("utf-8")), "h1")
    with pytest.raises(RltraceError, match="cannot write"):
        html.write(RunAnalysis(run), summarize(run), tmp_path / "no" / "folder.html")
    assert invoke("report", run.path, "--html", out, "--json").exit_code == 2
