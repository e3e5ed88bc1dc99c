"""A run that is shipped (`--ship`) while something goes wrong on its node: the job is what it is,
and each row that was stored comes to the URL once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

import rltrace
from rltrace.testing.inside.run import Lifetime
from rltrace.testing.inside.trace import (
    CACHE_VARIABLE,
    PACKS,
    Store,
    create_run,
    fetch,
    node_id,
    read_run_json,
    update_run_json,
)
from tests.clocks import ahead
from tests.faults.counted import CountedJob, fill, said_by_us
from tests.hooks.conftest import WRAP, untraced
from tests.patience import PATIENCE_S, stop, until
from tests.run.shipped import UNTIL_SHIPPED, interrupted
from tests.run.test_agent import alive

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "store").mkdir()
    return tmp_path


def shipped(folder: Path, **given: object) -> CountedJob:
    """A job whose workers wait in the middle."""
    options = ("--ship", f"file://{folder}/store")
    return CountedJob(folder, rows=600, workers=2, hold_at=200, options=options, **given)  # type: ignore[arg-type]


def shipping(folder: Path) -> tuple[CountedJob, subprocess.Popen[str], int]:
    """Such a job while its workers wait, `wrap`, and the agent, which has begun to ship."""
    job = shipped(folder)
    process = job.start()
    job.until_held()
    agent = job.agent()
    until(lambda: packs(job) > 0)
    return job, process, agent


def url_of(job: CountedJob) -> str:
    return str(read_run_json(str(job.run))["shipped_to"])


def packs(job: CountedJob) -> int:
    return len(Store(url_of(job)).sizes(PACKS))


def ship(folder: Path, run: str) -> None:
    """Somebody ships what is in a directory."""
    command = [*WRAP[:-1], "ship", run, "--yes"]
    done = untraced(*command, cwd=folder)
    assert done.returncode == 0, done.stderr


def finish(job: CountedJob, process: subprocess.Popen[str]) -> str:
    """Lets the job end well, with all rows stored; what was said on stderr."""
    job.go()
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, job.result + "\n"), errors
    assert job.stored() == [600, 600]
    assert job.wrong() == {}
    return errors


def assert_at_the_url(job: CountedJob, *told: str) -> None:
    """All is there, and nothing else; `told` are the problems that there were."""
    path = fetch(url_of(job))
    assert job.wrong(path) == {}
    run = rltrace.open_run(path)
    assert run.meta["exit_code"] == 0
    assert {problem["what"] for problem in run.problems} - {"no-gpu"} == {*told}


def test_a_disk_that_is_full_for_a_while(folder: Path, small_disk: Path) -> None:
    """As by the job's own files, on a tmpfs that the run lies on: the agent goes on."""
    job = shipped(folder, out="small/run")
    process = job.start()
    job.until_held()
    agent = job.agent()
    clock = job.run / "clocks" / f"{node_id()}.jsonl"
    until(clock.exists)
    stop(agent)  # or it writes one in between
    with clock.open("ab") as file:  # its next line needs a page of its own
        file.write(b"\n" * (-clock.stat().st_size % 4096))
    fill(small_disk)
    os.kill(agent, signal.SIGCONT)
    assert os.statvfs(small_disk).f_bavail == 0
    time.sleep(6.5)  # the agent writes such a line every 5 s, in vain
    assert clock.stat().st_size % 4096 == 0
    assert alive(agent)
    (small_disk / "filling").unlink()
    until(lambda: clock.stat().st_size % 4096)
    assert said_by_us(finish(job, process)) == []
    assert_at_the_url(job)


def test_an_agent_that_is_killed_is_replaced_and_the_next_ships_the_rest(folder: Path) -> None:
    job, process, first = shipping(folder)
    os.kill(first, signal.SIGKILL)
    node = job.run / "nodes" / f"{node_id()}.json"
    until(lambda: json.loads(node.read_text())["pid"] != first)
    assert said_by_us(finish(job, process)) == []
    path = fetch(url_of(job))
    assert job.wrong(path) == {}
    replaced = [p["target"] for p in rltrace.open_run(path).problems if p["what"] != "no-gpu"]
    assert replaced == [str(first)]


