"""A job that stands still: who is waited for, and that asking harms nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rltrace
from benchmarks.stuck.__main__ import run as run_hang
from benchmarks.stuck.hangs import KINDS as HANGS
from rltrace.testing.handmade_runs import process, rows, run_of
from rltrace.testing.inside.analysis import ProcessSeen, RunAnalysis, first_cause, summarize
from rltrace.testing.inside.run import computes, look, look_at, on_demand
from rltrace.testing.inside.trace import RltraceError


def _facts(run: Path) -> dict[str, dict[str, Any]]:
    found = {path.stem: json.loads(path.read_text()) for path in (run / "process").glob("*.json")}
    return {who: facts for who, facts in found.items() if facts.get("role") != "agent"}


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Callable[[str], tuple[Path, subprocess.Popen[str]]]]:
    """Starts a program, which says when it is there, in a run of its own."""
    started = []

    def start(program: str) -> tuple[Path, subprocess.Popen[str]]:
        run = tmp_path / "run"
        (tmp_path / "job.py").write_text("import rltrace\n" + textwrap.dedent(program))
        command = [sys.executable, "-m", "rltrace", "wrap", "--out", str(run)]
        command += ["--stuck-after", "1h", "--"]
        command += [sys.executable, str(tmp_path / "job.py")]
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        started.append(job)
        assert job.stdout is not None
        assert job.stdout.readline() == "there\n"
        return run, job

    yield start
    for job in started:
        job.kill()
        job.communicate()


def test_each_thread_that_waits_is_seen_with_its_lines(
    traced: Callable[[str], tuple[Path, subprocess.Popen[str]]],
) -> None:
    run, job = traced(
        """
        import sys, threading
        lock = threading.Lock(); lock.acquire()
        def waits_for_the_lock():
            lock.acquire()
        threading.Thread(target=waits_for_the_lock).start()
        def reads():
            sys.stdin.readline()
        with rltrace.step(0), rltrace.span("rollout"):
            print("there", flush=True)
            reads()
            lock.release()
        """
    )
    seen = look_at(run, _facts(run), 1.0)
    (process,) = seen.values()
    functions = [{line.function for line in thread.frames} for thread in process.threads]
    assert any("reads" in found for found in functions[:1])
    assert any("waits_for_the_lock" in found for found in functions[1:])
    assert not any(thread.moved for thread in process.threads)
    assert job.communicate("\n")[0] == ""
    assert job.returncode == 0


def test_a_program_that_took_the_place_of_the_process_is_not_ended(
    traced: Callable[[str], tuple[Path, subprocess.Popen[str]]],
) -> None:
    run, job = traced(
        """
        import os
        with rltrace.span("rollout"):
            print("there", flush=True)
        os.execvp("cat", ["cat"])
        """
    )
    facts = _facts(run)
    pid = next(iter(facts.values()))["pid"]
    while Path(f"/proc/{pid}/comm").read_text() != "cat\n":
        time.sleep(0.01)
    seen = look_at(run, facts, 0.1)
    assert [thread.frames for one in seen.values() for thread in one.threads] == [()]
    os.kill(pid, signal.SIGURG)  # as if it had become another between the look and the signal
    assert job.communicate("still here")[0] == "still here"
    assert job.returncode == 0


def test_nothing_is_written_where_the_job_has_a_file_of_its_own_by_now(
    traced: Callable[[str], tuple[Path, subprocess.Popen[str]]], tmp_path: Path
) -> None:
    run, job = traced(
        f"""
        import os, sys
        with rltrace.span("rollout"):
            pass
        os.closerange(3, 64)
        own = [os.open({str(tmp_path / "own")!r}, os.O_WRONLY | os.O_CREAT) for _ in range(40)]
        print("there", flush=True)
        sys.stdin.readline()
        """
    )
    seen = look_at(run, _facts(run), 0.1)
    assert [thread.frames for one in seen.values() for thread in one.threads[:1]] == [()]
    job.communicate("\n")
    assert (tmp_path / "own").read_bytes() == b""


def test_a_forked_child_is_seen_where_it_is_itself(
    traced: Callable[[str], tuple[Path, subprocess.Popen[str]]],
) -> None:
    run, job = traced(
        """
        import os, sys, threading
        with rltrace.span("rollout"):
            pass
        def in_the_child():
            sys.stdin.readline()
        def in_the_parent():
            os.wait()
        if os.fork() == 0:
            with rltrace.span("train"):
                print("there", flush=True)
                in_the_child()
                os._exit(0)
        in_the_parent()
        """
    )
    seen = look_at(run, _facts(run), 0.5)
    functions = [{line.function for line in one.threads[0].frames} for one in seen.values()]
    assert sorted(len(found & {"in_the_child", "in_the_parent"}) for found in functions) == [1, 1]
    assert functions[0] != functions[1]
    job.communicate("\n")
    assert job.returncode == 0


def test_a_poll_and_a_sleep_are_left_alone_unless_somebody_asks(
    traced: Callable[[str], tuple[Path, subprocess.Popen[str]]],
) -> None:
    run, job = traced(
        """
        import ctypes, sys
        print("there", flush=True)
        with rltrace.span("rollout"):
            code = ctypes.CDLL(None, use_errno=True).poll(None, 0, 4000)
        print(code, flush=True)
        """
    )
    seen = look_at(run, _facts(run), 1.0)
    assert [one.threads[0].frames for one in seen.values()] == [()]
    assert job.communicate()[0] == "0\n"


def test_on_demand_says_who_is_waited_for(
    traced: Callable[[str], tuple[Path, subprocess.Popen[str]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, job = traced(
        """
        import sys
        with rltrace.step(7):
            def judges():
                with rltrace.reward("sample", 0.0):
                    print("there", flush=True)
                    sys.stdin.readline()
            judges()
        """
    )
    stuck, _ = on_demand(run)
    assert (stuck.step, stuck.culprit.kind) == (7, "open work")
    assert stuck.culprit.place.endswith("judges")
    look(str(run), 0.01, 0.01)
    assert json.loads(capsys.readouterr().out)["culprit"]["place"] == stuck.culprit.place
    look(str(run), 3600.0, 3600.0)
    assert json.loads(capsys.readouterr().out)["again_s"] > 3000
    job.communicate("\n")
    with pytest.raises(RltraceError):
        on_demand(run)


def test_locks_are_the_cause_of_work_that_waits_for_them(
    traced: Callable[[str], tuple[Path, subprocess.Popen[str]]],
) -> None:
    run, job = traced(
        """
        import threading, sys, os
        first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
        def takes(mine, other):
            with mine:
                both.wait()
                with other:
                    pass
        threading.Thread(target=takes, args=(second, first), daemon=True).start()
        def ends():
            sys.stdin.readline()
            os._exit(0)
        threading.Thread(target=ends, daemon=True).start()
        with rltrace.step(3), rltrace.span("train"):
            print("there", flush=True)
            takes(first, second)
        """
    )
    stuck, _ = on_demand(run)
    assert (stuck.step, stuck.culprit.kind) == (3, "locks")
    assert {stuck.culprit.place, *stuck.also} >= {f"{run.parent}/job.py:8 takes"}
    job.communicate("\n")


def test_a_job_that_rests_between_steps_is_not_stuck(
    traced: Callable[[str], tuple[Path, subprocess.Popen[str]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, job = traced(
        """
        import sys
        for step in range(3):
            with rltrace.step(step), rltrace.span("train"):
                pass
        print("there", flush=True)
        sys.stdin.readline()
        """
    )
    time.sleep(1)
    look(str(run), 0.1, 3600.0)
    assert "culprit" not in json.loads(capsys.readouterr().out)
    assert on_demand(run)[0].moves
    job.communicate("\n")
    assert job.returncode == 0


def test_a_thread_at_a_call_is_named_before_the_coroutine_that_waits_for_it(
    traced: Callable[[str], tuple[Path, subprocess.Popen[str]]],
) -> None:
    run, job = traced(
        """
        import asyncio, os, sys
        begun, answered = os.pipe(), os.pipe()
        def answers():
            os.write(begun[1], b"x")
            sys.stdin.readline()
            os.write(answered[1], b"x")
        async def serves():
            await asyncio.get_running_loop().run_in_executor(None, answers)
        async def asks():
            answer = asyncio.Event()
            asyncio.get_running_loop().add_reader(answered[0], answer.set)
            with rltrace.trajectory("sample"):
                os.read(begun[0], 1)
                print("there", flush=True)
                await answer.wait()
        if os.fork() == 0:
            with rltrace.span("other"):
                pass
            asyncio.run(serves())
            os._exit(0)
        with rltrace.step(0):
            asyncio.run(asks())
        """
    )
    culprit = on_demand(run)[0].culprit
    parent = min(one["pid"] for one in _facts(run).values())
    assert (culprit.kind, culprit.pid != parent) == ("open work", True)
    assert culprit.place.endswith(" answers")
    job.communicate("\n")
    assert job.returncode == 0


@pytest.mark.parametrize("step", ["rltrace.step(0)", "contextlib.nullcontext()"])
def test_a_job_that_moves_data_is_stuck_only_in_a_step(
    step: str,
    traced: Callable[[str], tuple[Path, subprocess.Popen[str]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, job = traced(
        f"""
        import contextlib, select, sys
        with {step}:
            with rltrace.span("train"):
                pass
            print("there", flush=True)
            with open("/dev/zero", "rb") as zeros:
                while not select.select([sys.stdin], [], [], 0.01)[0]:
                    zeros.read(1 << 20)
        """
    )
    time.sleep(6)  # more than ten times as long
    look(str(run), 0.5, 0.5)
    assert ("culprit" in json.loads(capsys.readouterr().out)) == ("step" in step)
    job.communicate("\n")
    assert job.returncode == 0


def test_a_thread_that_waits_now_and_then_is_seen_as_it_waits(
    traced: Callable[[str], tuple[Path, subprocess.Popen[str]]],
) -> None:
    """It works half of the time: as one does that waits for a core, and wakes often."""
    run, job = traced(
        """
        import select, sys, time
        with rltrace.span("rollout"):
            print("there", flush=True)
            while not select.select([sys.stdin], [], [], 0.03)[0]:
                until = time.monotonic() + 0.04
                while time.monotonic() < until:
                    pass
        """
    )
    for _ in range(6):
        (seen,) = look_at(run, _facts(run), 0.1).values()
        assert seen.threads[0].wait != ""
    job.communicate("\n")
    assert job.returncode == 0


def test_which_gpus_work_and_which_are_idle_is_told(tmp_path: Path) -> None:
    """By made-up samples, as a machine without GPUs has none. Before the silence all three work."""
    watched = {
        "busy": [90.0, 100.0, 100.0],
        "idle": [90.0, 0.0, 0.0],
        "neither": [90.0, 90.0, 10.0],
    }
    agent = process("agent")
    for device, values in enumerate(watched.values()):
        rows(agent, "samples", time_s=[9.0, 20.0, 40.0], value=values, device=device,
             counter="gpu/busy_percent")  # fmt: skip
    run = run_of(tmp_path, process("learner", (("step", 0), 0, 10), ("train", 1, 10)), agent)
    analysis = RunAnalysis(run)
    seen = {one.who: ProcessSeen(one.pid, True, "S", ()) for one in run.processes}
    since_ns = first_cause(analysis, seen, 0).since_ns
    told = first_cause(analysis, seen, since_ns + 60 * 10**9).gpus
    assert [line.split()[0] + line.split()[-1] for line in told] == ["0busy", "1idle"]


def test_a_wait_for_another_thread_is_none_for_a_child(
    traced: Callable[[str], tuple[Path, subprocess.Popen[str]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A thread that wakes often is not asked for its stack: the kernel's word has to do."""
    run, job = traced(
        """
        import sys, threading
        ends = threading.Event()
        def reads():
            sys.stdin.readline()
            ends.set()
        threading.Thread(target=reads, daemon=True).start()
        with rltrace.step(0):
            with rltrace.span("train"):
                pass
            print("there", flush=True)
            while not ends.wait(0.002):
                pass
        """
    )
    time.sleep(2)
    look(str(run), 0.1, 0.1)  # more than ten times as long: it may be busy
    culprit = json.loads(capsys.readouterr().out)["culprit"]
    assert (culprit["kind"], "child" in culprit["says"]) == ("unknown", False)
    job.communicate("\n")
    assert job.returncode == 0


