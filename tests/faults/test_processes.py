"""Processes that are killed, stopped, or very many: the job is what it is, and rows are counted."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.trace import read_run_json
from tests.conftest import Record
from tests.faults.counted import CountedJob, said_by_us, stop, until
from tests.patience import PATIENCE_S


def test_a_killed_worker_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    job = CountedJob(tmp_path, rows=2000, workers=3, hold_at=1000)
    process = job.start()
    os.kill(job.pids()[1], signal.SIGKILL)
    job.go()
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert out == f"{2 * sum(range(2000))} [0, -9, 0]\n"
    assert said_by_us(errors) == []
    assert job.stored() == [2000, 1000, 2000]
    assert job.wrong() == {}


@pytest.mark.parametrize("who", ["wrap", "agent", "command"])
def test_whoever_is_killed_the_workers_rows_are_there(tmp_path: Path, who: str) -> None:
    job = CountedJob(tmp_path, rows=600, workers=2, hold_at=300)
    process = job.start()
    job.until_held()
    pids = {"wrap": process.pid, "command": read_run_json(str(job.run))["command_pid"]}
    if who == "agent":
        pids["agent"] = job.agent()
    os.kill(pids[who], signal.SIGKILL)
    job.go()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == {"wrap": -9, "agent": 0, "command": 137}[who]
    until(lambda: job.stored() == [600, 600])  # the workers of a command that is gone go on
    assert job.wrong() == {}


@pytest.mark.slow
def test_a_job_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    """Workers, the command and the agent, as a scheduler or a debugger stops them."""
    job = CountedJob(tmp_path, rows=3000, workers=2, pause_s=0.003, hold_at=100)
    process = job.start()
    workers = job.pids().values()
    job.agent()
    processes = [p.pid for p in rltrace.open_run(job.run).processes]
    assert set(workers) < set(processes)
    job.go()
    for pid in processes:
        stop(pid)
    before = job.stored()
    assert max(before) < 3000
    time.sleep(1.5)
    assert job.stored() == before
    for pid in processes:
        os.kill(pid, signal.SIGCONT)
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, job.result + "\n")
    assert said_by_us(errors) == []
    assert job.stored() == [3000, 3000]
    assert job.wrong() == {}
    backwards = "SELECT count(*) FROM spans WHERE end_ns < start_ns OR end_ns IS NULL"
    assert rltrace.open_run(job.run).sql(backwards).fetchall() == [(0,)]


def test_hundreds_of_workers_at_once(run_path: Path, record: Record) -> None:
    """All are there before the first of them records."""
    done = record("""
begin, go = os.pipe()
workers = []
for worker in range(300):
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(begin, 1)
        for row in range(100):
            with rltrace.span("rollout", f"worker {worker}", version=worker, step=row): pass
        os._exit(worker % 7)
    workers.append(pid)
os.close(go)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]
print(codes == [worker % 7 for worker in range(300)])
""")
    assert (done.stdout, done.stderr) == ("True\n", "")
    run = rltrace.open_run(run_path)
    counts = run.sql(
        "SELECT count(*), count(DISTINCT (version, step)), count(DISTINCT process), min(step), "
        "max(step), count(*) FILTER (name = 'worker ' || version) FROM spans"
    )
    assert counts.fetchall() == [(30_000, 30_000, 300, 0, 99, 30_000)]
    assert run.problems == []


def test_short_processes_one_after_the_other(
    tmp_path: Path, record: Record, run_path: Path
) -> None:
    """400 forks; `benchmarks/short_processes.py` does 10,000 processes that start from nothing."""
    done = record("""
for worker in range(400):
    pid = os.fork()
    if pid == 0:
        with rltrace.span("reward", version=worker): pass
        rltrace.counter("n", worker)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
print("done")
""")
    assert (done.stdout, done.stderr) == ("done\n", "")
    run = rltrace.open_run(run_path)
    counts = "SELECT count(*), count(DISTINCT version), count(DISTINCT process) FROM spans"
    assert run.sql(counts).fetchall() == [(400, 400, 400)]
    assert run.sql("SELECT count(*), sum(value) FROM samples").fetchall() == [(400, 79800.0)]
