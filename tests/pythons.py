"""Other Pythons of this machine, as far as there are any."""

from __future__ import annotations

import os
from pathlib import Path

from tests.hooks.conftest import untraced


def find_python(version: str) -> str | None:
    """The program of a version like `3.12`, of pyenv or on the PATH; None where there is none."""
    candidates = [
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"),
        *(Path(folder) / f"python{version}" for folder in os.environ["PATH"].split(":")),
    ]
    for candidate in candidates:
        if not candidate.exists():
            continue
        shown = untraced(str(candidate), "--version")
        if shown.returncode == 0 and f"Python {version}." in shown.stdout + shown.stderr:
            return str(candidate)
    return None
