"""What is written on a disk that has no room: a sentence, an exit code, and no part of a file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import rltrace
from tests.cli.conftest import invoke, run, small_run  # noqa: F401
from tests.faults.counted import fill

OUTPUTS = {
    "timeline": ("timeline", "-o"),
    "html": ("report", "--html"),
    "svg": ("report", "--svg"),
    "baseline": ("baseline", "-o"),
}


@pytest.mark.parametrize("there", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("what", OUTPUTS)
def test_no_part_of_an_output_is_left(small_disk: Path, run: Path, what: str, there: bool) -> None:  # noqa: F811
    path = small_disk / "output"
    if there:
        path.write_bytes(b"old")
    fill(small_disk)
    *command, option = OUTPUTS[what]
    done = invoke(*command, run, option, path)
    assert done.exit_code == 4, done.output
    assert len(done.output.splitlines()) == 1
    left = {file.name: file.read_bytes() for file in small_disk.iterdir() if file.name != "filling"}
    assert left == ({"output": b"old"} if there else {})


@pytest.mark.parametrize("leave_bytes", [0, 12_288, 24_576])
def test_no_part_of_a_compacted_run_is_left(small_disk: Path, run: Path, leave_bytes: int) -> None:  # noqa: F811
    path = Path(shutil.copytree(run, small_disk / "run"))
    spans = rltrace.open_run(path).spans.fetchall()
    fill(small_disk, leave_bytes)
    done = invoke("compact", path)
    assert done.exit_code == 4, done.output
    assert str(path / "parquet") in done.output
    assert len(done.output.splitlines()) == 1
    assert not (path / "parquet").exists()
    assert rltrace.open_run(path).spans.fetchall() == spans
