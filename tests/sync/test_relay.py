"""Versions arrive whole over any number of hops, from whoever still has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rltrace.sync import Subscriber
from rltrace.testing.inside.sync import BLOCK_BYTES, Address, Landing, Node, Shelf
from rltrace.testing.inside.sync import VersionFollower as Follower
from tests.patience import PATIENCE_S, until
from tests.sync.relays import Job, Proxy


def test_versions_arrive_bit_for_bit_at_the_end_of_a_chain(j: Job, memory: Path) -> None:
    root = j.root()
    first = j.follow(root.address, "first")
    last = j.follow(first.address)
    version = j.publish(step=7)
    j.arrives(last, version)
    assert last.status.manifest.step == 7
    j.arrives(first, version)
    for step in range(3):
        j.arrives(last, version := j.next(step))
    whole, *changes = [r for r in j.all_received(8) if r.parent == first.address]
    assert whole.progress.wire_bytes == whole.manifest.bytes
    assert [r.manifest.version.counter for r in changes] == [2, 3, 4]
    for received in changes:
        assert received.progress.wire_bytes < 0.01 * received.manifest.bytes
    sent = root.status.sent_bytes
    j.arrives(j.follow(first.address), version)  # late, from the node that it asks
    assert root.status.sent_bytes == sent
    assert {"policy", "first"} <= {path.name for path in memory.iterdir()}
    j.close()
    assert not any(path.is_dir() for path in memory.iterdir())


def test_versions_can_be_had_whole_only(j: Job) -> None:
    node = j.follow(j.root().address, changes=False)
    for step in range(2):
        node.wait(j.next(step))
    received = j.all_received(2)
    assert [r.progress.wire_bytes for r in received] == [received[0].manifest.bytes] * 2


@pytest.mark.parametrize("j", [24], indirect=True)
def test_a_block_is_passed_on_before_the_version_is_whole(j: Job) -> None:
    to_first = Proxy(j.root().address)
    to_first.gate_after = 4 * BLOCK_BYTES
    first = j.follow(to_first.address, streams=1)
    to_last = Proxy(first.address)
    last = j.follow(to_last.address)
    version = j.publish()
    until(lambda: to_last.passed > 3 * BLOCK_BYTES, "blocks at the last node")
    assert first.status.manifest is None
    to_first.gate.set()
    j.arrives(last, version)


def test_nodes_that_all_follow_the_root_line_up_behind_each_other(j: Job) -> None:
    root = j.root(fanout=1)
    nodes = [j.follow(root.address, fanout=1) for _ in range(4)]
    sent = 0
    for publish in (j.publish, j.next):
        sent = root.status.sent_bytes
        version = publish()
        for node in nodes:
            node.wait(version)
    assert sorted(node.status.children for node in nodes) == [0, 1, 1, 1]
    assert root.status.children == 1
    assert root.status.sent_bytes - sent < 0.01 * j.received[0].manifest.bytes


def test_who_is_sent_round_in_circles_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parent, other = (Address("127.0.0.1", port, "policy") for port in (1, 2))
    me = Node("me", "tcp://127.0.0.1:3/policy")
    landing = Landing("shm://none", Shelf(), b"", 2, 2, True)
    follower = Follower(parent, landing, me, lambda received: None)
    happened: list[str] = []

    def follow(asked: Address, tried: list[str]) -> list[str]:
        happened.append(str(asked.port))
        return [str(other if asked == parent else parent)]

    def wait(seconds: float) -> bool:
        happened.append("waits")
        if len(happened) > 5:
            follower._ended.set()
        return True

    monkeypatch.setattr(follower, "_follow", follow)
    monkeypatch.setattr(follower._ended, "wait", wait)
    follower.run()
    assert happened == ["1", "2", "1", "waits", "2", "waits"]
    assert follower.ended_by is None


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bits_are_noticed_and_asked_for_again(j: Job, seed: int) -> None:
    draws = np.random.default_rng(seed)
    flips = []

    def flip(data: bytearray, offset: int) -> None:
        # About once in 400 kB, anywhere: in payloads, entries, headers, messages, greetings.
        if draws.random() < len(data) / 400e3:
            flips.append(offset)
            data[draws.integers(len(data))] ^= 1 << draws.integers(8)

    link = Proxy(j.root().address)
    node = j.follow(link.address)
    link.damage = flip
    for step in range(4):
        j.arrives(node, j.next(step))
    assert flips
    assert sum(len(r.progress.damaged) + r.progress.broken for r in j.received) > 0


def test_a_damaged_delta_is_sent_as_it_is(j: Job) -> None:
    link = Proxy(j.root().address)
    node = j.follow(link.address, streams=1)
    node.wait(j.publish())

    def flip(data: bytearray, _: int) -> None:
        if len(data) > 5_000:
            data[-500] ^= 16
            link.damage = lambda *_: None

    link.damage = flip
    j.arrives(node, j.next())
    progress = j.all_received(2)[1].progress
    assert len(progress.damaged) == 1
    assert BLOCK_BYTES < progress.wire_bytes < 1.2 * BLOCK_BYTES


@pytest.mark.parametrize("j", [20], indirect=True)
def test_a_link_that_is_cut_in_the_middle_of_a_bucket_goes_on_where_it_was(j: Job) -> None:
    version = j.publish()
    link = Proxy(j.root().address)
    link.cut_after = int(2.5 * BLOCK_BYTES)
    j.arrives(j.follow(link.address, streams=1), version)
    progress = j.all_received(1)[0].progress
    assert progress.broken >= 8  # two whole blocks a connection
    assert link.passed < 1.3 * progress.wire_bytes + 10 * 2.5 * BLOCK_BYTES
    assert progress.damaged == []


@pytest.mark.parametrize("j", [12], indirect=True)
def test_a_parent_that_falls_silent_is_left(j: Job) -> None:
    root = j.root()
    link = Proxy(j.follow(root.address).address)
    node = j.follow(link.address)
    node.wait(j.publish())
    link.gate_after = 0  # connections stay, and nothing comes
    j.state = {**j.state, "odd": j.state["odd"] + 1}
    j.arrives(node)
    assert node.status.parent == root.address
    link.gate.set()


@pytest.mark.parametrize("j", [24], indirect=True)
def test_when_a_parent_dies_in_mid_transfer_its_child_goes_on_with_the_one_above(j: Job) -> None:
    root = j.root()
    to_root = Proxy(root.address)
    process, middle = j.command("middle", to_root.address)
    link = Proxy(middle)
    node = j.follow(link.address, streams=1)
    node.wait(j.publish())
    for body in j.state["body"]:
        np.random.default_rng(5).shuffle(body)
    link.gate_after = 8 * BLOCK_BYTES
    version = j.publish()
    until(lambda: link.passed > 24 * BLOCK_BYTES + 8 * BLOCK_BYTES, "a part of it to arrive")
    before = root.status.sent_bytes
    process.kill()
    link.close()
    j.arrives(node, version)
    assert node.status.parent == to_root.address
    assert node.status.lost >= 1
    # The blocks that it had were not sent again. (The middle node took the whole version too.)
    assert root.status.sent_bytes - before < (24 + 18) * BLOCK_BYTES


def test_a_relay_that_was_killed_starts_again_from_its_own_slots(j: Job) -> None:
    root = j.root()
    process, address = j.command("middle", root.address)
    node = j.follow(address)
    node.wait(version := j.publish())
    with Subscriber.connect(j.place("middle")) as worker:  # of that host
        until(lambda: worker.latest() == version, "the version on the host")
        process.kill()
        process.wait()
        assert j.holds("middle", version)  # the workers there do not need it
        sent = root.status.sent_bytes
        again, _ = j.command("middle", root.address)
        version = j.next()
        until(lambda: worker.latest() == version, "the next version on the host")
        assert j.holds("middle", version)
        assert node.wait(version) == version
        assert root.status.sent_bytes - sent < 0.1 * j.received[0].manifest.bytes
    assert again.poll() is None


def test_one_that_has_a_newer_version_than_its_parent_keeps_it(j: Job) -> None:
    root = j.root()
    link = Proxy(root.address)
    slow = j.follow(link.address)
    node = j.follow(root.address, "node")
    first = j.publish()
    slow.wait(first)
    node.wait(first)
    link.close()
    version = j.next()
    node.wait(version)
    with Subscriber.connect(j.place("node")) as worker:
        node.close()
        again = j.follow(slow.address, "node")
        assert again.wait(version) == version
        until(lambda: slow.status.children == 1, "it to follow")
        assert worker.latest() == version
        assert again.ended_by is None
    assert slow.status.manifest.version == first


def test_changes_that_are_not_worth_their_memory_are_passed_on_as_blocks(j: Job) -> None:
    last = j.follow(j.follow(j.root().address).address)
    last.wait(j.publish())
    bits = np.random.default_rng(1).integers(0, 1 << 10, j.state["body"].shape, np.uint16)
    j.state["body"] ^= bits  # ten of sixteen bits of every element
    j.arrives(last)
    size = j.publisher.layout.bytes
    for received in j.all_received(4)[2:]:
        assert 0.75 * size < received.progress.wire_bytes < 0.95 * size  # some fit, most do not


def test_a_version_stays_for_a_slow_child_that_was_told_of_it(j: Job) -> None:
    """Else one on a busy host finds none of the versions that it hears of."""
    root = j.root()
    first = j.publish()
    root.wait(first)
    told = root._shelf.newer(None, PATIENCE_S, child="slow")
    second = j.next()
    assert root._shelf.find(first) is told
    told.unuse()
    root._shelf.forget_child("slow")
    assert root.wait(second) == second
    root._shelf.newer(None, PATIENCE_S, child="never comes")
    assert root.wait(j.next())


def test_a_node_is_fed_from_its_first_slot_on(j: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """So its workers hear of it where nothing follows the first version."""
    monkeypatch.setattr(Follower, "_see", lambda *_: None)  # what its parent says later
    j.follow(j.root().address, "node")
    version = j.publish()
    with Subscriber.connect(j.place("node"), PATIENCE_S) as worker:
        assert worker.wait(version, PATIENCE_S) == version
        assert worker._arena.control.is_fed


def test_a_node_outlives_damage_at_the_learner_and_says_what_is_wrong(j: Job) -> None:
    root = j.root()
    node = j.follow(root.address)
    before = j.publish()
    node.wait(before)
    j.publisher.arena.control._records[:, 1] += 1  # the learner's step, in each slot's record
    until(lambda: root.error is not None, "the damage to be seen")
    assert root.ended_by is None
    assert root.wait(before) == before
    j.arrives(node, j.next())
    assert root.error is None


def test_memory_that_a_bit_flipped_in_is_not_spread(j: Job, memory: Path) -> None:
    root = j.root()
    first = j.follow(root.address, "first")
    version = j.publish()
    first.wait(version)
    known, found = bytes(j.state["body"][2][:64]), 0
    for slot in (memory / "first").glob("slot-*.safetensors"):
        at = slot.read_bytes().find(known)
        if at >= 0:
            found += 1
            with slot.open("r+b") as file:
                file.seek(at)
                file.write(b"\xff\x00")
    assert found == 1
    node = j.follow(first.address)
    j.arrives(node, version)
    assert node.status.parent == root.address
    assert j.all_received(2)[1].progress.damaged
