"""A subscriber of another host's policy pulls as from one of its own, by a relay that its host
shares, of a relay beside the publishing process. What they share goes with the last one."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.sync import Publisher, Subscriber, layout_of
from rltrace.sync.transfer.relay_process import Beside
from rltrace.sync.transfer.shared_relay import Joined, _Started, place_of
from rltrace.testing.inside.sync import Address, JoinedFiles, Lock, Relay, folder_of, sweep
from rltrace.testing.inside.trace import CANNOT_TELL, RltraceError
from tests.patience import until
from tests.sync.pairs import line, running
from tests.sync.relays import Job


def relay_of(place: str) -> int:
    """The process that holds the relay's lock, of this user's children or strays."""
    mine = str(JoinedFiles(place).relay)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(fd) == mine for fd in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:
            continue
    return 0


@contextmanager
def joined(address: str, token: str | None = None) -> Iterator[Joined]:
    with closing(Joined(address, token)) as made:
        yield made


def why_not(address: str, token: str | None = None) -> str:
    """The reason that a subscriber of an address is given, once its relay has found one."""
    with joined(address, token) as made:
        until(lambda: made.files.told() != "", "a reason")
        with pytest.raises(RltraceError, match="nothing came from") as caught:
            made.attach(0.0)
    assert caught.value.exit_code == CANNOT_TELL
    return str(caught.value).partition(" within 0 s: ")[2]


def left_of(place: str) -> list[str]:
    """The names of the files by which subscribers share the relay of a place."""
    files = JoinedFiles(place)
    return sorted(path.name for path in files.log.parent.glob(f"{files.log.stem}.*"))


def test_subscribers_of_a_host_share_one_relay_that_is_replaced_and_ends(j: Job) -> None:
    root = j.root()
    j.publish()
    place = place_of(root.address)
    with Subscriber.connect(root.address) as first, Subscriber.connect(root.address) as second:
        assert root.address in first.explain()
        assert j.pulls(first, 1)
        assert j.pulls(second, 1)
        assert root.status.children == 1
        os.kill(relay_of(place), signal.SIGKILL)
        assert j.pulls(first, 1)  # nobody needs it for what is there
        j.next()
        assert j.pulls(first, 2)
        assert j.pulls(second, 2)
    until(lambda: left_of(place) == [], "the relay to end, and its files to be gone")
    until(lambda: not folder_of(place).exists(), "its memory to be free")


def greet(listener: socket.socket) -> None:
    """Answers as a server of something else, until its listener is closed."""
    with suppress(OSError):
        while True:
            connected, _ = listener.accept()
            connected.sendall(b"SSH-2.0-OpenSSH_9.9" + b" " * 64)
            connected.close()


def test_what_answers_as_no_relay_does_is_told_from_what_says_nothing(memory: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}/{memory.name}"
        assert "silent" in why_not(address)
        threading.Thread(target=greet, args=(listener,), daemon=True).start()
        until(lambda: "no relay of rltrace" in why_not(address), "an answer")


def test_a_relay_that_has_nothing_yet_is_told_from_none_at_all(j: Job) -> None:
    assert "no version of the policy policy" in why_not(j.root().address)


def test_a_subscriber_that_started_no_relay_hears_the_reason_too(memory: Path) -> None:
    address = f"tcp://127.0.0.1:9/{memory.name}"
    with joined(address) as first:
        until(lambda: "refused" in first.files.told(), "a reason")
        with joined(address) as second:
            assert second._started is None
            with pytest.raises(RltraceError, match="refused"):
                second.attach(0.0)


def test_another_token_is_told_as_soon_as_it_is_refused(j: Job) -> None:
    with pytest.raises(RltraceError, match="has another token: set RLTRACE_SYNC"):
        Subscriber.connect(j.root().address, token="another")


def test_a_relay_that_comes_up_while_it_is_waited_for_is_followed(j: Job) -> None:
    root = j.root()
    root.close()
    with joined(root.address) as made:
        until(lambda: "refused" in made.files.told(), "it to be missed")
        with Relay.serve(j.place("policy"), port=Address.parse(root.address).port):
            j.publish()
            with Subscriber.connect(root.address) as subscriber:
                assert j.pulls(subscriber, 1)
                until(lambda: made.files.told() == "", "the trouble to be over")


JOINS = """
import sys, time
from rltrace.sync.transfer.shared_relay import Joined
joined = Joined(sys.argv[1])
print(joined._started._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.usefixtures("alone")
def test_what_killed_processes_have_left_goes_when_another_address_is_joined() -> None:
    left, other = (f"tcp://127.0.0.1:9/{name}" for name in ("left", "other"))
    with running(JOINS, left) as worker:
        relay = int(line(worker))
        until(lambda: relay_of(place_of(left)) == relay, "its relay to be there")
        with joined(other):
            assert len(left_of(place_of(left))) == 3  # somebody uses them
        for process in (worker.pid, relay):
            os.kill(process, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{relay}/fd").exists(), "its relay to be gone")
    assert len(left_of(place_of(left))) == 3
    with joined(other):
        assert left_of(place_of(left)) == []


def test_a_complaint_is_that_of_ones_own_relay_whoever_starts_another(j: Job) -> None:
    other = j.root().address.replace("/policy", "/critic")
    with joined(other) as made:
        own = made._started
        until(lambda: not own.runs, "its relay to fail")
        silent = _Started(other, [sys.executable, "-c", ""], dict(os.environ), made.files.log)
        until(lambda: not silent.runs, "another one to end")
        with pytest.raises(RltraceError, match="it serves the policy policy"):
            made.attach(0.0)
    with pytest.raises(RltraceError, match="it serves the policy policy"):
        Subscriber.connect(other)
    assert left_of(place_of(other)) == []


def test_a_relay_that_is_killed_at_its_start_is_no_complaint(memory: Path) -> None:
    with joined(f"tcp://127.0.0.1:9/{memory.name}") as made:  # no other test has a relay there
        made._started._process.kill()
        made._started._process.wait()
        with pytest.raises(RltraceError, match="nothing came from"):
            made.attach(0.0)


def test_a_relay_that_cannot_be_started_now_is_started_later(
    memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no process to spare")

    with joined(f"tcp://127.0.0.1:9/{memory.name}") as made:
        first = made._started
        with monkeypatch.context() as patched:
            patched.setattr(subprocess, "Popen", full)
            first._process.kill()
            until(lambda: "no process to spare" in caplog.text, "it to be missed")
        until(lambda: made._started is not first, "another one")


@pytest.fixture
def files(alone: Path) -> JoinedFiles:
    return JoinedFiles("shm://place")


def there(files: JoinedFiles) -> list[bool]:
    return [path.exists() for path in (files.users, files.relay)]


def test_they_stay_while_somebody_is_there_and_go_then(files: JoinedFiles) -> None:
    first, second = files.enter(), files.enter()
    files.log.touch()
    files.log.with_name(f"{files.log.name}.a_b1c2d3").touch()
    first.release()
    files.remove()
    sweep()
    assert there(files) == [True, True]
    second.release()
    files.remove()
    assert list(files.log.parent.iterdir()) == []


def test_a_relay_that_runs_keeps_them_until_it_removes_them_itself(files: JoinedFiles) -> None:
    files.enter().release()
    relay = files.claim()
    files.remove()
    sweep()
    assert there(files) == [True, True]
    files.remove(relay)
    relay.release()
    assert there(files) == [False, False]
    assert files.claim() is None


def test_what_a_killed_remover_has_left_is_removed(files: JoinedFiles) -> None:
    files.enter().release()
    files.relay.unlink()
    sweep()
    assert not files.users.exists()


def opened(path: Path) -> int:
    """How often this process has the file open."""
    links = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return links.count(str(path))


def test_who_comes_in_while_they_are_removed_makes_others(files: JoinedFiles) -> None:
    files.enter().release()
    remover = Lock.take(files.users)
    came: list[Lock] = []
    coming = threading.Thread(target=lambda: came.append(files.enter()))
    coming.start()
    until(lambda: opened(files.users) == 2, "it to wait for the lock")
    files.relay.unlink()
    files.users.unlink()
    remover.release()
    coming.join()
    assert came[0].is_of(files.users)
    assert files.relay.exists()
    came[0].release()


def test_a_relays_lock_of_a_removed_file_is_none(
    files: JoinedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.enter().release()

    def locked(*given: Any) -> Any:
        monkeypatch.undo()
        files.relay.unlink()  # between its being opened and its being locked
        return fcntl.fcntl(*given)

    monkeypatch.setattr(fcntl, "fcntl", locked)
    assert files.claim() is None
    assert opened(Path(f"{files.relay} (deleted)")) == 0


def test_who_locked_what_is_gone_removes_nothing(
    files: JoinedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.enter().release()
    using: list[Lock] = []

    def late(*given: Any) -> Any:
        patched.undo()
        files.users.unlink()  # by another remover, between its being opened and its being locked
        using.append(files.enter())
        return fcntl.fcntl(*given)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "fcntl", late)
        files.remove()
    assert using[0].is_of(files.users)
    assert files.relay.exists()
    using[0].release()


STARTER = """
import sys, time
from rltrace.sync.transfer.relay_process import Beside
print(Beside(sys.argv[1], "127.0.0.1").address, flush=True)
time.sleep(600)
"""


def listens(text: str) -> bool:
    address = Address.parse(text)
    try:
        socket.create_connection((address.host, address.port), timeout=5).close()
    except OSError:
        return False
    return True


def test_it_ends_with_the_process_that_started_it_however_that_ends(where: str) -> None:
    with running(STARTER, where) as starter:
        address = line(starter)
        assert listens(address)
    until(lambda: not listens(address), "the relay to end")


def test_one_that_was_killed_is_followed_on_once_it_is_kept(j: Job) -> None:
    with closing(Beside(j.place("policy"), "127.0.0.1")) as beside:
        follower = j.follow(beside.address, token=beside.token)
        follower.wait(j.publish())
        beside._process.kill()
        beside._process.wait()
        second = j.publish()
        beside.keep()
        j.arrives(follower, second)


def test_a_policy_that_cannot_be_served_ends_it_and_is_told(where: str) -> None:
    weights = {"w": np.zeros(10)}
    beside = Beside(where, "127.0.0.1")
    assert beside.address
    with Publisher.open(layout_of(weights), where, hashing=False) as publisher:
        publisher.publish(weights)
        assert beside._process.wait(60) == 2
    with pytest.raises(RltraceError, match="exit code 2"):
        beside.keep()
