"""An agent that was killed is started again while the job runs, and not where it ended itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.run import AgentKeeper, agent_lock, close_run, make_run, start_agent
from rltrace.testing.inside.trace import update_run_json
from tests.patience import PATIENCE_S
from tests.run.test_agent import agent_pid, alive, start_wrap, until_there
from tests.run.test_wrap import until


def another_agent(run: Path, than: int) -> int:
    """The pid of the agent that came after one."""
    assert until(lambda: agent_pid(run) != than), "no other agent came"
    return agent_pid(run)


def test_one_that_is_killed_is_replaced_and_the_job_is_what_it_is(tmp_path: Path) -> None:
    run = tmp_path / "run"
    code = "import rltrace\nwith rltrace.span('rollout'): pass\nraise SystemExit(7)"
    wrap = start_wrap(run, until_there(tmp_path / "go") + code)
    first = agent_pid(run)
    assert until(lambda: any((run / "samples").iterdir()))
    os.kill(first, signal.SIGKILL)
    second = another_agent(run, first)
    assert until(lambda: len(list((run / "samples").iterdir())) == 2)
    (tmp_path / "go").touch()
    assert wrap.wait(PATIENCE_S) == 7
    assert until(lambda: not alive(second))
    opened = rltrace.open_run(run)
    assert opened.sql("SELECT count(*) FROM spans").fetchall() == [(1,)]
    agents = [process.pid for process in opened.processes if process.role == "agent"]
    assert agents == [first, second]
    assert [p for p in opened.problems if p["what"] not in ("no-gpu", "agent-replaced")] == []
    assert [p["target"] for p in opened.problems if p["what"] == "agent-replaced"] == [str(first)]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[Path, AgentKeeper]]:
    """A run that this process holds, its agent, and who keeps that."""
    run = make_run(["train"], tmp_path / "run").path
    start_agent(run)
    agent_pid(run)
    yield run, AgentKeeper(run)
    close_run(run, 0)
    assert until(lambda: not alive(agent_pid(run)))


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


def test_one_that_was_asked_to_end_is_let_go(kept: tuple[Path, AgentKeeper]) -> None:
    run, keeper = kept
    first = agent_pid(run)
    keeper.look()
    kill(first, signal.SIGTERM)
    lock = agent_lock(run).stat().st_ino
    keeper.look()
    assert agent_lock(run).stat().st_ino == lock
    assert agent_pid(run) == first


def test_none_is_started_for_another_run_in_the_same_place(kept: tuple[Path, AgentKeeper]) -> None:
    run, keeper = kept
    keeper.look()
    update_run_json(str(run), wrap_pid=1)
    kill(agent_pid(run), signal.SIGKILL)
    lock = agent_lock(run).stat().st_ino
    keeper.look()
    assert agent_lock(run).stat().st_ino == lock


def kill(pid: int, number: signal.Signals) -> None:
    """Sends a signal and waits for the end."""
    os.kill(pid, number)
    assert until(lambda: not alive(pid))
