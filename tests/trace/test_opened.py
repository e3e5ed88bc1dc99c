"""Files of a run are opened as no standard stream, and through no link."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rltrace.testing.inside.hooks import recorder as recording
from rltrace.testing.inside.trace import open_run
from rltrace.trace.safe_open import opened
from tests.hooks.conftest import WRAP, clean_environment
from tests.patience import PATIENCE_S

WARNING = b"a warning of the job's C code"
CLOSED = f"""
import os, rltrace
streams = [os.path.exists(f"/proc/self/fd/{{n}}") for n in range(3)]
for n in range(2000):
    with rltrace.span("train", f"name {{n % 50}}"): pass
    for number in range(3):
        try: os.write(number, {WARNING!r})
        except OSError: pass
assert [os.path.exists(f"/proc/self/fd/{{n}}") for n in range(3)] == streams
open("streams", "w").write(str(streams))
"""


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_a_job_without_standard_streams_writes_into_no_file_of_ours(
    tmp_path: Path, closed: tuple[int, ...]
) -> None:
    redirections = " ".join(f"{number}>&-" for number in closed)
    (tmp_path / "job.py").write_text(CLOSED)
    command = [*WRAP, "--out", "run", "--", sys.executable, "job.py"]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirections}', "sh", *command],
        cwd=tmp_path,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0
    assert (tmp_path / "streams").read_text() == str([n not in closed for n in range(3)])
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in written if WARNING in path.read_bytes()]
    recorded = open_run(tmp_path / "run")
    assert recorded.rows("spans") == 2000
    assert [p for p in recorded.problems if p["what"] != "no-gpu"] == []


def test_what_stands_in_a_file_s_place_is_left_alone(
    run_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As another user may have put it there: a link, and a pipe that nobody reads."""
    outside = run_path.parent / "outside"
    outside.write_text("kept")
    recorder = recording.start(str(run_path))
    assert recorder is not None
    (run_path / "names" / f"{recorder.who}.jsonl").symlink_to(outside)
    (run_path / "problems" / f"{recorder.who}.jsonl").symlink_to(outside)
    assert recorder.append("samples", time_ns=1, counter=0, device=-1, value=1.0) is not None
    recorder.failed(_error_of(lambda: recorder.name("a name")))
    assert recording.active() is None  # it has stopped, and said so
    assert "the job goes on" in capfd.readouterr().err
    assert outside.read_text() == "kept"
    pipe = run_path / "pipe"
    os.mkfifo(pipe)
    assert _error_of(opened(pipe, os.O_WRONLY).__enter__).errno == errno.ENXIO


def _error_of(does: object) -> OSError:
    assert callable(does)
    with pytest.raises(OSError) as error:  # noqa: PT011
        does()
    return error.value
