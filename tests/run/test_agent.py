"""The agent of a node: what it reads, whom it compares clocks with, and that it ends."""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import rltrace
from rltrace.run.node.clock_exchange import ClockServer as Server
from rltrace.run.node.clock_exchange import measure, own_addresses
from rltrace.testing.clocks import A_DAY_S
from rltrace.testing.inside.hooks import RUN_VARIABLE, SITE
from rltrace.testing.inside.run import (
    AgentKeeper,
    agent_lock,
    close_run,
    examine,
    make_run,
    start_agent,
)
from rltrace.testing.inside.trace import cores_of, node_id, update_run_json
from tests.clocks import ahead
from tests.hooks.conftest import clean_environment, untraced, wrapped
from tests.patience import PATIENCE_S, until
from tests.run.test_wrap import started

PY = sys.executable


def start_wrap(run: Path, code: str, **env: str) -> subprocess.Popen[str]:
    words = ("--out", str(run), "--", PY, "-c", code)
    return started(run.parent, *words, env=env, stdout=subprocess.DEVNULL)


def until_there(file: Path) -> str:
    """Code that waits for a file."""
    return f"import os, time\nwhile not os.path.exists({str(file)!r}): time.sleep(0.02)\n"


@contextmanager
def at_work(run: Path, code: str = "") -> Iterator[int]:
    """A job under wrap that waits; the pid of its agent. At the end of the block it runs the code
    and ends well."""
    job = start_wrap(run, until_there(run.parent / "go") + code)
    yield agent_pid(run)
    (run.parent / "go").touch()
    assert job.wait(PATIENCE_S) == 0


