"""A subscriber of another host's policy pulls as from one of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from rltrace.sync import Subscriber
from rltrace.sync.joining import Joined, _Started, place_of
from rltrace.testing.inside.sync import Address, JoinedFiles, Relay, folder_of
from rltrace.testing.inside.trace import CANNOT_TELL, RltraceError
from tests.sync.proxy import until
from tests.sync.relays import Job, job, nudge


def pulled(subscriber: Subscriber, j: Job, at_least: int) -> bool:
    """Whether what it pulls is what was published."""
    target = {key: np.zeros_like(value) for key, value in j.state.items()}
    subscriber.pull_into(target, at_least, verify=True)
    return all((target[key] == j.state[key]).all() for key in target)


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


def why_not(address: str, token: str | None = None) -> str:
    """The reason that a subscriber of an address is given, once its relay has found one."""
    joined = Joined(address, token)
    try:
        until(lambda: joined._files.told() != "", "a reason")
        with pytest.raises(RltraceError, match="nothing came from") as caught:
            joined.attach(0.0)
        assert caught.value.exit_code == CANNOT_TELL
        said = str(caught.value)
        assert said.startswith(f"nothing came from {address} within 0 s: ")
        return said.partition(" within 0 s: ")[2]
    finally:
        joined.close()


def greet(listener: socket.socket) -> None:
    """Answers as a server of something else, until its listener is closed."""
    with suppress(OSError):
        while True:
            connected, _ = listener.accept()
            connected.sendall(b"SSH-2.0-OpenSSH_9.9" + b" " * 64)
            connected.close()


def left_of(place: str) -> list[str]:
    """The names of the files by which subscribers share the relay of a place."""
    files = JoinedFiles(place)
    return sorted(path.name for path in files.log.parent.glob(f"{files.log.stem}.*"))


def test_subscribers_of_a_host_share_one_relay_that_is_replaced_and_ends(memory: Path) -> None:
    with job(memory) as j:
        root = j.root()
        j.publish()
        place = place_of(root.address)
        first, second = (Subscriber.connect(root.address) for _ in range(2))
        assert pulled(first, j, 1)
        assert pulled(second, j, 1)
        assert root.status.children == 1

        os.kill(relay_of(place), signal.SIGKILL)
        assert pulled(first, j, 1)  # nobody needs it for what is there
        nudge(j.state, 1)
        j.publish()
        assert pulled(first, j, 2)
        assert pulled(second, j, 2)

        first.close()
        second.close()
        until(lambda: left_of(place) == [], "the relay to end, and its files to be gone")
        until(lambda: not folder_of(place).exists(), "its memory to be free")


def test_an_address_where_the_policy_is_not_served_is_an_error(memory: Path) -> None:
    with job(memory) as j:
        other = j.root().address.replace("/policy", "/critic")
        with pytest.raises(RltraceError, match="it serves the policy policy"):
            Subscriber.connect(other)
        assert left_of(place_of(other)) == []


def test_where_nothing_listens_the_error_says_so_in_time(memory: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}/{memory.name}"
    assert why_not(address) == (
        f"connection refused: nothing listens there (is it up, and {port} its port?)"
    )
    until(lambda: left_of(place_of(address)) == [], "nothing to be left of it")


def test_a_name_that_does_not_resolve_is_named(memory: Path) -> None:
    said = "the name nohost.invalid does not resolve on this host (is it spelled right?)"
    assert why_not(f"tcp://nohost.invalid:7400/{memory.name}", token="secret") == said


def test_what_answers_as_no_relay_does_is_told(memory: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as page:
        threading.Thread(target=greet, args=(page,), daemon=True).start()
        said = why_not(f"tcp://127.0.0.1:{page.getsockname()[1]}/{memory.name}")
    assert said == "what answers there is no relay of rltrace: is the port right?"


def test_what_listens_and_says_nothing_is_told(memory: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}/{memory.name}"
        assert why_not(address) == "the other side has fallen silent"


def test_a_relay_that_has_nothing_yet_is_told_from_none_at_all(memory: Path) -> None:
    with job(memory) as j:
        said = "it answers, but no version of the policy policy is published there yet"
        assert why_not(j.root().address) == said


def test_a_subscriber_that_started_no_relay_hears_the_reason_too(memory: Path) -> None:
    address = f"tcp://127.0.0.1:9/{memory.name}"
    with closing(Joined(address)) as first:
        until(lambda: "refused" in first._files.told(), "a reason")
        with closing(Joined(address)) as second:
            assert second._started is None
            with pytest.raises(RltraceError, match=r"within 0 s: connection refused"):
                second.attach(0.0)


def test_another_token_is_told_as_soon_as_it_is_refused(memory: Path) -> None:
    with job(memory) as j, pytest.raises(RltraceError, match="has another token: set RLTRACE_SYNC"):
        Subscriber.connect(j.root().address, token="another")


def test_a_relay_that_comes_up_while_it_is_waited_for_is_followed(memory: Path) -> None:
    with job(memory) as j:
        root = j.root()
        address = Address.parse(root.address)
        root.close()
        joined = Joined(root.address)
        until(lambda: "refused" in joined._files.told(), "it to be missed")
        with Relay.serve(j.place("policy"), port=address.port):
            j.publish()
            with Subscriber.connect(root.address) as subscriber:
                assert pulled(subscriber, j, 1)
                until(lambda: joined._files.told() == "", "the trouble to be over")
        joined.close()


def test_what_killed_processes_have_left_goes_when_another_address_is_joined(memory: Path) -> None:
    left, other = (f"tcp://127.0.0.1:9/{memory.name}-{name}" for name in ("left", "other"))
    program = f"""
