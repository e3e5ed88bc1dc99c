"""A node whose parent cannot be reached says why, once, and when it is reached."""

from __future__ import annotations

import signal
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from rltrace.testing.inside.sync import Address, Behind, Reach, Relay, Status
from rltrace.testing.inside.sync import relay as reaching
from tests.sync.proxy import Proxy, until
from tests.sync.relays import COMMAND, job


def status(**troubles: str) -> Status:
    """Of a node that follows tcp://a:1/p, or cannot for these reasons."""
    return Status(None, "tcp://a:1/p", 0, 0, 0, troubles, False, Behind())


def refused(node: Relay) -> set[str]:
    """The addresses where nothing listens any more."""
    return {address for address, why in node.status.troubles.items() if "refused" in why}


def test_each_reason_is_told_once_until_a_parent_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reaching, "_PATIENCE_S", 0.0)
    reach = Reach()
    assert reach.news(status()) is None
    assert reach.news(status(a="refused")) == "cannot reach a: refused; trying again"
    assert reach.news(status(a="refused")) is None
    said = "cannot reach a: refused; b: silent; trying again"
    assert reach.news(status(a="refused", b="silent")) == said
    assert reach.news(status(a="refused")) is None
    assert reach.news(status()) == "reached tcp://a:1/p"
    assert reach.news(status()) is None
    assert reach.news(status(a="refused")) == "cannot reach a: refused; trying again"


def test_trouble_that_is_soon_over_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "_PATIENCE_S", 60.0)
    reach = Reach()
    assert reach.news(status(a="refused")) is None
    assert reach.news(status()) is None


def test_the_command_says_why_it_waits_and_when_it_need_not(memory: Path, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    with job(memory) as j, (tmp_path / "said").open("w+") as said:
        words = [*COMMAND, j.place("node"), "--follow", f"tcp://127.0.0.1:{port}/policy"]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=said) as node:
            lines = (tmp_path / "said").read_text
            until(lambda: "refused" in lines(), "it to say why")
            with Relay.serve(j.place("policy"), port=port) as root:
                until(lambda: root.status.children == 1, "it to follow")
                until(lambda: "reached" in lines(), "it to say so")
            until(lambda: lines().count("refused") == 2, "the root to be missed")
            node.send_signal(signal.SIGTERM)
            assert node.wait(30) == 0
        refused = (
            f"cannot reach tcp://127.0.0.1:{port}/policy: connection refused: nothing listens there"
            f" (is it up, and {port} its port?); trying again"
        )
        reached = f"reached tcp://127.0.0.1:{port}/policy"
        assert lines().splitlines() == [refused, reached, refused]


def test_all_that_could_be_followed_are_named(memory: Path) -> None:
    with job(memory) as j:
        root = j.root()
        link = Proxy(root.address)
        first = j.follow(link.address)
        node = j.follow(first.address, "node")
        node.wait(j.publish())
        until(lambda: root.status.children == 1, "the line to be known")
        link.close()
        first.close()
        both = {first.address, link.address}
        until(lambda: refused(node) == both, "both to refuse")
        assert node.status.parent == first.address


def test_a_name_that_cannot_be_one_is_told_as_well(memory: Path) -> None:
    address = Address("a" * 70 + ".invalid", 7400, "policy")
    with job(memory) as j, Relay.follow(str(address), j.place("node"), token="secret") as node:
        until(lambda: bool(node.status.troubles), "it to be missed")
        assert "does not resolve" in node.status.troubles[str(address)]
        assert node.ended_by is None
        assert "does not resolve" in str(node.error)
