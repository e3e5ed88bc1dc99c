"""`rltrace sync ls` and `rm`: who holds a policy, what it takes, and what goes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rltrace.cli import main
from rltrace.sync import Publisher, Subscriber, layout_of
from rltrace.sync.memory import holders
from rltrace.sync.memory.control import PRESENT, enter, leave
from rltrace.testing.inside.sync import CONTROL, Lock, folder_of
from tests.patience import stop, until
from tests.sync.pairs import line, running

WEIGHTS = {"w": np.ones(100_000, np.float32)}
SIZE = WEIGHTS["w"].nbytes

LEARNER = """
import sys, time
import numpy as np
from rltrace.sync import Publisher, layout_of
weights = {"w": np.ones(100_000, np.float32)}
publisher = Publisher.open(layout_of(weights), "shm://policy")
publisher.publish(weights, 7)
print("published", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def learner(alone: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has published step 7 of `shm://policy`."""
    with running(LEARNER) as process:
        assert line(process) == "published"
        yield process


@pytest.fixture
def left(learner: subprocess.Popen[str], alone: Path) -> Path:
    """What such a learner has left, which was killed."""
    learner.kill()
    learner.wait()
    return alone / "policy"


def run(*words: str) -> tuple[int, Any]:
    result = CliRunner().invoke(main, ["sync", *words, "--json"])
    return result.exit_code, json.loads(result.stdout) if result.stdout else result.stderr


def test_who_holds_a_policy_and_what_it_takes_is_listed(learner: subprocess.Popen[str]) -> None:
    with Subscriber.connect("shm://policy") as reader:
        code, said = run("ls")
        assert code == 0
        (policy,) = said["policies"]
        assert policy["version"] == str(reader.latest())
        assert (policy["where"], policy["step"], policy["bytes"]) == ("shm://policy", 7, SIZE)
        assert 2 * SIZE <= policy["memory_bytes"] < 3 * SIZE
        assert {(each["pid"], each["publishes"]) for each in policy["holders"]} == {
            (learner.pid, True),
            (os.getpid(), False),
        }
    assert run("ls", "shm://policy")[1]["policies"][0]["holders"][0]["pid"] == learner.pid


def test_what_is_held_stays_and_leftovers_go(learner: subprocess.Popen[str], alone: Path) -> None:
    code, said = run("rm", "shm://policy")
    assert (code, said["removed"]) == (1, [])
    assert said["kept"][0]["holders"][0]["pid"] == learner.pid
    code, said = run("rm")  # all that nobody holds
    assert (code, said["removed"]) == (0, [])
    learner.kill()
    learner.wait()
    with Publisher.open(layout_of(WEIGHTS), f"shm://{alone.parent}/elsewhere/other"):
        code, said = run("rm")
    assert (code, [held["where"] for held in said["removed"]]) == (0, ["shm://policy"])
    assert said["removed"][0]["memory_bytes"] > 2 * SIZE
    assert run("ls")[1]["policies"] == []
    assert not list(alone.iterdir())


def test_who_cannot_be_seen_holds_it_all_the_same(
    learner: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in another container, or of another user: there is no such process in /proc for us."""
    monkeypatch.setattr(holders, "_PROC", tmp_path)
    policy = run("ls")[1]["policies"][0]
    assert (policy["is_held"], policy["holders"]) == (True, [])
    assert run("rm", "shm://policy")[0] == 1
    assert learner.poll() is None


LOCKS = """
import sys, time
from pathlib import Path
from rltrace.testing.inside.sync import Lock
lock = Lock.take(Path(sys.argv[1]))
print(1, flush=True)
time.sleep(3600)
"""


def test_a_stopped_process_that_keeps_others_out_is_named(left: Path) -> None:
    with running(LOCKS, str(left / PRESENT)) as stopped:
        line(stopped)
        stop(stopped.pid)
        code, said = run("rm", "shm://policy")
        (holder,) = said["kept"][0]["holders"]
        assert (code, holder["pid"], holder["is_stopped"]) == (1, stopped.pid, True)
    until(lambda: not Lock.is_held(left / PRESENT), "the lock to be free")
    assert run("rm", "shm://policy")[0] == 0


@pytest.mark.parametrize("content", [b"", b"\xff" * 8192])
def test_one_that_cannot_be_read_is_listed_and_can_be_removed(left: Path, content: bytes) -> None:
    (left / CONTROL).write_bytes(content)
    policy = run("ls")[1]["policies"][0]
    assert policy["trouble"]
    assert (policy["version"], policy["is_held"]) == ("", False)
    assert run("rm", "shm://policy")[0] == 0
    assert not left.exists()


def test_what_is_no_policy_is_not_touched(alone: Path) -> None:
    mine = alone / "mine"
    mine.mkdir()
    (mine / "notes").write_text("mine")
    assert run("ls")[1]["policies"] == []
    code, said = run("rm", "shm://mine")
    assert code == 2
    assert "no policy" in said
    with Publisher.open(layout_of(WEIGHTS), "shm://mine"):
        pass
    assert (mine / "notes").read_text() == "mine"


def test_a_policy_opened_anew_while_another_is_removed_stays(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(where)
    folder.mkdir()
    enter(folder).release()  # as a killed process leaves it
    opened = []

    def slow(*given: Any) -> Any:
        monkeypatch.undo()
        locked = fcntl.fcntl(*given)  # the file that was there
        shutil.rmtree(folder)  # by a third process
        opened.append(Publisher.open(layout_of(WEIGHTS), where))
        return locked

    monkeypatch.setattr(fcntl, "fcntl", slow)
    assert not leave(folder)
    version = opened[0].publish(WEIGHTS)
    with Subscriber.connect(where) as reader:
        assert reader.pull_into({"w": WEIGHTS["w"].copy()}) == version
    opened[0].close()
    assert not folder.exists()
