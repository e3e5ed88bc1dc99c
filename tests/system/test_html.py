"""The page of the report in Chromium: opened from disk, it asks for nothing and fails nowhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Page

import rltrace
from benchmarks.make_trace import Workload, make
from rltrace.testing.inside.analysis import RunAnalysis, summarize
from rltrace.testing.inside.report import html
from rltrace.testing.inside.trace import Stage
from tests.report.hostile import MARKUP, hostile_run
from tests.report.summaries import run_of_kind
from tests.system.web import PATIENCE_MS, Seen

MOST_BYTES = 1_500_000
LARGE = Workload(steps=200, prompts=8, group=4, spans=50_000)
READY = "() => document.documentElement.dataset.ready"

Open = Callable[[str | Path], Path]
Pages = Callable[[str], Path]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """The page of a kind of run, each written once."""

    @cache
    def of(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("page")
        if kind == "large":
            make(folder / "run", LARGE)
            run = rltrace.open_run(folder / "run")
        else:
            run = run_of_kind(kind, folder)
        html.write(RunAnalysis(run), summarize(run), folder / "report.html")
        return folder / "report.html"

    return of


@pytest.fixture
def opened(page: Page, seen: Seen, pages: Pages) -> Open:
    """Opens the page of a kind of run, or a file, and waits until it is ready; the file."""

    def open_(what: str | Path) -> Path:
        path = pages(what) if isinstance(what, str) else what
        page.goto(path.as_uri())
        page.wait_for_function(READY)
        return path

    return open_


CANVAS = "document.querySelector('.timeline canvas')"


def middle_of(page: Page) -> tuple[float, float]:
    """A point of the timeline without a slice, scrolled into view."""
    page.evaluate(f"{CANVAS}.scrollIntoView({{ behavior: 'instant', block: 'center' }})")
    x, y = page.evaluate(f"(({{ x, y }}) => [x, y])({CANVAS}.getBoundingClientRect())")
    return x + 600, y + 30


VIEW = "window.report.timeline.view"


def in_view(page: Page) -> float:
    """How many ticks of the timeline are in view."""
    return float(page.evaluate(f"{VIEW}.to - {VIEW}.from"))


def test_a_long_run_is_a_small_file_that_asks_nobody(page: Page, seen: Seen, opened: Open) -> None:
    path = opened("large")
    assert path.stat().st_size <= MOST_BYTES
    assert seen.requests == [path.as_uri()]
    assert seen.errors == []
    spans = page.evaluate(
        """() => {
          const { about, columns } = window.report.timeline.view;
          let first = 0, spans = 0;
          for (const [, kind, length] of about.rows) {
            if (kind === 0) for (let i = 0; i < length; i++) spans += columns.count[first + i];
            first += length;
          }
          return spans;
        }"""
    )
    run = rltrace.open_run(path.parent / "run")
    counted = run.sql(f"select count(*) from raw_spans where stage <> {int(Stage.STEP)}")
    assert spans == counted.fetchall()[0][0] > 48_000


@pytest.mark.parametrize("kind", ["crashed", "empty", "hung", "no steps", "one step"])
def test_a_run_with_parts_missing_opens(seen: Seen, opened: Open, kind: str) -> None:
    opened(kind)
    assert seen.errors == []


def test_the_timeline_is_zoomed_and_moved(page: Page, seen: Seen, opened: Open) -> None:
    opened("one-step-off")
    whole = in_view(page)
    middle = middle_of(page)
    page.mouse.move(*middle)
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(200)
    assert in_view(page) == whole, "the wheel scrolls the page until the timeline is chosen"
    middle = middle_of(page)
    page.mouse.click(*middle)
    page.mouse.wheel(0, -300)
    page.wait_for_function(f"() => {VIEW}.to - {VIEW}.from < {whole}")
    page.keyboard.press("]")
    step = in_view(page)
    assert step < whole / 5
    page.keyboard.press("+")
    assert in_view(page) < step
    before = page.evaluate(f"{VIEW}.from")
    page.mouse.down()
    page.mouse.move(middle[0] - 200, middle[1], steps=4)
    page.mouse.up()
    assert page.evaluate(f"{VIEW}.from") > before
    page.keyboard.press("0")
    assert in_view(page) == whole
    place = page.evaluate(
        """() => {
          const { view } = window.report.timeline;
          const row = view.laid.rows.find((one) => one.first !== undefined);
          let longest = row.first;
          for (let i = row.first; i < row.last; i++) {
            const length = (k) => view.laid.end[k] - view.laid.start[k];
            if (length(i) > length(longest)) longest = i;
          }
          const middle = (view.laid.start[longest] + view.laid.end[longest]) / 2;
          return { x: 128 + (middle / view.to) * (view.width - 128), y: 46 + row.y + 4,
                   name: view.about.names[view.columns.name[longest]] };
        }"""
    )
    corner = page.evaluate("(({ x, y }) => [x, y])(" + CANVAS + ".getBoundingClientRect())")
    page.mouse.move(corner[0] + place["x"], corner[1] + place["y"])
    assert place["name"] in page.locator("#tip").inner_text()
    assert seen.errors == []


def test_another_step_is_shown_where_it_is_chosen(page: Page, opened: Open) -> None:
    opened("one-step-off")
    below = page.locator("#waterfall-of")
    mean = below.text_content()
    shapes = page.locator("#waterfall-rows").inner_html()
    page.locator("#each-step .hit").nth(4).click(force=True)
    number = page.locator("#each-step .numbers tbody tr").nth(4).locator("th").text_content()
    assert (below.text_content() or "").startswith(f"of step {number}: ")
    assert page.locator("#waterfall-rows").inner_html() != shapes
    page.get_by_role("button", name="mean", exact=True).click()
    assert below.text_content() == mean
    assert page.locator("#waterfall-rows").inner_html() == shapes


def test_what_is_pointed_at_is_told_by_the_table(page: Page, opened: Open) -> None:
    opened("async")
    row = page.locator("#lags .numbers tbody tr").nth(3)
    expected = row.locator("td").first.text_content()
    page.locator("#lags .hit").nth(3).hover(force=True)
    assert f"trajectories\n{expected}" in page.locator("#tip").inner_text()
    page.mouse.move(0, 0)
    page.locator("#lags .picture").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert f"trajectories\n{expected}" in page.locator("#tip").inner_text()


def test_both_themes_follow_the_system_and_the_button(page: Page, opened: Open) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    opened("colocated")
    dark = page.evaluate(ground)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(ground)
    assert dark != light
    page.locator("#theme").click()
    assert page.evaluate(ground) == dark
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"


def test_it_says_everything_but_the_timeline_without_scripts(pages: Pages, page: Page) -> None:
    assert page.context.browser is not None
    context = page.context.browser.new_context(java_script_enabled=False)
    context.set_default_timeout(PATIENCE_MS)
    without = context.new_page()
    without.goto(pages("colocated").as_uri())
    assert without.locator("h1").is_visible()
    assert without.locator("#waterfall svg").is_visible()
    assert "switched off" in without.locator(".timeline").inner_text()
    assert without.locator("#step-chooser").is_hidden()
    context.close()


def test_whatever_a_run_calls_its_parts_is_text(
    tmp_path: Path, page: Page, seen: Seen, opened: Open
) -> None:
    run = rltrace.open_run(hostile_run(tmp_path))
    html.write(RunAnalysis(run), summarize(run), tmp_path / "report.html")
    opened(tmp_path / "report.html")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert MARKUP in page.title()
    assert MARKUP in page.locator("body").inner_text()
    names = page.evaluate(f"{VIEW}.about.names")
    assert any(MARKUP in name for name in names)
    page.locator("#timeline canvas").hover(position={"x": 400, "y": 60})
    assert page.evaluate("window.hacked") is None
    assert seen.requests == [(tmp_path / "report.html").as_uri()]
    assert seen.errors == []


def test_a_page_is_watched(page: Page, seen: Seen, tmp_path: Path) -> None:
    file = tmp_path / "x.html"
    file.write_text("<script>console.error('hello'); fetch('file:///nowhere'); oops()</script>")
    page.goto(file.as_uri())
    page.wait_for_load_state("networkidle")
    assert seen.requests == [file.as_uri(), "file:///nowhere"]
    for wrong in ("hello", "failed: file:///nowhere", "oops"):
        assert any(wrong in error for error in seen.errors)
