"""The page of the report in Chromium: opened from disk, it asks for nothing and fails nowhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

import rltrace
from benchmarks.make_trace import Workload, make
from benchmarks.synthetic.truth import known_job
from rltrace.testing.inside.analysis import RunAnalysis, summarize
from rltrace.testing.inside.report import html
from tests.report.hostile import MARKUP, hostile_run
from tests.report.summaries import run_of_kind
from tests.system.web import PATIENCE_MS, Seen

MOST_BYTES = 500_000
LARGE = Workload(steps=200, prompts=8, group=4, spans=50_000)
READY = "() => document.documentElement.dataset.ready"
MEASURE = (Path(__file__).parent / "measure.js").read_text("utf-8")
"""What is wrong with how the page is laid out, a sentence each."""

SLOW = "slow reward"
MEASURED = (SLOW, "async", "crashed", "empty", "hung", "large", "many lags", "no steps", "one step")
SCREENS = {
    "phone": {"width": 390, "height": 844},
    "screen": {"width": 1440, "height": 900},
    "paper": {"width": 703, "height": 1000},  # A4 between its margins
}

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
        elif kind == SLOW:
            run, _ = known_job(folder / "run", placement="colocated", steps=12)
        else:
            run = run_of_kind(kind, folder)
        found = summarize(run)
        if kind == SLOW:  # in a framework that has an option for the first fix
            first, *others = found.verdict.fixes
            first = replace(first, setting="trainer.reward_workers", value=4, now=1)
            found = replace(found, verdict=replace(found.verdict, fixes=(first, *others)))
        html.write(RunAnalysis(run), found, folder / "report.html")
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


def test_a_long_run_is_a_small_file_that_asks_nobody(page: Page, seen: Seen, opened: Open) -> None:
    path = opened("large")
    assert path.stat().st_size <= MOST_BYTES
    assert seen.requests == [path.as_uri()]
    assert seen.errors == []


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


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("where", SCREENS)
@pytest.mark.parametrize("kind", MEASURED)
def test_no_word_is_cut_broken_or_below_another(
    page: Page, seen: Seen, opened: Open, kind: str, where: str, theme: Any
) -> None:
    media: Any = "print" if where == "paper" else "screen"
    page.set_viewport_size(SCREENS[where])  # type: ignore[arg-type]
    page.emulate_media(color_scheme=theme, media=media)
    opened(kind)
    assert page.evaluate(MEASURE) == []
    assert seen.errors == []


def test_what_is_laid_out_badly_is_seen(page: Page) -> None:
    page.set_content(
        "<div style='position:relative;width:2000px'><p style='margin:0'>one</p>"
        "<p style='position:absolute;top:4px;left:4px;margin:0'>two</p></div>"
        "<p style='width:40px;overflow:hidden;white-space:nowrap'>three and more</p>"
        "<table><td style='width:20px;max-width:20px;overflow-wrap:anywhere'>letters</table>"
    )
    wrong = page.evaluate(MEASURE)
    for one in ("2008", "one | overlaps | two", "cut: three", "broken: letters"):
        assert any(one in said for said in wrong), wrong


def test_the_first_screen_has_the_answer(page: Page, opened: Open) -> None:
    opened(SLOW)
    parts = ("h1", ".copied", ".shape", ".shares")
    boxes = [page.locator(f"#answer {part}").last.bounding_box() for part in parts]
    assert all(box is not None and box["y"] + box["height"] <= 900 for box in boxes)


@pytest.mark.parametrize("allowed", [True, False])
def test_a_setting_is_copied_or_at_least_selected(page: Page, opened: Open, allowed: bool) -> None:
    opened(SLOW)
    if not allowed:
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(Error()) }")
    copied = page.locator("#answer .copied").first
    copied.locator("button").click()
    said = copied.locator("code").text_content()
    assert said
    assert page.evaluate("getSelection().toString()") == said


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


def test_it_says_everything_without_scripts(pages: Pages, page: Page) -> None:
    assert page.context.browser is not None
    context = page.context.browser.new_context(java_script_enabled=False)
    context.set_default_timeout(PATIENCE_MS)
    without = context.new_page()
    without.goto(pages("colocated").as_uri())
    assert without.locator("h1").is_visible()
    assert without.locator("#waterfall svg").first.is_visible()
    assert without.locator(".copied button").first.is_hidden()
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
