"""Logs of finished runs, turned into run directories that every reader of traces takes.

Formats (`json_lines`, `event_files`, `wandb_files`, `console`) know nothing of frameworks; a
framework's file maps its metric names to stages, with the label map of its adapter; `run_writer`
writes the run.
"""

from __future__ import annotations

IMPORTERS = {"verl": "rltrace.importers.verl", "openrlhf": "rltrace.importers.openrlhf"}
"""Framework -> module with `read(path) -> ImportedRun`."""
