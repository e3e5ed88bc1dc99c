"""Chromium, and what a page in it does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

_QUIET = (
    "--no-sandbox",  # root in a container has none
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

PATIENCE_MS = 600_000  # machines are busy, and how long a page takes is no question of a test


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium that asks the internet for nothing of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(_QUIET)
        )
        yield browser
        browser.close()


class Seen:
    """What a page asked for and said since it was opened."""

    def __init__(self, page: Page) -> None:
        self.requests: list[str] = []
        """URLs, without data: and blob:."""
        self.errors: list[str] = []
        """Uncaught exceptions, failed requests and console errors."""
        page.on("request", lambda request: self._requested(request.url))
        page.on("requestfailed", lambda request: self.errors.append(f"failed: {request.url}"))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self._said(message.type, message.text))

    def _requested(self, url: str) -> None:
        if not url.startswith(("data:", "blob:")):
            self.requests.append(url)

    def _said(self, kind: str, text: str) -> None:
        if kind == "error":
            self.errors.append(text)
