"""A node whose parent cannot be reached says why, once, and when it is reached."""

from __future__ import annotations

import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from rltrace.sync import relay as reaching
from rltrace.sync.relay import Reach, Relay, Status
from rltrace.sync.version import Behind
from rltrace.sync.wire import Address
from tests.sync.proxy import Proxy, until
from tests.sync.relays import COMMAND, Job


def status(**troubles: str) -> Status:
    """Of a node that follows tcp://a:1/p, or cannot for these reasons."""
    return Status(None, "tcp://a:1/p", 0, 0, 0, troubles, False, Behind())


@pytest.mark.parametrize("patience_s", [0.0, 60.0])
def test_each_reason_is_told_once_until_a_parent_is_reached_and_not_if_it_is_soon_over(
    monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    monkeypatch.setattr(reaching, "_PATIENCE_S", patience_s)
    reach = Reach()
    one, two = {"a": "refused"}, {"a": "refused", "b": "silent"}
    news = [reach.news(status(**troubles)) for troubles in ({}, one, one, two, one, {}, {}, one)]
    told = [
        None if said is None else [word for word in ("a: ", "b: ", "reached") if word in said]
        for said in news
    ]
    expected = [None, ["a: "], None, ["a: ", "b: "], None, ["reached"], None, ["a: "]]
    assert told == (expected if patience_s == 0.0 else [None] * 8)


def test_the_command_says_why_it_waits_and_when_it_need_not(j: Job, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    told = tmp_path / "said"
    words = [*COMMAND, j.place("node"), "--follow", f"tcp://127.0.0.1:{port}/policy"]
    with (
        told.open("w") as said,
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=said) as node,
    ):
        until(lambda: "refused" in told.read_text(), "it to say why")
        with Relay.serve(j.place("policy"), port=port) as root:
            until(lambda: root.status.children == 1, "it to follow")
            until(lambda: "reached" in told.read_text(), "it to say so")
        until(lambda: told.read_text().count("refused") == 2, "the root to be missed")
        node.terminate()
        assert node.wait(30) == 0
    first, reached, again = told.read_text().splitlines()
    assert first == again
    assert reached == f"reached tcp://127.0.0.1:{port}/policy"


def test_all_that_could_be_followed_are_named(j: Job) -> None:
    root = j.root()
    link = Proxy(root.address)
    first = j.follow(link.address)
    node = j.follow(first.address)
    node.wait(j.publish())
    until(lambda: root.status.children == 1, "the line to be known")
    link.close()
    first.close()

    def refused() -> set[str]:
        return {address for address, why in node.status.troubles.items() if "refused" in why}

    until(lambda: refused() == {first.address, link.address}, "both to refuse")
    assert node.status.parent == first.address


def test_a_name_that_cannot_be_one_is_told_as_well(j: Job) -> None:
    address = str(Address("a" * 70 + ".invalid", 7400, "policy"))
    node = j.follow(address, token="secret")
    until(lambda: bool(node.status.troubles), "it to be missed")
    assert "does not resolve" in node.status.troubles[address]
    assert node.ended_by is None
    assert "does not resolve" in str(node.error)
