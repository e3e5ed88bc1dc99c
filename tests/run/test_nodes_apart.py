"""Jobs whose nodes share no disk: each ships what it recorded, and the run is read as one.

A second node is a part of the job on this machine that is given another directory and, where that
is permitted, another monotonic clock.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import rltrace
from rltrace.testing.clocks import A_DAY_S, ahead
from rltrace.testing.inside.trace import CACHE_VARIABLE, node_id
from tests.hooks.conftest import WRAP, clean_environment, wrapped
from tests.patience import PATIENCE_S
from tests.run.shipped import UNTIL_SHIPPED, interrupted
from tests.run.test_agent import alive
from tests.run.test_wrap import until

pytestmark = pytest.mark.slow

PY = sys.executable
RLTRACE = [*WRAP[:-1]]

# The first node: starts the second one, which has its directory elsewhere.
HERE = dedent("""
    import os, subprocess, sys, rltrace
    _, directory, *command = sys.argv
    node, host, url = os.environ["RLTRACE_SHIP"].split(" ", 2)
    there = {**os.environ, "RLTRACE_RUN": directory, "RLTRACE_SHIP": f"{node} elsewhere {url}"}
    with rltrace.span("rollout"):
        print(subprocess.run(command, env=there, check=True, capture_output=True, text=True).stdout)
""")

THERE = dedent("""
    import os, subprocess, sys, time, rltrace
    from pathlib import Path
    if sys.argv[1:]:  # the node has another process
        other = subprocess.Popen([sys.executable, __file__])
    before = time.time_ns()
    for n in range(1000):
        with rltrace.span("reward", tokens=n):
            after = time.time_ns()
    print(before, after, flush=True)
    store = Path(os.environ["RLTRACE_SHIP"].partition("file://")[2])
    while not list(store.glob("nodes/*~*.json")):  # so short a job would be over before
        time.sleep(0.1)
    if sys.argv[1:]:
        other.wait()
""")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "store").mkdir()
    (tmp_path / "here.py").write_text(HERE)
    (tmp_path / "there.py").write_text(THERE)
    return tmp_path


def shipping(folder: Path) -> tuple[str, ...]:
    """What wrap is told before the job's command."""
    return ("--ship", f"file://{folder}/store", "--out", "run", "--")


def asked(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RLTRACE, *words],
        cwd=folder,
        env={**clean_environment(), CACHE_VARIABLE: os.environ[CACHE_VARIABLE]},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def url_of(folder: Path) -> str:
    return str(json.loads((folder / "run" / "run.json").read_text())["shipped_to"])


