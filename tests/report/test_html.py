"""The report as a page: whole for any run, its numbers the summary's, and no name is markup."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder

import numpy as np
import pytest

import rltrace
from benchmarks.make_trace import Workload, make
from rltrace.report import html
from rltrace.report.html import timeline_part
from rltrace.report.html.slices import read_slices
from rltrace.report.html.timeline_part import thinned
from rltrace.testing.inside.analysis import PathSegment, RunAnalysis, Summary, summarize
from rltrace.testing.inside.report import units
from rltrace.testing.inside.trace import RltraceError, Run, Stage
from rltrace.testing.made import at, between, process, rows, run_of
from tests.cli.conftest import invoke
from tests.report.hostile import HOSTILE, MARKUP, hostile_run
from tests.report.summaries import KINDS, run_of_kind

VOID = {"meta", "input", "br", "hr", "img", "link"}


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


def data_of(page: Element) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """`(what the page is told of its data, the columns)`, unpacked as its script does it."""
    about = json.loads(text_of(page, "script[@id='about']"))
    packed = gzip.decompress(base64.b64decode(text_of(page, "script[@id='data']")))
    columns, at = {}, 0
    for name, width, length in about["columns"]:
        planes = np.frombuffer(packed, np.uint8, width * length, at).reshape(width, length)
        shifts = 8 * np.arange(width, dtype=np.uint64)[:, None]
        columns[name] = (planes.astype(np.uint64) << shifts).sum(axis=0)
        at += width * length
    assert at == len(packed)
    return about, columns


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
    for key in ("fixes", "step", "tail", "lag", "sync", "gpus", "reward", "timeline"):
        assert "cannot tell" in text_of(root, f"section[@id='{key}']"), key
    assert not [*root.iter("figure")]
    _, _, root = pages("no steps")
    assert "No step was recorded: the whole run" in text_of(root, "section[@id='step']")
    assert [figure.get("id") for figure in root.iter("figure")].count("waterfall") == 1
    assert not root.findall(".//figure[@id='each-step']")


def test_the_numbers_are_those_of_the_summary(pages: Pages) -> None:
    _, summary, root = pages("colocated")
    head, *body = rows_of(one(root, "figure[@id='each-step']"))
    assert len(body) == len(summary.steps.times)
    for row, time in zip(body, summary.steps.times, strict=True):
        told = dict(zip(head, row, strict=True))
        assert told["step"] == str(time.step)
        assert told["seconds"] == units.seconds(time.seconds)
        assert told["train"] == units.seconds(time.exposed_s["train"])
        assert told["unattributed"] == units.seconds(time.unattributed_s)
    assert summary.cascade is not None
    body = rows_of(one(root, "figure[@id='cascade']"))[1:]
    factors = ["availability", "placement efficiency", "useful share", "freshness weight"]
    assert [row[0] for row in body] == ["peak rate", *factors, "goodput"]
    goodput = units.count(summary.cascade.effective_tokens_per_device_s)
    assert body[-1][2] == f"{goodput} /GPU-s"


def test_every_slice_of_the_run_is_in_the_timeline(pages: Pages) -> None:
    run, _, root = pages("colocated")
    about, columns = data_of(root)
    timeline = about["timeline"]
    counted = dict.fromkeys(timeline["kinds"], 0)
    first = 0
    for _, kind, length in timeline["rows"]:
        counted[timeline["kinds"][kind]] += int(columns["count"][first : first + length].sum())
        first += length
    spans = run.sql(f"select count(*) from raw_spans where stage <> {int(Stage.STEP)}")
    others = {"trajectories": "trajectories", "verdicts": "rewards", "weight updates": "syncs"}
    others = {kind: run.rows(table) for kind, table in others.items()}
    assert counted == {"spans": spans.fetchall()[0][0], **others}
    tick_s = timeline["tick_ns"] / 1e9
    trained = columns["length"][columns["stage"] == int(Stage.TRAIN)].sum() * tick_s
    expected = run.sql("select sum(end_ns - start_ns) / 1e9 from spans where stage = 'train'")
    assert trained == pytest.approx(float(expected.fetchall()[0][0]), rel=1e-3)


def test_the_shapes_of_steps_add_up_to_their_stages(pages: Pages) -> None:
    _, summary, root = pages("one-step-off")
    about, columns = data_of(root)
    shapes = about["shapes"]
    busy = columns["shapes"].reshape(len(shapes["places"]), len(shapes["stages"]), -1)
    assert busy.shape[2] == shapes["parts"]
    for n, place in enumerate(shapes["places"]):
        time = summary.steps.times[place]
        for m, stage in enumerate(shapes["stages"]):
            seconds = busy[n, m].mean() / shapes["levels"] * time.seconds
            stage_s = time.tau_s[stage.removeprefix("s-")]
            assert seconds == pytest.approx(stage_s, abs=0.02 * time.seconds)


def test_short_slices_are_merged_and_none_is_lost(tmp_path: Path) -> None:
    make(tmp_path / "run", Workload(steps=10, prompts=8, group=4, spans=3000))
    run = rltrace.open_run(tmp_path / "run")
    since, until = run.sql("select min(start_ns), max(end_ns) from raw_spans").fetchall()[0]
    whole = read_slices(run, since, until)
    few = read_slices(run, since, until, most=400)
    assert len(few) <= 400 < len(whole) == whole.of == few.of
    assert few.merged_below_ns > 0 == whole.merged_below_ns
    assert few.count.sum() == len(whole)
    assert few.busy_ns.sum() == whole.busy_ns.sum()
    long = whole.end_ns - whole.start_ns >= few.merged_below_ns
    assert (few.count == 1).sum() >= long.sum()
    for stage in np.unique(whole.stage):
        assert few.count[few.stage == stage].sum() == (whole.stage == stage).sum()


def test_slices_are_those_between_two_moments(tmp_path: Path) -> None:
    spans = (("before", 0, 1), ("into", 1, 3), ("in", 3, 4), ("out of", 4, 9), ("after", 7, 9))
    worker = process("rollout")
    for lane, (name, begin_s, end_s) in enumerate((*spans, ("open", 5, -1))):
        worker.span(between(begin_s, end_s), name, Stage.ROLLOUT, 0, lane=lane)
    run = run_of(tmp_path, worker, end_real_ns=at(30))
    found = read_slices(run, at(2), at(6))
    texts = dict(run.sql("select id, text from names").fetchall())
    ends = dict(zip((texts[n] for n in found.name.tolist()), found.end_ns.tolist(), strict=True))
    assert ends == {"into": at(3), "in": at(4), "out of": at(9), "open": at(6)}
    assert found.of == len(found) == 4


def test_a_path_of_very_many_stretches_is_thinned_and_keeps_its_longest() -> None:
    lengths = [1, 1, 5, 1, 1, 1] * 50
    ends = list(itertools.accumulate(lengths))
    path = [
        PathSegment(end - length, end, Stage.TRAIN if length > 1 else Stage.SYNC, 0, "")
        for length, end in zip(lengths, ends, strict=True)
    ]
    assert thinned(path, len(path)) == path
    few = thinned(path, 50)
    assert len(few) <= 50
    assert (few[0].start_ns, few[-1].end_ns) == (path[0].start_ns, path[-1].end_ns)
    assert all(one.end_ns == other.start_ns for one, other in itertools.pairwise(few))
    assert {segment.stage for segment in few} == {Stage.TRAIN}


def test_a_long_path_is_thinned(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    run, summary, _ = pages("one-step-off")
    monkeypatch.setattr(timeline_part, "MOST_PATH", 5)
    assert 0 < len(data_of(parse(html.render(RunAnalysis(run), summary)))[1]["pathStart"]) <= 5


def test_nobodys_words_are_markup(tmp_path: Path, pages: Pages) -> None:
    run = rltrace.open_run(hostile_run(tmp_path))
    page = parse(html.render(RunAnalysis(run), summarize(run)))
    usual = {element.tag for element in pages("colocated")[2].iter()}
    assert {element.tag for element in page.iter()} <= usual
    assert len([*page.iter("script")]) == 3
    assert MARKUP in text_of(page, "title")
    assert any(MARKUP in "".join(code.itertext()) for code in page.iter("code"))
    about, _ = data_of(page)
    assert HOSTILE in about["timeline"]["names"]


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
