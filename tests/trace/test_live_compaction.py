"""A run is compacted while its job goes on: no row is lost or comes twice, and the job is left
alone."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.trace import (
    TABLES,
    RltraceError,
    delete_segments,
    liveness,
    read_manifest,
)
from rltrace.testing.inside.trace import compaction_compact as compact
from tests.patience import stop, until
from tests.trace.following import read


def wait_for_rows(run_path: Path, rows: int) -> None:
    files = run_path.glob
    until(lambda: sum(path.stat().st_size for path in files("samples/*.arrows")) > 24 * rows)


@contextmanager
def paused(job: subprocess.Popen[str]) -> Iterator[None]:
    """The job stands still, all of its threads."""
    stop(job.pid)
    try:
        yield
    finally:
        os.kill(job.pid, signal.SIGCONT)


def assert_whole(run_path: Path, tmp_path: Path) -> None:
    """With what is compacted it reads as from its segments alone."""
    plain = tmp_path / "plain"
    shutil.copytree(run_path, plain, ignore=shutil.ignore_patterns("parquet"))
    assert not read_manifest(plain)
    for table in TABLES.values():
        assert read(run_path, table) == read(plain, table), table.name
    shutil.rmtree(plain)


@pytest.mark.slow
def test_no_row_is_lost_or_comes_twice(
    run_path: Path, job: subprocess.Popen[str], tmp_path: Path
) -> None:
    compacted = []
    for number in (1, 2):
        wait_for_rows(run_path, number * 1_000)
        time.sleep(1.2)  # what ended a second ago is settled
        done = compact(rltrace.open_run(run_path), part_bytes=50_000)
        assert not done.settled
        compacted.append(sum(done.rows.values()))
        with paused(job):
            assert_whole(run_path, tmp_path)
    assert compacted[0] > 0
    assert compacted == sorted(compacted)
    assert not rltrace.open_run(run_path).is_compacted
    written, _ = job.communicate("")
    assert job.returncode == 0
    assert_whole(run_path, tmp_path)
    assert rltrace.open_run(run_path).rows("samples") == int(written)
    assert compact(rltrace.open_run(run_path)).settled
    assert rltrace.open_run(run_path).is_compacted
    assert_whole(run_path, tmp_path)


@pytest.mark.parametrize("where", ["another node", "another container"])
def test_from_elsewhere_nobody_can_tell_that_the_job_is_over(
    run_path: Path,
    job: subprocess.Popen[str],
    tmp_path: Path,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a login node, which sees the disk and not the processes: what is recorded later is
    there, and no segment is deleted before nothing has been heard of the run for long."""
    wait_for_rows(run_path, 1_000)
    with monkeypatch.context() as elsewhere:
        place = (liveness, "node_id") if where == "another node" else (socket, "gethostname")
        elsewhere.setattr(*place, lambda: "another")
        assert not compact(rltrace.open_run(run_path)).settled
        with pytest.raises(RltraceError, match="was still being recorded"):
            delete_segments(run_path)
        wait_for_rows(run_path, 2_000)
        with paused(job):
            assert_whole(run_path, tmp_path)
        written, _ = job.communicate("")
        assert job.returncode == 0
        assert rltrace.open_run(run_path).rows("samples") == int(written)
        before_s = time.time() - 700
        for file in run_path.glob("*/*"):
            os.utime(file, (before_s, before_s))
        assert compact(rltrace.open_run(run_path)).settled
        delete_segments(run_path)
    assert rltrace.open_run(run_path).rows("samples") == int(written)


def test_a_job_s_files_are_only_read_and_once_it_is_killed_it_is_compacted_whole(
    run_path: Path, job: subprocess.Popen[str], tmp_path: Path
) -> None:
    wait_for_rows(run_path, 1_000)
    with paused(job):
        files = [path for path in run_path.rglob("*") if path.is_file()]
        before = {path: (path.stat(), path.read_bytes()) for path in files}
        compact(rltrace.open_run(run_path))
        for path, (status, content) in before.items():
            after = path.stat()
            assert (after.st_ino, after.st_mtime_ns) == (status.st_ino, status.st_mtime_ns), path
            assert path.read_bytes() == content
    job.kill()
    job.wait()
    assert_whole(run_path, tmp_path)
    assert compact(rltrace.open_run(run_path)).settled
    assert_whole(run_path, tmp_path)
