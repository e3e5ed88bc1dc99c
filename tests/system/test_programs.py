"""The programs that these tests look through are the real ones, and the helpers use them right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rltrace
from benchmarks.make_trace import make
from rltrace.testing.inside.report import perfetto
from rltrace.testing.workload import Workload
from tests.system.prometheus import Prometheus, promtool
from tests.system.terminal import Terminal
from tests.system.trace_processor import opened

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.system.web import Seen


def test_each_engine_reads_a_trace(engine: Path, tmp_path: Path) -> None:
    make(tmp_path / "run", Workload(steps=4))
    run = rltrace.open_run(tmp_path / "run")
    counts = perfetto.write(run, tmp_path / "t.pftrace")
    with opened(tmp_path / "t.pftrace", engine) as trace:
        assert trace.rows("SELECT count(*) AS n FROM slice") == [(counts.slices,)]
        assert trace.problems() == []


def test_the_user_interface_is_whole(perfetto_ui: Path) -> None:
    assert (perfetto_ui / "index.html").exists()


def test_a_page_is_watched(page: Page, seen: Seen, tmp_path: Path) -> None:
    file = tmp_path / "x.html"
    file.write_text("<script>console.log('hello'); fetch('file:///nowhere'); oops()</script>")
    page.goto(file.as_uri())
    page.wait_for_load_state("networkidle")
    assert seen.requests == [file.as_uri(), "file:///nowhere"]
    assert "log: hello" in seen.console
    assert any("oops" in error for error in seen.errors)


def test_prometheus_scrapes_itself(prometheus: Prometheus, tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    target = f"static_configs: [{{targets: ['127.0.0.1:{prometheus.port}']}}]"
    config.write_text(f"scrape_configs: [{{job_name: self, scrape_interval: 1s, {target}}}]")
    assert promtool("check", "config", str(config)).returncode == 0
    prometheus.start(config)
    prometheus.until_scraped("self")
    with pytest.raises(AssertionError, match="parse error"):
        prometheus.api("query", query="up{")


@pytest.fixture
def asked(terminal: Terminal) -> Terminal:
    """A program in a terminal that asks a question."""
    program = "import os; print(os.get_terminal_size()); print('got', input('? ')); exit(3)"
    terminal.run([sys.executable, "-c", program], width=90, height=20)
    terminal.until(lambda screen: "?" in screen)
    return terminal


def test_a_terminal_shows_types_and_knows_the_end(asked: Terminal) -> None:
    assert "columns=90, lines=20" in asked.screen()
    assert asked.exit_code() is None
    asked.type("hello", "Enter")
    asked.until(lambda screen: "got hello" in screen)
    asked.until(lambda _: asked.exit_code() == 3)
