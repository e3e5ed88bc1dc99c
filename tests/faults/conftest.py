"""Disks and clocks that tests of faults stand on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.means import cannot_be_made
from tests.hooks.conftest import job  # noqa: F401


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 700 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        cannot_be_made(
            "no small file system can be mounted here (that takes root, or a container that may); "
            "a disk that is full by a limit on files is in tests/hooks/test_recorder.py"
        )
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands before the C library's clock, since nobody may set this machine's."""
    compiler = shutil.which("cc")
    if compiler is None:
        cannot_be_made(
            "there is no C compiler (`cc`) here, and only a few lines of C set the clock of a "
            "single process; clocks a day apart are in tests/run/test_agent.py"
        )
    library = tmp_path_factory.mktemp("shim") / "clock.so"
    source = Path(__file__).with_name("clock_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library
