"""A run of which nothing is left but Parquet files that cannot be read is said to be that, and is
never written over."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.trace import UNREADABLE, RltraceError, compact, delete_segments
from tests.cli.conftest import invoke
from tests.trace.test_run import old_copy


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A compacted run without its segments."""
    path = old_copy(tmp_path / "run")
    compact(rltrace.open_run(path))
    delete_segments(path)
    return path


def _newer(parquet: Path) -> None:
    manifest = parquet / "manifest.json"
    said = manifest.read_text()
    manifest.write_text(said.replace('"schema_version":1', '"schema_version":99'))
    assert manifest.read_text() != said


DAMAGES: dict[str, Callable[[Path], object]] = {
    "manifest.json is missing": lambda parquet: (parquet / "manifest.json").unlink(),
    "manifest.json is damaged": lambda parquet: (parquet / "manifest.json").write_text('{"sch'),
    "a later version of rltrace": _newer,
    "files that manifest.json names are missing": lambda parquet: shutil.rmtree(parquet / "spans"),
}


@pytest.mark.parametrize("why", DAMAGES)
@pytest.mark.parametrize("command", ["report", "info", "compact", "top --once"])
def test_each_command_says_so_and_leaves_every_file(kept: Path, why: str, command: str) -> None:
    DAMAGES[why](kept / "parquet")
    before = {file: file.read_bytes() for file in kept.rglob("*") if file.is_file()}
    done = invoke(*command.split(), kept)
    assert done.exit_code == UNREADABLE
    assert why in done.output
    assert {file: file.read_bytes() for file in before} == before


def test_it_is_read_again_once_they_are_back(kept: Path) -> None:
    manifest = kept / "parquet" / "manifest.json"
    aside = manifest.rename(kept / "aside.json")
    with pytest.raises(RltraceError, match="is missing"):
        rltrace.open_run(kept)
    aside.rename(manifest)
    assert rltrace.open_run(kept).rows("spans") > 0


def test_while_segments_are_there_it_is_compacted_anew(tmp_path: Path) -> None:
    """As after a compaction that was killed."""
    path = old_copy(tmp_path / "run")
    compact(rltrace.open_run(path))
    (path / "parquet" / "manifest.json").unlink()
    rows = rltrace.open_run(path).rows("spans")
    assert compact(rltrace.open_run(path)).rows["spans"] == rows > 0
