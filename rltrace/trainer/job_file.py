"""Jobs as TOML files: `[job]` holds settings, `[without]` those that take a wall's cause away,
`[control]` those that relieve another stage; what is said of a wall stands above.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rltrace.trace.given_files import text_given
from rltrace.trace.texts import parsed_toml
from rltrace.trainer.config import TrainerError

_WALL = ("wall", "metric", "warm_up", "without", "control")


def load_job(path: str | Path, without_cause: bool = False) -> dict[str, Any]:
    """The settings in a file, by name. Errors: `TrainerError` where it cannot be read."""
    try:
        tables = parsed_toml(text_given(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise TrainerError(f"cannot read settings from {path}: {why}") from None
    for name in tables.keys() - {"job", *_WALL}:
        raise TrainerError(f"{path} has no use for {name!r}: settings stand in [job] or [without]")
    settings: dict[str, Any] = {}
    for name in ("job", "without") if without_cause else ("job",):
        table = tables.get(name)
        if not isinstance(table, dict):
            raise TrainerError(f"{path} has no [{name}] table with settings")
        settings |= {key.replace("-", "_"): value for key, value in table.items()}
    return settings
