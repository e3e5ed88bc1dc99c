"""The bytecode of what runs in every traced process: compiled once, before the job starts.

Under PYTHONDONTWRITEBYTECODE, or in an editable install that was never imported, each process of
the job would compile our modules anew, which is five times the cost of loading them.
"""

from __future__ import annotations

import importlib.util
import py_compile
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_TRACED = ("__init__.py", "trace/*.py", "hooks/*.py", "adapters/*.py")


def compile_traced_modules() -> None:
    """Writes the bytecode that is missing or older than its source; where the installation cannot
    be written to, nothing happens."""
    for pattern in _TRACED:
        for source in _ROOT.glob(pattern):
            cached = Path(importlib.util.cache_from_source(str(source)))
            try:
                if not cached.exists() or cached.stat().st_mtime < source.stat().st_mtime:
                    py_compile.compile(str(source), doraise=True)
            except (OSError, py_compile.PyCompileError):
                return
