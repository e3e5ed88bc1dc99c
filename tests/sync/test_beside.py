"""A relay beside the process that publishes: it serves what that publishes, and ends with it."""

from __future__ import annotations

import socket
from contextlib import closing

import numpy as np
import pytest

from rltrace.sync import Publisher, layout_of
from rltrace.sync.beside import Beside
from rltrace.sync.wire import Address
from rltrace.trace.errors import RltraceError
from tests.sync.pairs import line, running
from tests.sync.proxy import until
from tests.sync.relays import Job

STARTER = """
import sys, time
from rltrace.sync.beside import Beside
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
