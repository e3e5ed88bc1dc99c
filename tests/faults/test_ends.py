"""Workers that are killed, ended by the job itself, or left behind with their threads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.analysis import killed, lost, read_activity
from rltrace.testing.inside.trace import End, read_ends
from tests.hooks.conftest import RunJob, job  # noqa: F401

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
    context = multiprocessing.get_context("{kind}")
    here, there = context.Pipe()
    worker = context.Process(target=work, args=[there])
    worker.start()
    here.recv()
    {end}
    worker.join()
    print(worker.exitcode)
"""

THREADS = """
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
import rltrace
for n in range(4):
    with rltrace.step(n):
        with rltrace.span("train"): pass
"""

KILLED = "os.kill(worker.pid, signal.SIGKILL)"

WAYS = {
    "subprocess": BY_SUBPROCESS,
    "fork": BY_MULTIPROCESSING.replace("{kind}", "fork"),
    "spawn": BY_MULTIPROCESSING.replace("{kind}", "spawn"),
}


@pytest.mark.parametrize(
    ("way", "end", "code"),
    [
        ("subprocess", "worker.terminate()", -15),
        ("subprocess", KILLED, -9),
        ("fork", "worker.kill()", -9),
        ("fork", KILLED, -9),
        ("spawn", "worker.terminate()", -15),
    ],
)
def test_how_a_worker_ended_is_known(job: RunJob, way: str, end: str, code: int) -> None:  # noqa: F811
    indented = WAYS[way].replace("{end}", end)
    after = AFTERWARDS.replace("\n", "\n    ") if way == "spawn" else AFTERWARDS
    done = job(sys.executable, "{script}", program=indented + after)
    assert (done.code, done.out) == (0, f"{code}\n"), done.err
    run = rltrace.open_run(done.run_path)
    asked = end != KILLED
    assert list(read_ends(run.path, run.processes).values()) == [End(-code, asked)]
    activity = read_activity(run)
    silent = lost(run, activity, usual_s=1e-9, until_ns=activity.last_ns)
    assert [alarm.kind for alarm in silent] == ([] if asked else ["lost process"])
    said = killed(run, activity)
    assert len(said) == (not asked)
    if said:
        worker = run.processes[activity.open_spans[0].process]
        assert f"process (pid {worker.pid} on" in said[0].says
        assert said[0].says.endswith("by SIGKILL in “generate”")


def test_threads_that_a_process_leaves_at_work_are_no_lost_process(job: RunJob) -> None:  # noqa: F811
    done = job(sys.executable, "{script}", program=THREADS + AFTERWARDS)
    assert (done.code, done.out) == (0, "0\n"), done.err
    run = rltrace.open_run(done.run_path)
    assert list(read_ends(run.path, run.processes).values()) == [End(0, True)]
    activity = read_activity(run)
    assert [span.name for span in activity.open_spans] == ["generate"]
    assert lost(run, activity, usual_s=1e-9, until_ns=activity.last_ns) == []
    assert killed(run, activity) == []


def test_ends_of_a_stranger_are_skipped(run_path: Path) -> None:
    (run_path / "ends" / "nobody.jsonl").write_text('{"pid": 1}\n[]\nno json\n')
    run = rltrace.open_run(run_path)
    assert read_ends(run.path, run.processes) == {}
