"""The agent of a node: what it reads, whom it compares clocks with, and that it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import rltrace
from rltrace.run.exchange import Server, measure, own_addresses
from rltrace.testing.clocks import A_DAY_S, ahead
from rltrace.testing.inside.hooks import RUN_VARIABLE, SITE
from rltrace.testing.inside.run import COUNTER, MemoryFloor, examine
from rltrace.testing.inside.trace import node_id, publishes_file
from tests.hooks.conftest import WRAP, clean_environment, untraced, wrapped
from tests.patience import PATIENCE_S
from tests.run.test_wrap import until

PY = sys.executable


def start_wrap(run: Path, code: str, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*WRAP, "--out", str(run), "--", PY, "-c", code],
        env=clean_environment(**env),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def until_there(file: Path) -> str:
    """Code that waits for a file."""
    return f"import os, time\nwhile not os.path.exists({str(file)!r}): time.sleep(0.02)\n"


def agent_pid(run: Path, node: str | None = None) -> int:
    """The pid of a node's agent, once it has introduced itself."""
    file = run / "nodes" / f"{node or node_id()}.json"
    assert until(file.exists), "the agent never came"
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
    job = start_wrap(run, until_there(tmp_path / "over"))
    pid = agent_pid(run)
    assert os.getsid(pid) not in (os.getsid(0), os.getsid(job.pid))
    assert not [t for t in targets(pid) if t.startswith(("pipe:", "/dev/pts", "/dev/tty"))]
    assert until(lambda: clock_lines(run, node_id()))  # the first readings are there
    (tmp_path / "over").touch()
    assert job.wait(PATIENCE_S) == 0
    assert until(lambda: not alive(pid))
    opened = rltrace.open_run(run)
    counters = dict(opened.sql("SELECT counter, count(*) FROM samples GROUP BY 1").fetchall())
    assert counters["host/memory_total_bytes"] >= 2
    assert counters["host/cpu_busy_seconds"] >= 2
    ((total,),) = opened.sql(
        "SELECT DISTINCT value FROM samples WHERE counter = 'host/memory_total_bytes'"
    ).fetchall()
    assert total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    (agent,) = [process for process in opened.processes if process.role == "agent"]
    assert agent.facts["cores"] == len(os.sched_getaffinity(0))
    cpu = agent.facts["cpu"]
    assert cpu in Path("/proc/cpuinfo").read_text()
    assert cpu or "model name" not in Path("/proc/cpuinfo").read_text()
    pairs = [line for line in clock_lines(run, node_id()) if line["kind"] == "pair"]
    assert len(pairs) >= 2
    assert all(abs(p["real_ns"] - time.time_ns()) < 60e9 for p in pairs)
    assert all(0 <= p["bracket_ns"] < 1e9 for p in pairs)
    said = [p for p in opened.problems if p.get("what") == "no-gpu"]
    assert len(said) == (0 if any(c.startswith("gpu/") for c in counters) else 1)


PUBLISHES = """
import numpy as np
from rltrace.sync import Publisher, layout_of
weights = {{"w": np.zeros(1000)}}
with Publisher.open(layout_of(weights), "shm://{0}") as first:
    first.publish(weights)
with Publisher.open(layout_of(weights), "shm://{0}") as second:
    second.publish(weights)
"""


def test_it_measures_memory_once_where_weights_are_published(tmp_path: Path) -> None:
    run = tmp_path / "run"
    code = until_there(tmp_path / "go") + PUBLISHES.format(f"agent-test-{os.getpid()}")
    job = start_wrap(run, code + until_there(tmp_path / "over"))
    pid = agent_pid(run)
    (tmp_path / "go").touch()
    assert until((run / "nodes" / f"{node_id()}.publishes").exists)
    (tmp_path / "over").touch()
    assert job.wait(PATIENCE_S) == 0
    assert until(lambda: not alive(pid))
    found = rltrace.open_run(run).sql(
        f"SELECT value > 0, device, role FROM samples WHERE counter = '{COUNTER}'"
    )
    assert found.fetchall() == [(True, None, "agent")]


