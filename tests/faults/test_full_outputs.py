"""What is written on a disk that has no room: a sentence, an exit code, and no part of a file."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

import rltrace
from tests.cli.conftest import invoke, run, small_run  # noqa: F401

OUTPUTS = {
    "timeline": ("timeline", "-o"),
    "otlp": ("export", "otlp", "-o"),
    "html": ("report", "--html"),
    "svg": ("report", "--svg"),
    "baseline": ("baseline", "-o"),
}


def fill(disk: Path, leave_bytes: int) -> None:
    """Leaves so much room on a disk."""
    with (disk / "filling").open("wb", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(file.tell() - leave_bytes)


@pytest.mark.parametrize("there", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("what", OUTPUTS)
def test_no_part_of_an_output_is_left(
    small_disk: Path,
    run: Path,  # noqa: F811
    what: str,
    there: bool,
) -> None:
    path = small_disk / "output"
    if there:
        path.write_bytes(b"old")
    fill(small_disk, 0)
    *command, option = OUTPUTS[what]
    done = invoke(*command, run, option, path)
    assert done.exit_code == 4, done.output
    assert "No space left on device" in done.output
    assert len(done.output.splitlines()) == 1
    assert path.exists() == there
    assert not there or path.read_bytes() == b"old"
    left = {file.name for file in small_disk.iterdir()}
    assert left == {"filling", *(["output"] if there else [])}


@pytest.mark.parametrize("leave_bytes", [0, 12_288, 24_576])
def test_no_part_of_a_compacted_run_is_left(
    small_disk: Path,
    run: Path,  # noqa: F811
    leave_bytes: int,
) -> None:
    path = Path(shutil.copytree(run, small_disk / "run"))
    spans = rltrace.open_run(path).spans.fetchall()
    fill(small_disk, leave_bytes)
    done = invoke("compact", path)
    assert done.exit_code == 4, done.output
    assert done.output == (
        f"rltrace: {path} is not compacted, since its disk is full ({path / 'parquet'} cannot be "
        "written): its segments are as they were and are read as before; free some room, or "
        "compact a copy on another disk\n"
    )
    assert not (path / "parquet").exists()
    assert rltrace.open_run(path).spans.fetchall() == spans
