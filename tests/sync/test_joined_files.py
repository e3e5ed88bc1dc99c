"""Files that are shared go when nobody is left, and never under somebody who has come in."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rltrace.sync.joined_files import JoinedFiles, sweep
from rltrace.sync.locks import Lock
from tests.sync.proxy import until


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


def test_a_lock_of_a_relay_whose_file_was_removed_is_none(
    files: JoinedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.enter().release()
    locked = Lock.take(files.relay)
    files.relay.unlink()  # between its being opened and its being locked
    monkeypatch.setattr(Lock, "take", lambda *_: locked)
    assert files.claim() is None
    assert locked.fd < 0


def test_who_has_locked_what_is_gone_removes_nothing(
    files: JoinedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.enter().release()
    late = Lock.take(files.users)
    files.users.unlink()  # by another remover, between its being opened and its being locked
    using = files.enter()
    with monkeypatch.context() as patched:
        patched.setattr(Lock, "take", lambda *_: late)
        files.remove()
    assert using.is_of(files.users)
    assert files.relay.exists()
    using.release()


def test_of_many_that_come_and_go_nobody_loses_its_files(files: JoinedFiles) -> None:
    lost, removed = [], []

    def come_and_go(who: int) -> None:
        for turn in range(300):
            lock = files.enter()
            if not (lock.is_of(files.users) and files.relay.exists()):
                lost.append(who)
            relay = files.claim() if turn % 3 == who % 3 else None
            lock.release()
            files.remove(relay)
            if relay is not None:
                removed.append(not relay.is_of(files.relay))
                relay.release()

    threads = [threading.Thread(target=come_and_go, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not lost
    assert any(removed)
    files.remove()
    assert not files.users.exists()