def test_memory_is_measured_where_nobody_wants_the_cores(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    floor = MemoryFloor(str(tmp_path), "node", cores=8)

    def readings(busy_s: float, available: float = 8e9) -> dict[str, float]:
        return {"host/cpu_busy_seconds": busy_s, "host/memory_available_bytes": available}

    assert not floor.was_calm(0, readings(100.0))  # since when is not known
    assert floor.was_calm(10**9, readings(106.0))
    assert not floor.was_calm(2 * 10**9, readings(112.5))
    assert not floor.was_calm(3 * 10**9, readings(112.5, available=1e8))
    assert not floor.was_calm(4 * 10**9, {})
    assert not floor.was_calm(5 * 10**9, readings(113.0))
    assert not floor.was_calm(6 * 10**9, readings(113.0), room_bytes=1e8)  # of its container
    assert floor.was_calm(7 * 10**9, readings(113.0), room_bytes=8e9)
    assert not floor.is_wanted
    Path(publishes_file(str(tmp_path), "node")).touch()
    assert floor.is_wanted
    floor.measure()
    assert not floor.is_wanted


@pytest.mark.parametrize("which", ["job", "wrap"])
def test_it_ends_however_the_run_does(tmp_path: Path, which: str) -> None:
    run = tmp_path / "run"
    wrap = start_wrap(run, "import time; time.sleep(600)")
    pid = agent_pid(run)
    assert until(lambda: "command_pid" in json.loads((run / "run.json").read_text()))
    command = json.loads((run / "run.json").read_text())["command_pid"]
    if which == "wrap":
        wrap.kill()
        wrap.wait()
        time.sleep(1.5)
        assert alive(pid)  # the job goes on, and so does its trace
    os.kill(command, signal.SIGKILL)
    wrap.wait(PATIENCE_S)
    assert until(lambda: not alive(pid))
    assert json.loads((run / "run.json").read_text())["end_real_ns"] is not None


def test_a_job_and_its_trace_outlive_the_agent(tmp_path: Path) -> None:
    run = tmp_path / "run"
    code = "import rltrace\nwith rltrace.span('rollout'): pass"
    wrap = start_wrap(run, until_there(tmp_path / "go") + code)
    os.kill(agent_pid(run), signal.SIGKILL)
    (tmp_path / "go").touch()
    assert wrap.wait(PATIENCE_S) == 0
    opened = rltrace.open_run(run)
    assert opened.sql("SELECT count(*) FROM spans").fetchall() == [(1,)]
    assert opened.meta["exit_code"] == 0


def test_a_run_whose_agent_was_killed_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    code = until_there(tmp_path / "go") + "import rltrace\nwith rltrace.span('rollout'): pass"
    wrap = subprocess.Popen(
        [*WRAP, "--out", str(run), "--", PY, "-c", code],
        env=clean_environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    pid = agent_pid(run)
    wrap.send_signal(signal.SIGSTOP)  # until the job has ended: it would start another
    os.kill(pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    command = json.loads((run / "run.json").read_text())["command_pid"]
    assert until(lambda: not alive(command))
    wrap.send_signal(signal.SIGCONT)
    _, errors = wrap.communicate(timeout=PATIENCE_S)
    assert wrap.returncode == 0
    assert "the agent of this node was killed" in errors
    assert [said for said in examine(run).problems if said.startswith("agent killed")]


def test_an_agent_that_lives_as_long_as_its_job_is_no_problem(tmp_path: Path) -> None:
    run = tmp_path / "run"
    code = until_there(run / "nodes" / f"{node_id()}.json")
    assert start_wrap(run, code + "import rltrace; rltrace.counter('n', 1)").wait(PATIENCE_S) == 0
    assert examine(run).problems == ()


def test_it_ends_when_the_run_directory_goes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    wrap = start_wrap(run, until_there(tmp_path / "over"))
    pid = agent_pid(run)
    run.rename(tmp_path / "moved")
    assert until(lambda: not alive(pid))
    (tmp_path / "over").touch()
    assert wrap.wait(PATIENCE_S) == 0


def test_a_run_made_where_one_was_deleted_is_left_alone(tmp_path: Path) -> None:
    """As `rm -r run` and the next `wrap --out run` do it, before the agent of the first ticks."""
    run = tmp_path / "run"
    first = start_wrap(run, until_there(tmp_path / "over"))
    pid = agent_pid(run)
    assert until(lambda: any((run / "samples").iterdir()))  # it knows whose run this is
    os.kill(pid, signal.SIGSTOP)
    (tmp_path / "over").touch()
    assert first.wait(PATIENCE_S) == 0
    shutil.rmtree(run)
    code = "import rltrace\nwith rltrace.span('rollout'): pass"
    second = start_wrap(run, until_there(tmp_path / "go") + code)
    new_pid = agent_pid(run)
    node = (run / "nodes" / f"{node_id()}.json").read_text()
    os.kill(pid, signal.SIGCONT)
    assert until(lambda: not alive(pid))
    assert json.loads((run / "run.json").read_text())["end_real_ns"] is None
    assert (run / "nodes" / f"{node_id()}.json").read_text() == node
    assert alive(new_pid)
    (tmp_path / "go").touch()
    assert second.wait(PATIENCE_S) == 0
    assert rltrace.open_run(run).sql("SELECT count(*) FROM spans").fetchall() == [(1,)]


def test_one_port_is_open_only_between_nodes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    wrap = start_wrap(run, until_there(tmp_path / "over"))
    pid = agent_pid(run)
    assert until(lambda: clock_lines(run, node_id()))  # it is at work
    assert not [target for target in targets(pid) if target.startswith("socket:")]
    (tmp_path / "over").touch()
    assert wrap.wait(PATIENCE_S) == 0


def test_an_offset_is_measured_within_its_bound() -> None:
    server = Server()
    offset = measure(["127.0.0.1"], server.port, server.token)
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
    assert threads_until_hung_up(strangers[0]) - before <= 64
    for stranger in strangers:
        stranger.close()
    measure(["127.0.0.1"], server.port, server.token, samples=1)


def test_a_clock_is_told_again_once_descriptors_are_free() -> None:
    program = """
import os, resource, socket, sys, time
from rltrace.testing.inside.run import examine
from rltrace.run.exchange import Server, measure
server = Server()
measure(["127.0.0.1"], server.port, server.token, samples=1)
time.sleep(0.5)  # until its connection is closed on both sides
most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most[1]))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    os.close(held.pop())
asking = socket.create_connection(("127.0.0.1", server.port))  # the last descriptor
time.sleep(0.5)
for one in held:
    os.close(one)
resource.setrlimit(resource.RLIMIT_NOFILE, most)
for attempt in range(10):
    try:
        measure(["127.0.0.1"], server.port, server.token, samples=1)
        break
    except OSError:
        time.sleep(0.5)
else:
    sys.exit("it tells no more")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_several_nodes_may_ask_at_once() -> None:
    server = Server()
    offsets: list[int] = []

    def ask() -> None:
        found = measure(["127.0.0.1"], server.port, server.token)
        assert abs(found.offset_ns) <= found.rtt_ns / 2
        offsets.append(found.offset_ns)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(offsets) == 8


HERE = """
import subprocess, sys, rltrace
with rltrace.span("rollout"):
    subprocess.run([*sys.argv[2:], sys.executable, sys.argv[1]], check=True)
"""

THERE = """
import os, time, rltrace
from pathlib import Path
before = time.time_ns()
with rltrace.span("reward"):
    after = time.time_ns()
print(before, after, flush=True)
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
    assert until(lambda: "end_ns" in (run / "nodes" / f"{there}.json").read_text())
    exchanges = [line for line in clock_lines(run, there) if line["kind"] == "exchange"]
    assert len(exchanges) >= 2  # at the start and at the end
    for exchange in exchanges:
        assert abs(exchange["offset_ns"] + A_DAY_S * 10**9) <= exchange["rtt_ns"] / 2
        assert exchange["peer"] == here
    before, after = map(int, done.stdout.split())
    opened = rltrace.open_run(run)
    found = {
        stage: (start, end, process)
        for stage, start, end, process in opened.sql(
            "SELECT stage, start_ns, end_ns, process FROM spans"
        ).fetchall()
    }
    start, end, process = found["reward"]
    (row,) = opened.sql(
        f"SELECT node, clock_bound_ns FROM processes WHERE process = {process}"
    ).fetchall()
    node, bound = row
    assert node == there
    assert bound > 0
    assert before - bound <= start <= after + bound
    assert found["rollout"][0] < start <= end < found["rollout"][1]


def test_a_first_node_that_cannot_be_reached_is_told(run_path: Path) -> None:
    run = json.loads((run_path / "run.json").read_text()) | {"node": "far-away-0"}
    (run_path / "run.json").write_text(json.dumps(run))
    unreachable = {"addresses": ["127.0.0.1"], "port": 9, "token": "0" * 16}
    (run_path / "nodes" / "far-away-0.json").write_text(json.dumps(unreachable))
    environment = {RUN_VARIABLE: str(run_path), "PYTHONPATH": SITE}
    assert untraced(PY, "-c", "pass", **environment).returncode == 0
    pid = agent_pid(run_path)
    (run_path / "run.json").write_text(json.dumps(run | {"end_real_ns": 1}))
    assert until(lambda: not alive(pid))
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
    assert until(lambda: not alive(pid))