def test_what_an_agent_that_is_killed_at_the_end_leaves_is_shipped_by_hand(folder: Path) -> None:
    """There is nobody to start another one: what is missing is said."""
    job, process, agent = shipping(folder)
    process.send_signal(signal.SIGSTOP)  # wrap, until the job has ended
    os.kill(agent, signal.SIGKILL)
    until(lambda: not alive(agent))
    job.go()
    until(lambda: not alive(int(read_run_json(str(job.run))["command_pid"])))
    process.send_signal(signal.SIGCONT)
    errors = finish(job, process)
    assert re.search(r"this node is not shipped: .* `rltrace ship run`", errors), errors
    ship(folder, "run")
    assert_at_the_url(job, "agent-killed")


def test_a_url_that_is_away_for_the_whole_job(folder: Path) -> None:
    """The run's directory holds what was recorded; the agent ships it when the URL is back."""
    (folder / "job.py").write_text(
        "import os, sys, rltrace\n"
        "os.rename('store', 'away')\n"
        "for n in range(3000):\n    with rltrace.span('reward', step=n): pass\n"
        "print(7)\n"
    )
    words = ("--ship", f"file://{folder}/store", "--out", "run", "--", sys.executable, "job.py")
    code, said = interrupted(folder, "nothing comes through", *words)
    assert code == 0
    assert "this node is not shipped" in said
    (agent,) = (folder / "run" / "nodes").glob("*.json")
    pid = json.loads(agent.read_text())["pid"]
    assert not (folder / "store").exists()  # nothing is made where the disk would be mounted
    (folder / "away").rename(folder / "store")
    until(lambda: not alive(pid))  # it has shipped all, and ends
    run = rltrace.open_run(read_run_json(str(folder / "run"))["shipped_to"])
    found = run.sql("SELECT count(*), count(DISTINCT step), max(step) FROM spans").fetchall()
    assert found == [(3000, 3000, 2999)]
    assert [problem for problem in run.problems if problem["what"] != "no-gpu"] == []


@pytest.mark.parametrize("ahead_s", [-7200, 0, 7200])
def test_the_first_node_is_heard_whatever_its_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """An agent of another node, on a disk of both, waits for signs of life of the first one: by
    its own clock, since that of the disk may be hours off."""
    path = tmp_path / "run"
    create_run(str(path), ["job"], {}, "test")
    update_run_json(str(path), node="the first")
    clock = path / "clocks" / "the first.jsonl"
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lifetime = Lifetime(str(path), node_id())
    for heard in range(5):
        clock.touch()
        at = time.time() + ahead_s + heard
        os.utime(clock, (at, at))
        now[0] += 20
        assert not lifetime.is_over()
    now[0] += 40
    assert lifetime.is_over()


NODES, ROWS = 8, 400

EIGHT = dedent("""
    import os, subprocess, sys, rltrace
    own, store, nodes, rows, has_clocks = *sys.argv[1:3], *map(int, sys.argv[3:])
    node, host, url = os.environ["RLTRACE_SHIP"].split(" ", 2)
    started = []
    with rltrace.span("rollout"):
        for n in range(1, nodes):
            there = {**os.environ, "RLTRACE_RUN": f"{own}/{n}", "NODE": str(n), "STORE": store,
                     "RLTRACE_SHIP": f"{node} host-{n} {url}"}
            clock = ["unshare", "--time", "--monotonic", str(n * 86400), "--fork"] * has_clocks
            command = [*clock, sys.executable, "there.py", str(rows)]
            started.append(subprocess.Popen(command, env=there, stdout=subprocess.PIPE, text=True))
        said = [each.communicate()[0].strip() for each in started]
    for n in range(rows):
        with rltrace.span("train", version=0, step=n): pass
    open('said', 'w').write(' '.join(said))
""")