def agent_pid(run: Path, node: str | None = None) -> int:
    """The pid of a node's agent, once it has introduced itself."""
    file = run / "nodes" / f"{node or node_id()}.json"
    until(file.exists), "the agent never came"
    return int(json.loads(file.read_text())["pid"])


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def clock_lines(run: Path, node: str) -> list[dict[str, int]]:
    path = run / "clocks" / f"{node}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def targets(pid: int) -> set[str]:
    """What the open descriptors of a process are."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            found.add(os.readlink(fd))
    return found


def test_it_reads_the_node_and_ends_with_the_job(tmp_path: Path) -> None:
    run = tmp_path / "run"
    spent = "SELECT count(*), max(value) FROM samples WHERE counter = 'host/job_cpu_seconds'"

    def job_cpu() -> tuple[int, float]:
        return rltrace.open_run(run).sql(spent).fetchall()[0]

    with at_work(run) as pid:
        wrap_pid = int(json.loads((run / "run.json").read_text())["wrap_pid"])
        assert os.getsid(pid) not in (os.getsid(0), os.getsid(wrap_pid))
        until(lambda: clock_lines(run, node_id()))  # the first readings are there
        held = ("pipe:", "/dev/pts", "/dev/tty", "socket:")  # there is no other node to listen to
        assert not [target for target in targets(pid) if target.startswith(held)]
        until(lambda: (job_cpu()[1] or 0) > 0)  # a job that is over has no more to be read
    until(lambda: not alive(pid))
    opened = rltrace.open_run(run)
    counters = dict(opened.sql("SELECT counter, count(*) FROM samples GROUP BY 1").fetchall())
    assert counters["host/memory_total_bytes"] >= 2
    assert counters["host/cpu_busy_seconds"] >= 2
    readings, job_cpu_s = job_cpu()
    assert readings >= 2
    assert 0 < job_cpu_s < 60  # of the job, not of the node
    ((total,),) = opened.sql(
        "SELECT DISTINCT value FROM samples WHERE counter = 'host/memory_total_bytes'"
    ).fetchall()
    assert total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    (agent,) = [process for process in opened.processes if process.role == "agent"]
    assert sum(cores_of(opened.processes).values()) == len(os.sched_getaffinity(0))
    cpu = agent.facts["cpu"]
    assert cpu in Path("/proc/cpuinfo").read_text()
    assert cpu or "model name" not in Path("/proc/cpuinfo").read_text()
    pairs = [line for line in clock_lines(run, node_id()) if line["kind"] == "pair"]
    assert len(pairs) >= 2
    assert all(abs(p["real_ns"] - time.time_ns()) < 60e9 for p in pairs)
    assert all(0 <= p["bracket_ns"] < 1e9 for p in pairs)
    said = [p for p in opened.problems if p.get("what") == "no-gpu"]
    assert len(said) == (0 if any(c.startswith("gpu/") for c in counters) else 1)
    assert examine(run).problems == ()


def test_it_ends_when_the_run_directory_goes(tmp_path: Path) -> None:
    with at_work(tmp_path / "run") as pid:
        (tmp_path / "run").rename(tmp_path / "moved")
        until(lambda: not alive(pid))


def test_a_run_made_where_one_was_deleted_is_left_alone(tmp_path: Path) -> None:
    """As `rm -r run` and the next `wrap --out run` do it, before the agent of the first ticks."""
    run = tmp_path / "run"
    first = start_wrap(run, until_there(tmp_path / "over"))
    pid = agent_pid(run)
    until(lambda: any((run / "samples").iterdir()))  # it knows whose run this is
    os.kill(pid, signal.SIGSTOP)
    (tmp_path / "over").touch()
    assert first.wait(PATIENCE_S) == 0
    shutil.rmtree(run)
    code = "import rltrace\nwith rltrace.span('rollout'): pass"
    with at_work(run, code) as new_pid:
        node = (run / "nodes" / f"{node_id()}.json").read_text()
        os.kill(pid, signal.SIGCONT)
        until(lambda: not alive(pid))
        assert json.loads((run / "run.json").read_text())["end_real_ns"] is None
        assert (run / "nodes" / f"{node_id()}.json").read_text() == node
        assert alive(new_pid)
    assert rltrace.open_run(run).sql("SELECT count(*) FROM spans").fetchall() == [(1,)]


def test_an_offset_is_measured_within_its_bound_whoever_else_asks() -> None:
    server = Server()
    with ThreadPoolExecutor(8) as nodes:
        asked = [nodes.submit(measure, ["127.0.0.1"], server.port, server.token) for _ in range(8)]
    for offset in (each.result() for each in asked):
        assert abs(offset.offset_ns) <= offset.rtt_ns / 2  # one clock: the true offset is 0
        assert offset.rtt_ns > 0
    with pytest.raises(OSError, match=r".*"):
        measure(["127.0.0.1"], server.port, "0" * len(server.token), samples=1)
    assert own_addresses()[-1].startswith("127.")


def threads_until_hung_up(stranger: socket.socket) -> int:
    """How many threads there were at most until a connection was ended."""
    stranger.settimeout(0.02)
    most = 0
    while True:
        most = max(most, threading.active_count())
        with suppress(TimeoutError):
            if not stranger.recv(100):
                return most


def test_strangers_take_few_threads_and_none_for_long() -> None:
    server = Server()
    before = threading.active_count()
    strangers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    strangers[0].sendall(b"0")  # byte by byte it would take its time
    most = threads_until_hung_up(strangers[0]) - before
    assert most < len(strangers) - 16  # 64 at a time, and a few that are just ending
    for stranger in strangers:
        stranger.close()
    measure(["127.0.0.1"], server.port, server.token, samples=1)


def test_a_clock_is_told_again_once_descriptors_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    accept, refused = socket.socket.accept, []

    def full(listener: socket.socket) -> tuple[socket.socket, object]:
        if not refused:
            refused.append(listener)
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", full)
    server = Server()
    until(lambda: refused)
    measure(["127.0.0.1"], server.port, server.token, samples=1)


HERE = """
import subprocess, sys, rltrace
with rltrace.span("rollout"):
    subprocess.run([*sys.argv[2:], sys.executable, sys.argv[1]], check=True)
"""

THERE = """
import os, time, rltrace
from pathlib import Path
with rltrace.span("reward"): pass
run = Path(os.environ["RLTRACE_RUN"])
while not any('"exchange"' in file.read_text() for file in run.glob("clocks/*.jsonl")):
    time.sleep(0.05)
