"""Every server that rltrace has, with clients that say a byte at a time and come again, or hang up:
others are answered, and nothing is printed."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from rltrace.testing.inside.report import serving
from rltrace.testing.inside.run import ClockServer, measure
from rltrace.testing.inside.sync import Address, store_at
from tests.patience import PATIENCE_S
from tests.slow_clients import slow_clients
from tests.sync.relays import Job

ASKED = 4
HTTP = b"GET / HTTP/1.1\r\n"
Served = tuple[tuple[str, int], bytes, Callable[[], object]]
"""The address of a server, what slow clients say, and another's question, which raises where it is
not answered."""


@contextmanager
def clock(_: Path) -> Iterator[Served]:
    server = ClockServer()
    ask = partial(measure, ["127.0.0.1"], server.port, server.token, 1)
    yield ("127.0.0.1", server.port), server.token.encode(), ask


@contextmanager
def timeline(folder: Path) -> Iterator[Served]:
    trace = folder / "run.pftrace"
    trace.write_bytes(bytes(3 << 20))
    with serving.serving(trace, folder) as page:
        place = page.split("/")[2]

        def ask() -> None:
            with urllib.request.urlopen(f"http://{place}/rltrace/x", timeout=PATIENCE_S) as answer:
                assert len(answer.read()) == 3 << 20

        yield ("127.0.0.1", int(place.split(":")[1])), HTTP, ask


@contextmanager
def relay(folder: Path) -> Iterator[Served]:
    job = Job(folder)
    at = Address.parse(job.root().address)

    def ask() -> None:
        version = job.publish()
        assert job.follow(str(at)).wait(version) == version

    try:
        yield (at.host, at.port), bytes(64), ask
    finally:
        job.close()


@contextmanager
def group(_: Path) -> Iterator[Served]:
    dist = pytest.importorskip("torch.distributed")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    store = store_at(Address("127.0.0.1", port, "policy"), 0, 2, PATIENCE_S)

    def ask() -> None:
        name = str(threading.get_native_id())
        mine = dist.TCPStore("127.0.0.1", store.port, 2, False, timedelta(seconds=PATIENCE_S))
        mine.set(name, "x")
        assert mine.get(name) == b"x"

    yield ("127.0.0.1", store.port), b"\0\xce\xf7\x85\x3c\0\0\0", ask


@pytest.mark.parametrize("server", [clock, timeline, relay, group], ids=lambda one: one.__name__)
def test_others_are_answered_beside_slow_clients_who_print_nothing_by_hanging_up(
    server: Callable[[Path], Iterator[Served]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with server(tmp_path) as (place, said, ask):
        with slow_clients(place, said) as slow:
            for _ in range(ASKED):
                slow.go_on()
                ask()
        ask()
    assert capfd.readouterr().err == ""
