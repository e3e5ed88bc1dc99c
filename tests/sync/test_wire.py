"""Who may connect, what is refused, and what a node says when it is of no use or has no parent."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rltrace.cli import main
from rltrace.sync.transfer.wire import TOKEN, Address, Connection, LinkError, token_of
from rltrace.testing.inside.sync import Behind, Relay, Status
from rltrace.testing.inside.sync import ParentReach as Reach
from rltrace.testing.inside.sync import relay as reaching
from rltrace.testing.inside.trace import WRONG_USAGE, RltraceError
from tests.patience import until
from tests.run.test_agent import threads_until_hung_up
from tests.sync.relays import COMMAND, Job, Proxy


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def asking(address: str) -> Connection:
    return Connection.open(Address.parse(address), token_of("127.0.0.1"))


def test_a_side_that_ends_without_a_verdict_has_not_refused() -> None:
    one, other = pair()
    other.sendall(b"rltrace sync 1\n\0" + bytes(32))
    other.shutdown(socket.SHUT_WR)
    with pytest.raises(LinkError):
        Connection(one)._prove(b"secret", Address("here", 1, "policy"))


@pytest.mark.parametrize(
    "damage", [lambda b: b[:10], lambda b: b"X" + b[1:], lambda b: b[:-1] + b"?", lambda _: b""]
)
def test_a_damaged_message_is_an_error(damage: Any) -> None:
    one, other = pair()
    sender, receiver = Connection(one), Connection(other)
    kept: list[bytes] = []
    sender.write = lambda parts: kept.extend(map(bytes, parts))
    sender.send({"ask": "watch"})
    one.sendall(damage(b"".join(kept)))
    one.close()
    with pytest.raises(LinkError):
        receiver.receive()


def test_an_enormous_message_is_not_waited_for() -> None:
    one, other = pair()
    one.sendall(b"RLTm" + b"\xff" * 16)
    with pytest.raises(LinkError, match="no message"):
        Connection(other).receive()


def test_without_the_token_nothing_is_told(j: Job) -> None:
    j.publish()
    root = j.root()
    address = Address.parse(root.address)
    assert ip_address(address.host).is_loopback  # unless told otherwise
    with socket.create_connection((address.host, address.port), timeout=10) as stranger:
        assert len(stranger.recv(1000)) == 48  # its greeting
        stranger.sendall(b"\0" * 64)
        assert stranger.recv(1000) == b"-"
        assert stranger.recv(1000) == b""
    node = j.follow(root.address, token="another")
    with pytest.raises(RltraceError, match="has another token"):
        node.wait(1)


def test_strangers_take_few_threads_and_none_for_long(j: Job) -> None:
    root = j.root()
    address = Address.parse(root.address)
    before = threading.active_count()
    where = (address.host, address.port)
    strangers = [socket.create_connection(where, timeout=60) for _ in range(100)]
    strangers[0].sendall(b"0")
    assert threads_until_hung_up(strangers[0]) - before <= 64
    for stranger in strangers:
        stranger.close()
    assert j.follow(root.address).wait(j.publish()).counter == 1


def test_blocks_beyond_the_end_are_refused(j: Job) -> None:
    root = j.root()
    version = j.publish()
    root.wait(version)
    connection = asking(root.address)
    wanted = {"version": str(version), "base": None, "blocks": [[0, 1 << 40]], "again": False}
    connection.send({"ask": "get", "policy": "policy", **wanted})
    assert connection.receive()[0] == {"gone": False}
    with pytest.raises(LinkError):
        connection.receive()


def test_a_node_of_another_policy_says_so_whatever_its_slots_are_called(j: Job) -> None:
    first = j.follow(j.root().address, "elsewhere")
    assert Address.parse(first.address).policy == "policy"
    for name in ("critic", "elsewhere"):
        wrong = j.follow(first.address.replace("/policy", f"/{name}"), f"wrong-{name}")
        with pytest.raises(RltraceError, match=f"so follow {first.address} ") as caught:
            wrong.wait(1)
        assert caught.value.exit_code == WRONG_USAGE
    j.arrives(j.follow(first.address))


def test_what_listens_on_all_networks_tells_an_address_that_can_be_followed(j: Job) -> None:
    version = j.publish()
    with Relay.serve(j.place("policy"), "0.0.0.0", token="secret") as root:
        assert root.on_all_networks
        assert Address.parse(root.address).host != "0.0.0.0"
        node = j.follow(root.address, token="secret")
        assert not node.on_all_networks
        assert node.wait(version) == version


def test_a_host_without_a_route_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    for host in ("0.0.0.0", "::"):
        told = Address(host, 7000, "policy").told
        assert told == Address(socket.gethostname(), 7000, "policy")


def test_two_nodes_that_follow_each_other_do_not_run_in_circles(j: Job) -> None:
    root = j.root()
    link = Proxy(root.address)
    first = j.follow(link.address)
    second = j.follow(first.address)
    second.wait(j.publish())
    # The one that it followed is gone, and in its place answers its own child.
    link._parent = Address.parse(second.address)
    for each in link._sockets:
        each.close()
    until(lambda: first.status.lost > 0, "the parent to be missed")
    link._parent = Address.parse(root.address)
    version = j.next()
    assert second.wait(version) == version


@pytest.mark.parametrize(
    "text",
    ["", "shm://policy", "tcp://host/policy", "tcp://host:99999/p", "tcp://host:1", "tcp://:1/p"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(RltraceError, match="is no tcp://"):
        Address.parse(text)
    for good in ("tcp://a.b:7000/policy", "tcp://[::1]:7000/critic-1"):
        assert str(Address.parse(good)) == good


def test_what_others_can_reach_takes_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(RltraceError, match=TOKEN):
        token_of("0.0.0.0")
    assert token_of("127.0.0.1") == token_of("localhost")  # that of all processes of the user
    assert len(token_of("127.0.0.1")) == 64
    monkeypatch.setenv(TOKEN, "secret")
    assert token_of("0.0.0.0") == b"secret"
    assert token_of("127.0.0.1", "given") == b"given"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "127.0.0.1"], "is no HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "is no HOST:PORT"),
        (["--listen", "0.0.0.0:0"], TOKEN),
    ],
)
def test_the_command_says_what_is_wrong(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    done = CliRunner().invoke(main, ["sync", "serve", *words])
    assert done.exit_code == 2
    assert said in done.output


def test_the_command_tells_what_arrives(j: Job) -> None:
    root = j.root()
    process, address = j.command("node", root.address)
    version = j.publish(step=3)
    said = json.loads(process.stdout.readline())
    assert said["version"] == str(version)
    assert (said["step"], said["parent"]) == (3, root.address)
    assert said["bytes"] == said["wire_bytes"] == j.publisher.layout.bytes
    assert said["damaged_blocks"] == said["broken_connections"] == 0
    process.terminate()
    assert process.wait(30) == 0
    assert Address.parse(address).host == "127.0.0.1"


def status(**troubles: str) -> Status:
    """Of a node that follows tcp://a:1/p, or cannot for these reasons."""
    return Status(None, "tcp://a:1/p", 0, 0, 0, troubles, Behind())


@pytest.mark.parametrize("patience_s", [0.0, 60.0])
def test_each_reason_is_told_once_and_not_if_soon_over(
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


@pytest.mark.parametrize("host", ["nohost.invalid", "a" * 70 + ".invalid"])
def test_a_name_that_does_not_resolve_is_told(j: Job, host: str) -> None:
    address = str(Address(host, 7400, "policy"))
    node = j.follow(address, token="secret")
    until(lambda: bool(node.status.troubles), "it to be missed")
    assert f"{host} does not resolve" in node.status.troubles[address]
    assert f"{host} does not resolve" in str(node.error)
    assert node.ended_by is None
