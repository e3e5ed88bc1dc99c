"""A place in shared memory for each test, and a job in it, removed after it."""

from __future__ import annotations

import os
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


ALONE = """
from pathlib import Path
from rltrace.testing.inside.sync import holders, policy_memory, shared_relay_files, wire
for module in (holders, policy_memory, shared_relay_files, wire):
    module.shared_memory = lambda: Path({folder!r})
"""


@pytest.fixture
def alone(memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shared memory that no other test has, for this process and for those that it starts. Whoever
    joins an address removes what killed processes have left in all of a user's."""
    folder = memory / "ours"
    folder.mkdir(mode=0o700)
    for module in (
        "memory.holders",
        "transfer.shared_relay_files",
        "memory.policy_memory",
        "transfer.wire",
    ):
        monkeypatch.setattr(f"rltrace.sync.{module}.shared_memory", lambda: folder)
    (tmp_path / "sitecustomize.py").write_text(ALONE.format(folder=str(folder)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return folder


@pytest.fixture
def j(memory: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    """A job of a learner; `parametrize("j", [BLOCKS], indirect=True)` says how large it is."""
    from tests.sync.relays import job

    with job(memory, getattr(request, "param", 6)) as made:
        yield made
