"""A file in TOML, which Python reads itself since 3.11."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rltrace.trace.errors import WRONG_USAGE, RltraceError
from rltrace.trace.given_files import text_given
from rltrace.trace.texts import parsed_toml


def read_toml(path: Path) -> dict[str, Any]:
    """What a file holds. Errors: `RltraceError` for one that is missing or no TOML."""
    try:
        return parsed_toml(text_given(path))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise RltraceError(f"{path} cannot be read: {why}", WRONG_USAGE) from None
    except ValueError as error:
        raise RltraceError(f"{path} is no TOML: {error}", WRONG_USAGE) from None
