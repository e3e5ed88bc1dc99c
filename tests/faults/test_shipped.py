"""A run that is shipped (`--ship`) while something goes wrong on its node: the job is what it is,
and each row that was stored comes to the URL once."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest

import rltrace
from rltrace.testing.clocks import ahead
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
from tests.faults.counted import CountedJob, said_by_us, stop, until
from tests.hooks.conftest import WRAP, clean_environment
from tests.patience import PATIENCE_S
from tests.run.shipped import interrupted
from tests.run.test_agent import alive

pytestmark = pytest.mark.slow

RLTRACE = [*WRAP[:-1]]


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


def fill(path: Path) -> None:
    """Writes a file until there is no room left."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


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
    fill(small_disk / "of the job")
    os.kill(agent, signal.SIGCONT)
    assert os.statvfs(small_disk).f_bavail == 0
    time.sleep(6.5)  # the agent writes such a line every 5 s, in vain
    assert clock.stat().st_size % 4096 == 0
    assert alive(agent)
    (small_disk / "of the job").unlink()
    until(lambda: clock.stat().st_size % 4096)
    assert said_by_us(finish(job, process)) == []
    assert_at_the_url(job)


def test_a_disk_that_stays_full_is_emptied_to_the_url(folder: Path, small_disk: Path) -> None:
    """Recording stops, the job goes on, and what was stored is shipped."""
    options = ("--ship", f"file://{folder}/store")
    job = CountedJob(folder, rows=20_000, workers=3, out="small/run", options=options)
    process = job.start()
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, job.result + "\n")
    assert "Traceback" not in errors
    assert all(100 < stored < 20_000 for stored in job.stored())
    until(lambda: job.wrong(fetch(url_of(job))) == {})


HERE = dedent("""
    import os, subprocess, sys, rltrace
    _, directory, *command = sys.argv
    node, host, url = os.environ["RLTRACE_SHIP"].split(" ", 2)
    there = {**os.environ, "RLTRACE_RUN": directory, "RLTRACE_SHIP": f"{node} elsewhere {url}"}
    there |= {"LD_PRELOAD": os.environ["SHIM"]}
    with rltrace.span("rollout"):
        subprocess.run(command, env=there, check=True)
""")


def test_an_agent_that_is_stopped_goes_on_shipping(folder: Path) -> None:
    job, process, agent = shipping(folder)
    stop(agent)
    before = packs(job)
    job.go()
    until(lambda: job.stored() == [600, 600])
    time.sleep(1)
    assert packs(job) == before
    os.kill(agent, signal.SIGCONT)
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
    ship = [*RLTRACE, "ship", "run", "--yes"]
    done = subprocess.run(
        ship, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
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


THERE = dedent("""
    import os, struct, sys, time, rltrace
    from pathlib import Path
    moved, store = sys.argv[1:]
    for part, seconds in enumerate((3600, -7200, 0)):
        for n in range(500):
            with rltrace.span("reward", step=500 * part + n): pass
        with open(moved, "r+b") as file:
            file.write(struct.pack("q", seconds))
        before = len(list(Path(store).glob("*/packs/*~*")))
        while len(list(Path(store).glob("*/packs/*~*"))) == before:
            time.sleep(0.05)
""")


def test_a_node_whose_clock_is_set_in_the_midst(folder: Path, shim: Path) -> None:
    """By an hour ahead, then by two behind, between what it ships: its rows stay where they were,
    and within what the first node was waiting for meanwhile."""
    moved = folder / "moved"
    moved.write_bytes(struct.pack("q", 0))
    (folder / "here.py").write_text(HERE)
    (folder / "there.py").write_text(THERE)
    clock = ahead()
    there = [*clock, sys.executable, "there.py", str(moved), f"{folder}/store"]
    done = subprocess.run(
        [*WRAP, "--ship", f"file://{folder}/store", "--out", "run", "--", sys.executable,
         "here.py", f"{folder}/own/run", *there],
        cwd=folder, env=clean_environment(SHIM=str(shim), MOVED_SECONDS=str(moved)),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "not shipped" not in done.stderr
    run = rltrace.open_run(read_run_json(str(folder / "run"))["shipped_to"])
    assert [problem for problem in run.problems if problem["what"] != "no-gpu"] == []
    counted = run.sql(
        "SELECT count(*), count(DISTINCT step), count(*) FILTER (start_ns < before), "
        "(max(end_ns) - min(start_ns)) / 1e9 < 200 FROM (SELECT *, lag(start_ns) "
        "OVER (ORDER BY step) AS before FROM spans WHERE stage = 'reward')"
    )
    assert counted.fetchall() == [(1500, 1500, 0, True)]
    within = run.sql(
        "SELECT count(*) FROM spans r, spans w WHERE w.stage = 'rollout' AND r.stage = 'reward' "
        "AND r.start_ns > w.start_ns AND r.end_ns < w.end_ns"
    )
    assert within.fetchall() == [(1500,)]


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
