"""Bringing a run from its URL, with progress on a terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rltrace.trace.fetched import fetch
from rltrace.trace.store import is_url

_LEAST_BYTES = 4_000_000  # what is less is there at once


def place(run: str) -> Path:
    """Where a run is that was given by its path or its URL. Errors: `RltraceError`."""
    return bring(run) if is_url(run) else Path(run)


def bring(url: str) -> Path:
    """Brings what is new of the run at `url`; its directory here. Errors: `RltraceError`."""
    shown = False

    def tell(done_bytes: int, of_bytes: int) -> None:
        nonlocal shown
        if of_bytes >= _LEAST_BYTES and sys.stderr.isatty():
            line = f"\r{done_bytes / 1e6:,.1f} of {of_bytes / 1e6:,.1f} MB"
            click.echo(line, err=True, nl=False)
            shown = True

    try:
        return fetch(url, tell)
    finally:
        if shown:
            click.echo("\r\x1b[K", err=True, nl=False)
