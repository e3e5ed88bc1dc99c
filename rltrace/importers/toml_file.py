"""A file in TOML, which Python reads itself since 3.11."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rltrace.trace.errors import WRONG_USAGE, RltraceError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(path: Path) -> dict[str, Any]:
    """What a file holds. Errors: `RltraceError` for one that is missing or no TOML."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise RltraceError(f"{path} cannot be read: {why}", WRONG_USAGE) from None
    except tomllib.TOMLDecodeError as error:
        raise RltraceError(f"{path} is no TOML: {error}", WRONG_USAGE) from None