OF_EIGHT = dedent("""
    import json, os, signal, sys, time, rltrace
    from pathlib import Path
    node, rows = int(os.environ["NODE"]), int(sys.argv[1])
    for n in range(rows):
        with rltrace.span("reward", version=node, step=n): pass
    run, store = Path(os.environ["RLTRACE_RUN"]), Path(os.environ["STORE"])
    def agent():
        return next(iter((run / "nodes").glob("*~*.json")), None)
    while agent() is None:
        time.sleep(0.05)
    name = agent().stem
    while not list(store.glob(f"*/packs/{name}.*")):
        time.sleep(0.05)
    print(sum(range(rows)), flush=True)
    if node == 3:  # it dies, and what it records now with it
        until_shipped(rows, "version = 3")
        pid = json.loads(agent().read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        with rltrace.span("reward", version=node, step=rows): pass
        os.kill(os.getpid(), signal.SIGKILL)
""")


def names_of_missing(url: str) -> list[str]:
    """The directories of the nodes of which not all is there."""
    problems = rltrace.open_run(fetch(url)).problems
    lost = [problem["detail"] for problem in problems if problem["what"] == "node-not-whole"]
    return [said.partition("`rltrace ship ")[2].partition("`")[0] for said in lost]


def test_eight_nodes_of_which_one_dies(folder: Path) -> None:
    """They share no disk, each has a clock of its own, and the one dies with its agent."""
    (folder / "here.py").write_text(EIGHT)
    (folder / "there.py").write_text(UNTIL_SHIPPED + OF_EIGHT)
    has_clocks = bool(ahead())
    numbers = map(str, (NODES, ROWS, int(has_clocks)))
    words = ("--ship", f"file://{folder}/store", "--out", "run", "--", sys.executable, "here.py")
    waits = "not yet; waiting for"
    own = (f"{folder}/own", f"{folder}/store")
    code, said = interrupted(folder, waits, *words, *own, *numbers)
    assert code == 0
    assert (folder / "said").read_text().split() == [str(sum(range(ROWS)))] * (NODES - 1)
    assert f"not all of {os.uname().nodename}" in said
    url = read_run_json(str(folder / "run"))["shipped_to"]
    until(lambda: names_of_missing(url) == [str(folder / "own" / "3")])  # the others go on
    run = rltrace.open_run(url)
    rows = run.sql(
        "SELECT version, count(*), count(DISTINCT step), max(step) FROM spans "
        "WHERE stage IN ('reward', 'train') GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert rows == [(node, ROWS, ROWS, ROWS - 1) for node in range(NODES)]
    assert {p["what"] for p in run.problems} <= {"no-gpu", "node-not-whole"}
    if has_clocks:
        bounds = run.sql(
            "SELECT count(DISTINCT node), count(*) FILTER (clock_bound_ns < 0) FROM processes "
            "WHERE node NOT IN (SELECT p.node FROM processes p, spans s "
            "WHERE s.version = 3 AND s.process = p.process)"
        ).fetchall()
        assert bounds == [(NODES - 1, 0)]
        outside = run.sql(
            "SELECT count(*) FROM spans r, spans w, processes p WHERE w.stage = 'rollout' AND "
            "r.stage = 'reward' AND r.version <> 3 AND p.process = r.process AND "
            "(r.start_ns < w.start_ns - p.clock_bound_ns OR r.end_ns > w.end_ns + p.clock_bound_ns)"
        ).fetchall()
        assert outside == [(0,)]
    ship(folder, f"{folder}/own/3")  # the node comes back, and somebody ships the rest
    again = rltrace.open_run(fetch(url))
    assert again.sql("SELECT count(*) FROM spans WHERE version = 3").fetchall() == [(ROWS + 1,)]
    assert [problem for problem in again.problems if problem["what"] != "no-gpu"] == []
    agent = next((folder / "run" / "nodes").glob(f"{node_id()}.json"))
    os.kill(json.loads(agent.read_text())["pid"], signal.SIGKILL)  # it would wait for minutes
