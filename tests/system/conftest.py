"""The real programs in which people look at a run, each started once for all tests.

These tests run in an environment of their own (`make test-system`). Without it this folder is left
out: `make test` needs neither Node nor Chromium, Prometheus or tmux.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.system.web import Seen

SYSTEM = Path(sys.prefix)
ENGINES = sorted(folder.name for folder in SYSTEM.glob("engines/v*"))
"""Versions of Perfetto's engine."""

collect_ignore_glob = [] if ENGINES else ["test_*.py"]


def pytest_report_header() -> str:
    """Which engines there are, or why nothing is collected here."""
    return f"Perfetto: {', '.join(ENGINES) or 'none, tests/system is left out: make test-system'}"


@pytest.fixture(scope="session", autouse=True)
def _programs() -> Iterator[None]:
    """This environment's programs (rltrace, prometheus, promtool) are found first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{SYSTEM}/bin{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Path:
    """The folder of Perfetto's engine, for `opened`; each version in turn."""
    return SYSTEM / "engines" / request.param


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """What npm installed: the types of Grafana's JSON, and tsc to check with."""
    return SYSTEM / "node_modules"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, headless. While it is there this thread has a running event loop, so
    `asyncio.run` fails here: use a subprocess."""
    from tests.system.web import chromium

    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page in a context of its own, on a laptop's screen."""
    from tests.system.web import PATIENCE_MS

    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


@pytest.fixture
def seen(page: Page) -> Seen:
    """What happens in `page`: requests, errors, console messages."""
    from tests.system.web import Seen

    return Seen(page)
