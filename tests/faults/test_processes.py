"""Processes that are killed, ended by the job, left with their threads, or very many: the job is
what it is, rows are counted, and how each ended is known."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.analysis import RunAnalysis, read_activity
from rltrace.testing.inside.trace import End, read_ends, read_run_json
from tests.conftest import Record
from tests.faults.counted import CountedJob, said_by_us
from tests.hooks.conftest import RunJob
from tests.patience import PATIENCE_S, until


@pytest.mark.parametrize("who", ["worker", "wrap", "agent", "command"])
def test_whoever_is_killed_nothing_that_was_stored_is_lost(tmp_path: Path, who: str) -> None:
    job = CountedJob(tmp_path, rows=2000, workers=3, hold_at=1000)
    process = job.start()
    pids = {"worker": job.pids()[1], "wrap": process.pid, "agent": job.agent()}
    pids["command"] = read_run_json(str(job.run))["command_pid"]
    os.kill(pids[who], signal.SIGKILL)
    job.go()
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == {"wrap": -9, "command": 137}.get(who, 0)
    stored = [2000, 1000 if who == "worker" else 2000, 2000]
    until(lambda: job.stored() == stored)  # the workers of a command that is gone go on
    assert job.wrong() == {}
    if who == "worker":
        assert out == f"{2 * sum(range(2000))} [0, -9, 0]\n"
        assert said_by_us(errors) == []


def test_hundreds_of_workers_at_once(run_path: Path, record: Record) -> None:
    """All are there before the first of them records; `benchmarks/short_processes.py` does 10,000
    processes that start from nothing."""
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
        rltrace.counter("n", worker)
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
    assert run.sql("SELECT count(*), sum(value) FROM samples").fetchall() == [(300, 44_850.0)]
    assert run.problems == []


BY_SUBPROCESS = """
import subprocess, sys, os, signal
code = '''
import os, time, rltrace
with rltrace.span("rollout", "generate"):
    print(os.getpid(), flush=True)
    time.sleep(600)
'''
worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
worker.stdout.readline()
{end}
print(worker.wait())
"""

BY_MULTIPROCESSING = """
import multiprocessing, os, signal, time
import rltrace
def work(said):
    with rltrace.span("rollout", "generate"):
        said.send(1)
        time.sleep(600)
if __name__ == "__main__":
    context = multiprocessing.get_context("{way}")
    here, there = context.Pipe()
    worker = context.Process(target=work, args=[there])
    worker.start()
    here.recv()
    {end}
    worker.join()
    print(worker.exitcode)
"""

LEAVES_A_THREAD = """
import subprocess, sys
code = '''
import threading, time, rltrace
begun = threading.Event()
def work():
    with rltrace.span("rollout", "generate"):
        begun.set()
        time.sleep(600)
threading.Thread(target=work, daemon=True).start()
begun.wait()
'''
print(subprocess.run([sys.executable, "-c", code]).returncode)
"""

AFTERWARDS = """
if __name__ == "__main__":
    for n in range(8):
        with rltrace.step(n), rltrace.span("train"): pass
"""

PROGRAMS = {"subprocess": BY_SUBPROCESS, "thread": LEAVES_A_THREAD}
KILLED = "os.kill(worker.pid, signal.SIGKILL)"


@pytest.mark.parametrize(
    ("way", "end", "ended"),
    [
        ("subprocess", "worker.terminate()", End(15, True)),
        ("subprocess", KILLED, End(9, False)),
        ("fork", "worker.kill()", End(9, True)),
        ("fork", KILLED, End(9, False)),
        ("spawn", "worker.terminate()", End(15, True)),
        ("fork", f"{KILLED}; time.sleep(0.2); worker.terminate()", End(9, False)),  # too late
        ("thread", "", End(0, True)),  # its span is left open
    ],
)
def test_how_a_worker_ended_is_known(job: RunJob, way: str, end: str, ended: End) -> None:
    program = PROGRAMS.get(way, BY_MULTIPROCESSING).replace("{way}", way).replace("{end}", end)
    done = job(sys.executable, "{script}", program="import rltrace" + program + AFTERWARDS)
    assert (done.code, done.out) == (0, f"{-ended.signal}\n"), done.err
    run = rltrace.open_run(done.run_path)
    assert list(read_ends(run.path, run.processes).values()) == [ended]
    activity = read_activity(run)
    (left,) = activity.open_spans
    assert left.name == "generate"
    alarms = {one.kind: one.says for one in RunAnalysis(run).health.alarms}
    assert set(alarms) == (set() if ended.asked else {"lost process", "failed process"})
    if not ended.asked:
        assert f"(pid {run.processes[left.process].pid} on " in alarms["failed process"]
        assert "SIGKILL" in alarms["failed process"]


BY_EXCEPTION = """
import multiprocessing, time
def work():
    with rltrace.span("rollout", "generate"):
        raise KeyError("x")
if __name__ == "__main__":
    worker = multiprocessing.get_context("{way}").Process(target=work)
    worker.start()
    time.sleep(0 if "{way}" == "fork" else 1.5)
    {end}
    worker.join()
"""


@pytest.mark.parametrize(
    ("way", "end"), [("fork", "time.sleep(0.5); worker.terminate()"), ("spawn", "")]
)
def test_a_worker_that_an_exception_ended_is_named(job: RunJob, way: str, end: str) -> None:
    program = BY_EXCEPTION.replace("{way}", way).replace("{end}", end)
    done = job(sys.executable, "{script}", program="import rltrace" + program + AFTERWARDS)
    assert done.code == 0
    assert "KeyError: 'x'" in done.err
    assert "multiprocessing/" in done.err.split("Traceback")[1]
    assert "rltrace/hooks" not in done.err  # the traceback is the job's own
    (alarm,) = RunAnalysis(rltrace.open_run(done.run_path)).health.alarms
    assert alarm.kind == "failed process"
    assert "KeyError at " in alarm.says


def test_a_worker_that_ended_with_a_code_is_named(job: RunJob) -> None:
    program = BY_EXCEPTION.replace('raise KeyError("x")', "pass\n    import os; os._exit(3)")
    program = "import rltrace" + program.replace("{way}", "fork").replace("{end}", "") + AFTERWARDS
    done = job(sys.executable, "{script}", program=program)
    (alarm,) = RunAnalysis(rltrace.open_run(done.run_path)).health.alarms
    assert alarm.kind == "failed process"
    assert "exit code 3" in alarm.says


def test_a_thread_that_an_exception_ended_is_named(job: RunJob) -> None:
    ways = "import threading\nworker = threading.Thread(target=work, name='prefetch')\n"
    thread = (
        BY_EXCEPTION.split("if __name__", maxsplit=1)[0] + ways + "worker.start(); worker.join()\n"
    )
    done = job(sys.executable, "{script}", program="import rltrace" + thread + AFTERWARDS)
    assert done.code == 0
    assert "rltrace/hooks" not in done.err  # the traceback is the job's own
    (alarm,) = RunAnalysis(rltrace.open_run(done.run_path)).health.alarms
    assert (alarm.kind, alarm.forbids) == ("failed thread", False)
    assert "“prefetch”, failed: KeyError at " in alarm.says


def test_what_ended_the_job_is_named(job: RunJob) -> None:
    program = "import rltrace\nwith rltrace.span('train'): raise LookupError('secret')\n"
    done = job(sys.executable, "{script}", program=program)
    assert done.code == 1
    (alarm,) = RunAnalysis(rltrace.open_run(done.run_path)).health.alarms
    assert alarm.kind == "crash"
    assert "LookupError at " in alarm.says
    assert "secret" not in alarm.says
