"""A run is compacted while its job goes on: no row is lost or comes twice, and the job is left
alone."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.trace import (
    TABLES,
    RltraceError,
    compact,
    create_run,
    delete_segments,
    liveness,
    read_manifest,
)
from tests.faults.counted import stop, until
from tests.trace.following import read

WRITER = """
import sys, threading, time, random
from rltrace.testing.inside.hooks import Recorder
recorder = Recorder(sys.argv[1], role="writer")
stopping = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopping.set())).start()
counts = []
def work(seed):
    draw = random.Random(seed)
    n = 0
    while not stopping.is_set():
        n += 1
        outer = recorder.begin(recorder.name(f"outer {seed} {n % 50}"), 0, tokens=n, items=seed)
        now = time.monotonic_ns()
        row = recorder.append("trajectories", start_ns=now, trajectory=n, group=seed)
        recorder.begin(recorder.name("inner"), 1, bytes=n).end()
        if draw.random() < 0.9:
            row.set(end_ns=now + 10, response_tokens=n % 100)
        if draw.random() < 0.99:
            outer.end()
        recorder.append("samples", time_ns=now, counter=recorder.name("x_bytes"), value=n / 2)
        if n % 8 == 0:
            time.sleep(0.02 if n < 1_500 else 1.0)  # so few that each can be looked at
    counts.append(n)
workers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
for one in workers:
    one.start()
for one in workers:
    one.join()
print(sum(counts))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    create_run(str(path), ["job"], {}, "test")
    return path


@pytest.fixture
def job(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def wait_for_rows(folder: Path, rows: int) -> None:
    files = folder.glob
    until(lambda: sum(path.stat().st_size for path in files("samples/*.arrows")) > 24 * rows)


@contextmanager
def paused(job: subprocess.Popen[str]) -> Iterator[None]:
    """The job stands still, all of its threads."""
    stop(job.pid)
    try:
        yield
    finally:
        os.kill(job.pid, signal.SIGCONT)


def assert_whole(folder: Path, tmp_path: Path) -> None:
    """With what is compacted it reads as from its segments alone."""
    plain = tmp_path / "plain"
    shutil.copytree(folder, plain, ignore=shutil.ignore_patterns("parquet"))
    assert not read_manifest(plain)
    for table in TABLES.values():
        assert read(folder, table) == read(plain, table), table.name
    shutil.rmtree(plain)


@pytest.mark.slow
def test_no_row_is_lost_or_comes_twice(
    folder: Path, job: subprocess.Popen[str], tmp_path: Path
) -> None:
    compacted = []
    for number in (1, 2):
        wait_for_rows(folder, number * 1_000)
        time.sleep(1.2)  # what ended a second ago is settled
        done = compact(rltrace.open_run(folder), part_bytes=50_000)
        assert not done.settled
        compacted.append(sum(done.rows.values()))
        with paused(job):
            assert_whole(folder, tmp_path)
    assert compacted[0] > 0
    assert compacted == sorted(compacted)
    assert not rltrace.open_run(folder).is_compacted
    written, _ = job.communicate("")
    assert job.returncode == 0
    assert_whole(folder, tmp_path)
    assert rltrace.open_run(folder).rows("samples") == int(written)
    assert compact(rltrace.open_run(folder)).settled
    assert rltrace.open_run(folder).is_compacted
    assert_whole(folder, tmp_path)


def test_the_files_of_a_job_that_goes_on_are_only_read(
    folder: Path, job: subprocess.Popen[str]
) -> None:
    wait_for_rows(folder, 1_000)
    with paused(job):
        files = [path for path in folder.rglob("*") if path.is_file()]
        before = {path: (path.stat(), path.read_bytes()) for path in files}
        compact(rltrace.open_run(folder))
        for path, (status, content) in before.items():
            after = path.stat()
            assert (after.st_ino, after.st_mtime_ns) == (status.st_ino, status.st_mtime_ns), path
            assert path.read_bytes() == content
    job.communicate("")
    assert job.returncode == 0


@pytest.mark.parametrize("where", ["another node", "another container"])
def test_from_elsewhere_nobody_can_tell_that_the_job_is_over(
    folder: Path,
    job: subprocess.Popen[str],
    tmp_path: Path,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a login node, which sees the disk and not the processes: what is recorded later is
    there, and no segment is deleted before nothing has been heard of the run for long."""
    wait_for_rows(folder, 1_000)
    with monkeypatch.context() as elsewhere:
        if where == "another node":
            elsewhere.setattr(liveness, "node_id", lambda: "another")
        else:
            elsewhere.setattr(socket, "gethostname", lambda: "another")
        assert not compact(rltrace.open_run(folder)).settled
        with pytest.raises(RltraceError, match="was still being recorded"):
            delete_segments(folder)
        wait_for_rows(folder, 2_000)
        with paused(job):
            assert_whole(folder, tmp_path)
        written, _ = job.communicate("")
        assert job.returncode == 0
        assert rltrace.open_run(folder).rows("samples") == int(written)
        before_s = time.time() - 700
        for file in folder.glob("*/*"):
            os.utime(file, (before_s, before_s))
        assert compact(rltrace.open_run(folder)).settled
        delete_segments(folder)
    assert rltrace.open_run(folder).rows("samples") == int(written)


def test_a_killed_job_is_compacted_whole(
    folder: Path, job: subprocess.Popen[str], tmp_path: Path
) -> None:
    wait_for_rows(folder, 1_000)
    compact(rltrace.open_run(folder))
    job.kill()
    job.wait()
    assert_whole(folder, tmp_path)
    assert compact(rltrace.open_run(folder)).settled
    assert_whole(folder, tmp_path)
