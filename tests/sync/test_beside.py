"""A relay beside the process that publishes: it serves what that publishes, and ends with it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rltrace.sync import Publisher, layout_of
from rltrace.sync.beside import Beside
from rltrace.testing.inside.sync import Address, Relay
from rltrace.testing.inside.trace import RltraceError
from tests.sync.proxy import until
from tests.sync.relays import job

STARTER = """
import time
from rltrace.sync.beside import Beside
print(Beside({where!r}, "127.0.0.1").address, flush=True)
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
    with subprocess.Popen(
        [sys.executable, "-c", STARTER.format(where=where)], stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        address = starter.stdout.readline().strip()
        assert listens(address)
        starter.kill()
    until(lambda: not listens(address), "the relay to end")


def test_one_that_was_killed_is_followed_on_once_it_is_kept(memory: Path) -> None:
    with job(memory) as j:
        beside = Beside(j.place("policy"), "127.0.0.1")
        try:
            follower = Relay.follow(beside.address, j.place("node"), token=beside.token)
            with follower:
                follower.wait(j.publish())
                beside._process.kill()
                beside._process.wait()
                second = j.publish()
                beside.keep()
                follower.wait(second)
                assert j.holds("node", second)
        finally:
            beside.close()


def test_a_policy_that_cannot_be_served_ends_it_and_is_told(where: str) -> None:
    weights = {"w": np.zeros(10)}
    beside = Beside(where, "127.0.0.1")
    assert beside.address
    with Publisher.open(layout_of(weights), where, hashing=False) as publisher:
        publisher.publish(weights)
        assert beside._process.wait(60) == 2
    with pytest.raises(RltraceError, match=r"the relay that served .* has ended with exit code 2"):
        beside.keep()