def test_two_nodes_of_a_run_are_read_as_one_by_its_url(folder: Path) -> None:
    clock = ahead()
    there = (f"{folder}/own/run", *clock, PY, "there.py", "two")
    done = wrapped(folder, *shipping(folder), PY, "here.py", *there, timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    url = url_of(folder)
    said = f"rltrace: the trace is in {url}; next: rltrace report {url}"
    assert done.stderr.splitlines()[-1] == said
    assert "not shipped" not in done.stderr
    times = [int(word) for word in done.stdout.split()]
    before, after = min(times), max(times)
    run = rltrace.open_run(url)
    assert [p for p in run.problems if p["what"] != "no-gpu"] == []
    found = run.sql(
        "SELECT process, stage, count(*), min(start_ns), max(end_ns) FROM spans GROUP BY 1, 2"
        " ORDER BY 4"
    ).fetchall()
    assert [row[1:3] for row in found] == [("rollout", 1), ("reward", 1000), ("reward", 1000)]
    assert sum(process.role == "agent" for process in run.processes) == 2
    if clock:
        there = [process for process in run.processes if process.node != node_id()]
        assert len(there) == 3
        bound_ns = there[0].clock_bound_ns
        assert bound_ns is not None
        assert 0 < bound_ns < 1e9
        rollout, *rewards = found
        start, end = min(row[3] for row in rewards), max(row[4] for row in rewards)
        assert before - bound_ns <= start <= after + bound_ns
        assert rollout[3] < start < end < rollout[4]
        (clocks,) = (folder / "own" / "run" / "clocks").iterdir()
        lines = [json.loads(line) for line in clocks.read_text().splitlines()]
        exchanges = [line for line in lines if line["kind"] == "exchange"]
        assert exchanges  # the run is over before it is time for another
        assert all(abs(e["offset_ns"] + A_DAY_S * 10**9) <= e["rtt_ns"] / 2 for e in exchanges)

    listed = json.loads(asked(folder, "ls", f"file://{folder}/store", "--json").stdout)
    assert [(entry["path"], entry["exit_code"]) for entry in listed] == [(url, 0)]
    answer = asked(folder, "query", "SELECT count(*) AS n FROM spans", url, "--json")
    assert json.loads(answer.stdout) == [{"n": 2001}]
    told = asked(folder, "report", "run").stdout
    assert "not all of it is here" in told
    assert "what 1 other node of the run recorded is elsewhere" in " ".join(told.split())


LOST = dedent("""
    import os, signal, rltrace
    from pathlib import Path
    with rltrace.span("train"):
        pass
    until_shipped(1, "stage = 'train'")
    run = Path(os.environ["RLTRACE_RUN"])
    (agent,) = (run / "nodes").glob("*~*.json")
    os.kill(__import__("json").loads(agent.read_text())["pid"], signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
""")


def test_a_node_that_dies_is_told_and_what_it_had_shipped_is_read(folder: Path) -> None:
    (folder / "lost.py").write_text(UNTIL_SHIPPED + LOST)
    (folder / "here.py").write_text(HERE.replace("check=True", "check=False"))
    there = (PY, "here.py", f"{folder}/own/run", PY, "lost.py")
    code, said = interrupted(folder, "is not yet; waiting for", *shipping(folder), *there)
    assert code == 0
    assert "not all of" in said
    run = rltrace.open_run(url_of(folder))
    assert run.sql("SELECT stage FROM spans ORDER BY 1").fetchall() == [("rollout",), ("train",)]
    (lost,) = [problem for problem in run.problems if problem["what"] == "node-not-whole"]
    assert re.match(r"what a process \(pid \d+\) recorded there may not", lost["detail"])
    assert str(folder / "own" / "run") in lost["detail"]
    agent = json.loads(next((folder / "run" / "nodes").glob(f"{node_id()}.json")).read_text())
    os.kill(agent["pid"], signal.SIGTERM)


AWAY = dedent("""
    import os, sys, time, rltrace
    with rltrace.span("train"):
        time.sleep(1)
    os.rename(sys.argv[1], sys.argv[1] + "-away")
    with rltrace.span("train"):
        time.sleep(1)
""")


def test_the_store_is_away_at_the_end_and_the_run_is_shipped_later(folder: Path) -> None:
    (folder / "away.py").write_text(AWAY)
    away = (PY, "away.py", str(folder / "store"))
    code, said = interrupted(folder, "nothing comes through", *shipping(folder), *away)
    assert code == 0  # the job's own
    assert re.search(r"this node is not shipped \(.*\): .* `rltrace ship run`", said), said
    assert "the trace is in run" in said
    (agent,) = (folder / "run" / "nodes").glob("*.json")
    pid = json.loads(agent.read_text())["pid"]
    assert "is being shipped by the agent" in asked(folder, "ship", "run", "--yes").stderr
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: not alive(pid))
    assert asked(folder, "ship", "run").returncode == 2  # anybody may have written where to
    refused = asked(folder, "ship", "run", "--yes")
    assert refused.returncode == 4
    (folder / "store-away").rename(folder / "store")
    assert asked(folder, "ship", "run", "--yes").returncode == 0
    run = rltrace.open_run(url_of(folder))
    assert run.rows("spans") == 2
    assert run.meta["exit_code"] == 0
    assert [p for p in run.problems if p["what"] != "no-gpu"] == []