"""


def test_two_clocks_a_day_apart_are_aligned_within_the_bound(tmp_path: Path) -> None:
    """A second node: the same machine, with a monotonic clock that is a day ahead."""
    clock = ahead()
    if not clock:
        pytest.skip("making a time namespace (`unshare --time`) is not permitted here")
    run = tmp_path / "run"
    (tmp_path / "here.py").write_text(HERE)
    (tmp_path / "there.py").write_text(THERE)
    command = (PY, "here.py", "there.py", *clock)
    done = wrapped(tmp_path, "--out", str(run), "--", *command, timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    here = node_id()
    (there,) = [p.stem for p in (run / "nodes").glob("*.json") if p.stem != here]
    until(lambda: "end_ns" in (run / "nodes" / f"{there}.json").read_text())
    exchanges = [line for line in clock_lines(run, there) if line["kind"] == "exchange"]
    assert len(exchanges) >= 2  # at the start and at the end
    for exchange in exchanges:
        assert abs(exchange["offset_ns"] + A_DAY_S * 10**9) <= exchange["rtt_ns"] / 2
        assert exchange["peer"] == here


def test_a_first_node_that_cannot_be_reached_is_told(run_path: Path) -> None:
    run = json.loads((run_path / "run.json").read_text()) | {"node": "far-away-0"}
    (run_path / "run.json").write_text(json.dumps(run))
    unreachable = {"addresses": ["127.0.0.1"], "port": 9, "token": "0" * 16}
    (run_path / "nodes" / "far-away-0.json").write_text(json.dumps(unreachable))
    environment = {RUN_VARIABLE: str(run_path), "PYTHONPATH": SITE}
    assert untraced(PY, "-c", "pass", **environment).returncode == 0
    pid = agent_pid(run_path)
    (run_path / "run.json").write_text(json.dumps(run | {"end_real_ns": 1}))
    until(lambda: not alive(pid))
    problems = "".join(path.read_text() for path in (run_path / "problems").iterdir())
    assert "clocks-not-compared" in problems
    assert "port 9" in problems
    assert clock_lines(run_path, node_id())[0]["kind"] == "pair"


def test_a_node_without_an_agent_gets_one_from_its_first_process(run_path: Path) -> None:
    environment = clean_environment(**{RUN_VARIABLE: str(run_path), "PYTHONPATH": SITE})
    code = until_there(run_path / "go") + "os.wait()"
    processes = [
        subprocess.Popen([PY, "-c", code], env=environment, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    pid = agent_pid(run_path)
    (run_path / "go").touch()
    for process in processes:
        _, err = process.communicate(timeout=PATIENCE_S)
        assert b"ChildProcessError" in err  # the agent is no child of the job's
    files = [json.loads(p.read_text()) for p in (run_path / "process").glob("*.json")]
    assert sum(file.get("role") == "agent" for file in files) == 1
    run = json.loads((run_path / "run.json").read_text())
    (run_path / "run.json").write_text(json.dumps({**run, "end_real_ns": time.time_ns()}))
    until(lambda: not alive(pid))


def another_agent(run: Path, than: int) -> int:
    """The pid of the agent that came after one."""
    until(lambda: agent_pid(run) != than), "no other agent came"
    return agent_pid(run)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[Path, AgentKeeper]]:
    """A run that this process holds, its agent, and who keeps that."""
    run = make_run(["train"], tmp_path / "run").path
    start_agent(run)
    agent_pid(run)
    yield run, AgentKeeper(run)
    close_run(run, 0)
    until(lambda: not alive(agent_pid(run)))


def test_it_is_not_fed_to_what_kills_them_all(kept: tuple[Path, AgentKeeper]) -> None:
    run, keeper = kept
    first = agent_pid(run)
    keeper.look()
    assert agent_pid(run) == first
    kill(first, signal.SIGKILL)
    keeper.look()
    second = another_agent(run, first)
    kill(second, signal.SIGKILL)
    keeper.look()
    assert agent_lock(run).exists(), "started again at once"
    assert agent_pid(run) == second


@pytest.mark.parametrize("why", ["asked to end", "another run in its place"])
def test_one_that_is_not_this_run_s_to_keep_is_let_go(
    kept: tuple[Path, AgentKeeper], why: str
) -> None:
    run, keeper = kept
    keeper.look()
    if why == "asked to end":
        kill(agent_pid(run), signal.SIGTERM)
    else:
        update_run_json(str(run), wrap_pid=1)
        kill(agent_pid(run), signal.SIGKILL)
    lock = agent_lock(run).stat().st_ino
    keeper.look()
    assert agent_lock(run).stat().st_ino == lock


def kill(pid: int, number: signal.Signals) -> None:
    """Sends a signal and waits for the end of all its threads."""
    process = os.pidfd_open(pid)
    os.kill(pid, number)
    assert select.select([process], [], [], PATIENCE_S)[0]
    os.close(process)
