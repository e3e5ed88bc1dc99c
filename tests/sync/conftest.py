"""A place in shared memory for each test, and a job in it, removed after it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.sync.relays import Job


@pytest.fixture
def memory() -> Iterator[Path]:
    """An empty folder in shared memory."""
    root = Path(tempfile.mkdtemp(prefix="rltrace-test-", dir="/dev/shm"))
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def where(memory: Path) -> str:
    """A place for a policy, where there is none yet."""
    return f"shm://{memory}/policy"


@pytest.fixture
def j(memory: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    """A job of a learner; `parametrize("j", [BLOCKS], indirect=True)` says how large it is."""
    from tests.sync.relays import job

    with job(memory, getattr(request, "param", 6)) as made:
        yield made
