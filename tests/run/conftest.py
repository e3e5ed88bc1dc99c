"""Where runs of these tests are shipped to, and brought."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rltrace.testing.inside.trace import CACHE_VARIABLE
from tests.run.shipped import Shipping


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder to which runs are brought from URLs."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a run that is not there yet."""
    if request.param == "file":
        yield f"file://{tmp_path}/there/run"
        return
    import fsspec

    yield f"memory://{tmp_path}/run"
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def shipping(tmp_path: Path, url: str, cache: Path) -> Shipping:
    """A run that records and is shipped there."""
    return Shipping(tmp_path / "run", url)


@pytest.fixture
def to_disk(tmp_path: Path, cache: Path) -> Shipping:
    """One that is shipped to `there/run`."""
    return Shipping(tmp_path / "run", f"file://{tmp_path}/there/run")