@pytest.mark.slow
def test_twelve_hangs_are_named_and_end_as_they_would(tmp_path: Path) -> None:
    def hang(kind: str) -> tuple[str, str, int | None]:
        (tmp_path / kind).mkdir()
        outcome = run_hang(kind, tmp_path / kind, "2s")
        return kind, outcome.missed, outcome.exit_code

    with ThreadPoolExecutor(3) as beside:
        found = list(beside.map(hang, HANGS))
    assert found == [(kind, "", 0) for kind in HANGS]


@pytest.mark.slow
def test_a_stuck_job_is_ended_where_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import rltrace, threading\n"
        "for step in range(4):\n"
        "    with rltrace.step(step), rltrace.span('train'):\n"
        "        threading.Event().wait(0.1 if step < 3 else None)\n"
    )
    base = [sys.executable, "-m", "rltrace", "wrap", "--stuck-after", "2s", "--out"]
    job = [sys.executable, str(tmp_path / "job.py")]
    killed = subprocess.run(
        [*base, str(tmp_path / "a"), "--on-stuck", "kill", "--", *job], check=False, timeout=120
    )
    assert killed.returncode == 128 + signal.SIGTERM
    command = f'printf %s "$RLTRACE_STUCK" > {tmp_path}/told; kill $(pgrep -f {tmp_path}/job.py)'
    subprocess.run(
        [*base, str(tmp_path / "b"), "--on-stuck", command, "--", *job], check=False, timeout=120
    )
    told = json.loads((tmp_path / "told").read_text())
    assert (told["step"], told["run"]) == (3, str(tmp_path / "b"))
    found = summarize(rltrace.open_run(tmp_path / "a"))
    kinds = [one.kind for one in found.health.alarms]
    assert found.stuck is not None
    assert found.stuck.step == 3
    assert "stuck" in kinds
    assert "hang" not in kinds


def test_work_that_gets_no_core_is_work() -> None:
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(4)]
    resting = subprocess.Popen(["sleep", "60"])
    try:
        assert all(computes([one.pid]) for one in spinning)
        assert not computes([resting.pid])
    finally:
        for one in (*spinning, resting):
            one.kill()
            one.wait()
