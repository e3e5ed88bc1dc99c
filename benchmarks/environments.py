"""The environments that `make test-verl` and its like have made: frameworks in Pythons of their
own."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python_of(framework: str) -> Path | None:
    """The Python of a framework's environment, under the name that the Makefile gives it; None
    where that was not made."""
    pins = hashlib.sha256((ROOT / "pins" / f"{framework}.txt").read_bytes()).hexdigest()[:12]
    folder = ROOT / ".venvs" / f"{framework}-{pins}"
    return folder / "bin" / "python" if (folder / ".ready").exists() else None
