"""Eight nodes that share no disk, each with a clock of its own; one of them dies with its agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import rltrace
from rltrace.testing.clocks import ahead
from rltrace.testing.inside.trace import CACHE_VARIABLE, fetch, node_id, read_run_json
from tests.faults.counted import until
from tests.hooks.conftest import WRAP, clean_environment
from tests.run.shipped import UNTIL_SHIPPED, interrupted

pytestmark = pytest.mark.slow

NODES, ROWS = 8, 400

HERE = dedent("""
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

THERE = dedent("""
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


def test_eight_nodes_of_which_one_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    store = tmp_path / "store"
    store.mkdir()
    (tmp_path / "here.py").write_text(HERE)
    (tmp_path / "there.py").write_text(UNTIL_SHIPPED + THERE)
    has_clocks = bool(ahead())
    numbers = map(str, (NODES, ROWS, int(has_clocks)))
    words = ("--ship", f"file://{store}", "--out", "run", "--", sys.executable, "here.py")
    waits = "not yet; waiting for"
    code, said = interrupted(tmp_path, waits, *words, f"{tmp_path}/own", str(store), *numbers)
    assert code == 0
    assert (tmp_path / "said").read_text().split() == [str(sum(range(ROWS)))] * (NODES - 1)
    assert f"not all of {os.uname().nodename}" in said
    url = read_run_json(str(tmp_path / "run"))["shipped_to"]
    until(lambda: names_of_missing(url) == [str(tmp_path / "own" / "3")])  # the others go on
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
    # The node comes back, and somebody ships the rest.
    ship = [*WRAP[:-1], "ship", f"{tmp_path}/own/3", "--yes"]
    brought = subprocess.run(
        ship, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert brought.returncode == 0, brought.stderr
    again = rltrace.open_run(fetch(url))
    assert again.sql("SELECT count(*) FROM spans WHERE version = 3").fetchall() == [(ROWS + 1,)]
    assert [problem for problem in again.problems if problem["what"] != "no-gpu"] == []
    agent = next((tmp_path / "run" / "nodes").glob(f"{node_id()}.json"))
    os.kill(json.loads(agent.read_text())["pid"], signal.SIGKILL)  # it would wait for minutes
