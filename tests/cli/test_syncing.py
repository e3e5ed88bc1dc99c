"""`rltrace sync` where not all is installed that it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("lacking", "words", "install"),
    [
        ("xxhash", "serve", "pip install 'rltrace-toolkit[sync]'"),
        ("zstandard", "serve", "pip install 'rltrace-toolkit[sync]'"),
        ("xxhash", "bench", "pip install 'rltrace-toolkit[sync]'"),
        ("torch", "bench", "pip install torch"),
    ],
)
def test_what_to_install_is_one_sentence(lacking: str, words: str, install: str) -> None:
    program = (
        f"import sys; sys.modules[{lacking!r}] = None;"
        f"from rltrace.cli import main; main(['sync', {words!r}], prog_name='rltrace')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    said = f"rltrace: rltrace sync needs {lacking}, which is not installed: {install}\n"
    assert (done.returncode, done.stderr) == (4, said)
