"""How large the page of a long run is, and how soon Chromium has it ready: 200 steps, 50,000 spans.

    .venvs/system-*/bin/python -m benchmarks.html_scale [--rounds 7] [--json]

Needs the environment of `make test-system`. Ready is when the last picture is drawn, counted from
the start of navigation. Each round opens the page in a browsing context of its own; a page of
200,000 slices, which is merged to what a page holds, takes turns with it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

import rltrace
from benchmarks.make_trace import Workload, make
from benchmarks.measuring import Check, Result, spread, take_turns
from rltrace.testing.inside.analysis import RunAnalysis, summarize
from rltrace.testing.inside.report import html

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MOST_MB, MOST_MS = 1.5, 1000.0
READY = "() => document.documentElement.dataset.ready"
REDRAW = """() => {
  const { view, look } = window.report.timeline;
  look(0, view.about.ticks);
  const start = performance.now();
  draw(view);
  return performance.now() - start;
}"""
LARGE = Workload(steps=200, prompts=8, group=4, spans=50_000)
LARGER = Workload(steps=200, prompts=16, group=8, spans=200_000)


def written(folder: Path, load: Workload) -> Path:
    """The page of a run of that workload."""
    make(folder / "run", load)
    run = rltrace.open_run(folder / "run")
    html.write(RunAnalysis(run), summarize(run), folder / "report.html")
    return folder / "report.html"


class Opened:
    """A page in a browser; milliseconds until it is ready, and remembers how long a redraw took."""

    def __init__(self, browser: Browser, path: Path) -> None:
        self.browser, self.path = browser, path
        self.redraw_ms: list[float] = []

    def __call__(self) -> float:
        """Opens it once."""
        context = self.browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.goto(self.path.as_uri())
        page.wait_for_function(READY)
        ready_ms = float(page.evaluate(READY))
        self.redraw_ms.append(float(page.evaluate(REDRAW)))
        context.close()
        return ready_ms


@click.command()
@click.option("--rounds", default=7, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(rounds: int, as_json: bool) -> None:
    """Size of the page and time until it is ready; exits 1 when a limit is missed."""
    from tests.system.web import chromium

    result = Result("the page of a report, until it is ready", "ms")
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        pages = {
            name: Opened(browser, written(Path(folder, name), load))
            for name, load in (("50,000 spans", LARGE), ("200,000 spans", LARGER))
        }
        taken = take_turns(pages, rounds)
        sizes = {name: page.path.stat().st_size / 1e6 for name, page in pages.items()}
    result.rows = {name: spread(ready_ms) for name, ready_ms in taken.items()}
    result.rows |= {
        f"{name}, redraw of the whole timeline": spread(page.redraw_ms)
        for name, page in pages.items()
    }
    result.notes = {"size": ", ".join(f"{name} {size:.2f} MB" for name, size in sizes.items())}
    result.checks = [
        Check("size of the page of 50,000 spans", sizes["50,000 spans"], MOST_MB, "MB"),
        Check("ready, 50,000 spans", result.rows["50,000 spans"].median, MOST_MS, "ms"),
    ]
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
