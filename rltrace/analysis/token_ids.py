"""The token ids of samples that a run was asked to hold (`wrap --capture-tokens`), and why it holds
none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rltrace.trace.manifest import read_manifest
from rltrace.trace.run_dir import CAPTURE_TOKENS
from rltrace.trace.schema import CAPTURED_TOKENS, TABLES

if TYPE_CHECKING:
    from rltrace.trace.run import Run

DROPPED, DELETED, NEVER = "dropped", "deleted", "never"


def holds_token_ids(run: Run) -> bool | None:
    """Whether a run does; None where it does not and nobody has asked."""
    if run.has_rows(CAPTURED_TOKENS.name):
        return True
    return False if (run.meta.get("settings") or {}).get(CAPTURE_TOKENS) is True else None


def why_none(run: Run) -> str:
    """Why a run that was asked for them holds none: all were `DROPPED` to keep it small, somebody
    has `DELETED` them, or, as far as its files tell, there were `NEVER` any."""
    name = CAPTURED_TOKENS.name
    manifest = read_manifest(run.path)
    others = all((run.path / table).is_dir() for table in TABLES if table != name)
    folder_is_gone = others and not (run.path / name).exists()
    if folder_is_gone or (manifest is not None and manifest.captured_tokens):
        return DELETED
    return DROPPED if run.dropped is not None and run.dropped.rows.get(name) else NEVER
