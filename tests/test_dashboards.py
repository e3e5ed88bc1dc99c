"""The folder dashboards/ is found, in a checkout and where a wheel was installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace import dashboards


def test_a_checkout_and_an_installation_find_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dashboards.folder("sql") == Path(__file__).parents[1] / "dashboards/sql"
    (tmp_path / "sql").mkdir()
    monkeypatch.setattr(dashboards, "_PACKAGE", tmp_path)  # as it is in a wheel
    assert dashboards.folder("sql") == tmp_path / "sql"