import time
from rltrace.sync.joining import Joined
joined = Joined({left!r})
print(joined._started._process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        relay = int(worker.stdout.readline())
        until(lambda: relay_of(place_of(left)) == relay, "its relay to be there")
        joined = Joined(other)
        assert len(left_of(place_of(left))) == 3  # somebody uses them
        joined.close()
        for process in (worker.pid, relay):
            os.kill(process, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{relay}/fd").exists(), "its relay to be gone")
    assert len(left_of(place_of(left))) == 3
    joined = Joined(other)
    assert left_of(place_of(left)) == []
    joined.close()


def test_a_complaint_is_that_of_ones_own_relay_whoever_starts_another(memory: Path) -> None:
    with job(memory) as j:
        other = j.root().address.replace("/policy", "/critic")
        joined = Joined(other)
        try:
            own = joined._started
            assert own is not None
            until(lambda: not own.runs, "its relay to fail")
            silent = _Started(
                other, [sys.executable, "-c", ""], dict(os.environ), joined._files.log
            )
            until(lambda: not silent.runs, "another one to end")
            with pytest.raises(RltraceError, match="it serves the policy policy"):
                joined.attach(0.0)
        finally:
            joined.close()


def test_a_relay_that_is_killed_at_its_start_is_no_complaint(memory: Path) -> None:
    joined = Joined(f"tcp://127.0.0.1:9/{memory.name}")  # no other test has a relay there
    try:
        assert joined._started is not None
        joined._started._process.kill()
        joined._started._process.wait()
        with pytest.raises(RltraceError, match="nothing came from"):
            joined.attach(0.0)
    finally:
        joined.close()


def test_a_relay_that_cannot_be_started_now_is_started_later(
    memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    joined = Joined(f"tcp://127.0.0.1:9/{memory.name}")
    try:
        first = joined._started
        assert first is not None
        with monkeypatch.context() as patched:
            patched.setattr(subprocess, "Popen", full)
            first._process.kill()
            until(lambda: "no process to spare" in caplog.text, "it to be missed")
        until(lambda: joined._started is not first, "another one")
    finally:
        joined.close()


def full(*_: object, **__: object) -> None:
    raise OSError("no process to spare")
