"""Where the files of the folder dashboards/ are: queries, Grafana's JSON, the template of the page.

A wheel has them in this package; in a checkout they stand beside it.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def folder(name: str) -> Path:
    """One of the folders in dashboards/, e.g. `folder("sql")`."""
    packaged = _PACKAGE / name
    return packaged if packaged.is_dir() else _PACKAGE.parents[1] / "dashboards" / name
