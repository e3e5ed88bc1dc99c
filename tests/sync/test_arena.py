"""Slots in shared memory: one writer, leases, what is left behind, and what does not fit."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rltrace.sync import DamagedError, Publisher, Subscriber, Version, layout_of
from rltrace.sync.memory.arena import Arena
from rltrace.testing.inside.sync import CONTROL, Control, folder_of, shared_memory
from rltrace.testing.inside.trace import RltraceError
from tests.faults.conftest import small_disk  # noqa: F401
from tests.sync import pairs
from tests.sync.pairs import Pair, published, said

WEIGHTS = {"w": np.arange(300_000, dtype=np.float32), "odd": np.arange(5, dtype=np.uint8)}
LAYOUT = layout_of(WEIGHTS)


@pytest.fixture
def pair(where: str) -> Iterator[Pair]:
    with pairs.pair(where, WEIGHTS) as opened:
        yield opened


def filled(value: float) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.full_like(array, value) for name, array in WEIGHTS.items()}


def pulled(subscriber: Subscriber) -> float:
    """The value that all elements of the latest version have."""
    target = filled(99)
    subscriber.pull_into(target, verify=True)
    (value,) = set(np.unique(target["w"])) | set(np.unique(target["odd"]))
    return float(value)


def test_there_is_one_publisher_and_the_last_one_out_frees_the_memory(
    where: str, memory: Path
) -> None:
    with Publisher.open(LAYOUT, where) as publisher:
        with pytest.raises(RltraceError, match="has a publisher already"):
            Publisher.open(LAYOUT, where)
        subscriber = Subscriber.connect(where)
        publisher.publish(filled(1))
    assert pulled(subscriber) == 1
    subscriber.close()
    assert list(memory.iterdir()) == []


def test_versions_go_on_over_a_restart(pair: Pair, where: str) -> None:
    first, subscriber = pair
    old = [first.publish(filled(n)) for n in (1, 2)]
    first.close()
    assert subscriber.latest() == old[1]
    with Publisher.open(LAYOUT, where) as second:
        assert pulled(subscriber) == 2
        new = second.publish(filled(3))
        assert pulled(subscriber) == 3
    assert (new.run, new.counter) == (old[1].run, old[1].counter + 1)
    assert old[0] < old[1] < new
    assert new.epoch > old[1].epoch


def test_another_run_does_not_see_the_weights_of_the_one_before(where: str) -> None:
    with Publisher.open(LAYOUT, where, run="a" * 16) as first:
        first.publish(filled(1))
        subscriber = Subscriber.connect(where)
    with Publisher.open(LAYOUT, where, run="b" * 16) as second, subscriber:
        assert subscriber.latest() is None
        version = second.publish(filled(2))
        assert (version.run, version.counter) == ("b" * 16, 2)
        assert pulled(subscriber) == 2


def test_a_layout_that_changed_sends_subscribers_to_the_new_one(where: str, memory: Path) -> None:
    with Publisher.open(LAYOUT, where) as first:
        old = first.publish(filled(1))
        subscriber = Subscriber.connect(where)
        held = subscriber.lease()
    wider, target = ({"w": fill(400_000, dtype=np.float32)} for fill in (np.ones, np.zeros))
    with Publisher.open(layout_of(wider), where) as second, subscriber:
        assert subscriber.latest() is None
        assert second.publish(wider) > old
        with pytest.raises(RltraceError, match="w has shape"):
            subscriber.pull_into(filled(0))
        subscriber.pull_into(target)
        assert target["w"].all()
        assert held["w"].all()  # what is held stays
        held.release()
    assert list(memory.iterdir()) == []


def test_behind_slow_readers_a_spare_slot_is_used_then_versions_are_left_out(where: str) -> None:
    with Publisher.open(LAYOUT, where, slots=2, spare=1, patience_s=0.01) as publisher:
        readers, held = [Subscriber.connect(where) for _ in range(3)], []
        for n, reader in enumerate(readers):
            assert publisher.publish(filled(n)) is not None
            held.append(reader.lease())
        assert publisher.publish(filled(3)) is None
        assert publisher.skipped == 1
        assert [view["w"][0] for view in held] == [0, 1, 2]
        held[0].release()
        assert publisher.publish(filled(4)).counter == 4
        assert pulled(readers[0]) == 4
        for view in held:
            view.release()
        for reader in readers:
            reader.close()


def test_an_older_version_can_be_leased_while_it_is_there(pair: Pair) -> None:
    publisher, subscriber = pair
    first, second = publisher.publish(filled(1)), publisher.publish(filled(2))
    with subscriber.lease(first) as views:
        assert views["w"][0] == 1
        assert views.manifest.version == first
    publisher.publish(filled(3))
    with pytest.raises(RltraceError, match="no longer"):
        subscriber.lease(first)
    with subscriber.lease(second) as views:
        assert views["w"][0] == 2


def test_a_relay_cannot_take_a_policy_back(where: str) -> None:
    arena = Arena.create(where, LAYOUT)
    new, old = (Version("c" * 16, 1, n) for n in (5, 4))
    assert arena.write().commit(version=new) == new
    with pytest.raises(RltraceError, match="is not after"):
        arena.write().commit(version=old)
    assert arena.latest() == new
    assert arena.write() is not None
    arena.close()


def damage(subscriber: Subscriber, at_bytes: int = 600_000) -> None:
    """Flips a bit of the latest version's data."""
    with subscriber.lease() as views, open(views.path, "r+b") as file:
        file.seek(at_bytes - LAYOUT.bytes, os.SEEK_END)
        bits = file.read(1)[0] ^ 4
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([bits]))


FOUND = "damaged in 1 of 3 blocks, first in w;"


@pytest.mark.parametrize("has_applied", [True, False])
def test_what_held_before_damage_is_put_back_or_the_model_is_poisoned(
    pair: Pair, has_applied: bool
) -> None:
    publisher, subscriber = pair
    target = filled(99)
    if has_applied:
        publisher.publish(filled(1))
        subscriber.pull_into(target)
    publisher.publish(filled(2))
    damage(subscriber)
    with pytest.raises(DamagedError, match=FOUND) as caught:
        subscriber.pull_into(target)
    assert (":1 was put back" in str(caught.value)) == has_applied
    assert (target["w"] == 1).all() == has_applied
    assert subscriber.poisoned != has_applied
    publisher.publish(filled(3))
    assert pulled(subscriber) == 3
    assert not subscriber.poisoned


def test_each_pull_checks_for_itself(pair: Pair, where: str) -> None:
    publisher, first = pair
    publisher.publish(filled(1))
    assert pulled(first) == 1
    damage(first)
    with Subscriber.connect(where) as second:
        for ask in (lambda: pulled(second), lambda: second.stage(filled(0)), second.lease):
            with pytest.raises(DamagedError, match=FOUND):
                ask()
        assert second.pull_into(filled(0), verify=False) == first.latest()


@pytest.mark.parametrize("what", ["header", "record", "table"])
def test_what_says_what_the_data_is_is_checked_too(pair: Pair, where: str, what: str) -> None:
    publisher, subscriber = pair
    version = publisher.publish(filled(1))
    control = Control(folder_of(where) / CONTROL)
    if what == "header":
        with subscriber.lease() as views, open(views.path, "r+b") as file:
            file.seek(20)
            file.write(b"\x01")
    elif what == "record":
        control._records[:, 1] += 1  # the learner's step
    else:
        control.digests(0)[:] += 1
        control.digests(1)[:] += 1
    target = filled(99)
    with pytest.raises(
        RltraceError, match="no slot holds" if what == "record" else f"{version}.*damaged"
    ):
        subscriber.pull_into(target)
    assert (target["w"] == 99).all()
    assert not subscriber.poisoned
    for n in (2, 3):  # into each slot
        publisher.publish(filled(n))
        assert pulled(subscriber) == n


def test_a_control_file_that_something_else_wrote_to_ends_no_pull_in_a_hang(where: str) -> None:
    with published(where, WEIGHTS) as subscriber:
        damaged = Control(folder_of(where) / CONTROL)
        for slot in (1, 200):
            damaged.latest = damaged.latest & ~0xFF | slot
            with pytest.raises(RltraceError, match="no slot holds"):
                subscriber.pull_into(filled(0), timeout_s=5)


def test_a_slot_that_was_cut_is_told(pair: Pair, where: str, memory: Path) -> None:
    pair[0].publish(filled(1))
    for slot in memory.rglob("slot-*.safetensors"):
        os.truncate(slot, 4096)
    with pytest.raises(RltraceError, match="was cut"), Subscriber.connect(where) as subscriber:
        subscriber.pull_into(filled(0))


def test_a_publisher_whose_memory_was_removed_says_so(where: str, memory: Path) -> None:
    with Publisher.open(LAYOUT, where, spare=0) as publisher:
        publisher.publish(filled(1))
        shutil.rmtree(next(memory.iterdir()))
        with pytest.raises(RltraceError, match="was removed while it was in use"):
            publisher.publish(filled(2))


def test_a_slot_removed_under_a_pull_is_told(
    where: str, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Arena.lease

    def slow(self: Arena, *given: Any) -> Any:
        leased = lease(self, *given)
        shutil.rmtree(memory / "policy")
        return leased

    with published(where, WEIGHTS) as subscriber:
        monkeypatch.setattr(Arena, "lease", slow)
        with pytest.raises(RltraceError, match="was removed while it was in use"):
            subscriber.pull_into(filled(0))
        assert not subscriber.poisoned


def test_what_was_not_hashed_cannot_be_verified(where: str) -> None:
    with published(where, filled(1), hashing=False) as subscriber:
        target = filled(0)
        with pytest.raises(RltraceError, match="without digests"):
            subscriber.pull_into(target, verify=True)
        subscriber.pull_into(target)
        assert (target["w"] == 1).all()


FORKS = """
import os, sys, numpy as np
from rltrace.sync import Publisher, Subscriber, layout_of
weights, where = {"w": np.ones(8 << 20, dtype=np.uint8)}, sys.argv[1]
publisher = Publisher.open(layout_of(weights), where, threads=2)
publisher.publish(weights)
subscriber = Subscriber.connect(where, threads=2)
subscriber.pull_into(weights)
if not os.fork():
    try:
        publisher.publish(weights)
    except Exception as error:
        print(error, flush=True)
    weights["w"][:] = 0
    subscriber.pull_into(weights)
    print(weights["w"].all(), flush=True)
    os._exit(0)
os.wait()
print(publisher.publish(weights).counter)
"""


def test_a_forked_child_reads_and_does_not_publish(where: str, memory: Path) -> None:
    """Not either where what is open is not closed before a process ends well."""
    refused, *others = said(FORKS, where)
    assert "not written by this process" in refused
    assert others == ["True", "2"]
    assert list(memory.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "told"),
    [
        *((p, "no place") for p in ("policy", "shm://", "shm://a b", "shm://../x")),
        *((p, "no place") for p in ("shm:///a\0b", Path("/a"), None)),
        ("shm://" + "x" * 300, "at most 255 bytes, and 3840"),
        ("shm:///a/" + "é" * 128, "at most 255 bytes, and 3840"),
        ("shm://" + 2000 * "/x", "at most 255 bytes, and 3840"),
        ("shm://rltrace-joined", "another name"),
        (f"shm://{shared_memory()}/sync-token", "another name"),
    ],
)
def test_nobody_connects_to_what_is_no_place(place: Any, told: str) -> None:
    with pytest.raises(RltraceError, match=told):
        Subscriber.connect(place, timeout_s=0)
    with pytest.raises(RltraceError, match="no place"):
        folder_of("tcp://host")
    assert folder_of("shm://rltrace-joined-1") == shared_memory() / "rltrace-joined-1"
    assert folder_of("shm:///mnt/ram/policy") == Path("/mnt/ram/policy")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"layout": WEIGHTS}, r"takes layout_of\(weights\), .* dict"),
        ({"run": "zz"}, "16 hexadecimal digits"),
        ({"run": 7}, "16 hexadecimal digits"),
        ({"slots": 2.5}, "slots takes a whole number, not 2.5"),
        ({"spare": None}, "spare takes a whole number, not None"),
        ({"threads": "2"}, "threads takes a whole number, not '2'"),
    ],
)
def test_a_bad_argument_leaves_nothing(
    where: str, memory: Path, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(RltraceError, match=told):
        Publisher.open(**{"layout": LAYOUT, "where": where, **given})
    assert list(memory.iterdir()) == []


def test_weights_that_no_machine_can_hold_are_told_at_open(where: str, memory: Path) -> None:
    huge = layout_of({"w": torch.empty(10**15, device="meta")})
    with pytest.raises(RltraceError, match=r"8,00\d,\d{3},\d{3}\.\d MB more are needed"):
        Publisher.open(huge, where)
    assert list(memory.iterdir()) == []


def test_too_little_memory_is_told_at_open_or_leaves_versions_out(small_disk: Path) -> None:  # noqa: F811
    where = f"shm://{small_disk}/policy"
    large = layout_of({"w": np.zeros(400_000, dtype=np.uint8)})
    with pytest.raises(RltraceError, match=r"0\.8 MB more are needed and 0\.7 MB are free"):
        Publisher.open(large, where)
    assert list(small_disk.iterdir()) == []
    # Without room for the spare slot versions are left out, until there is room.
    weights, filler = {"w": np.ones(160 << 10, dtype=np.uint8)}, small_disk / "filler"
    with (
        Publisher.open(layout_of(weights), where, patience_s=0.01) as publisher,
        Subscriber.connect(where) as one,
        Subscriber.connect(where) as other,
    ):
        filler.write_bytes(bytes(240 << 10))
        publisher.publish(weights)
        with one.lease():
            publisher.publish(weights)
            with other.lease():
                assert publisher.publish(weights) is None
                filler.unlink()
                assert publisher.publish(weights) is not None
        assert publisher.skipped == 1
    assert list(small_disk.iterdir()) == []


def test_a_limit_on_file_sizes_is_told_and_leaves_nothing(where: str, memory: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(RltraceError, match="File too large"):
            Publisher.open(layout_of({"w": np.zeros(2 << 20, dtype=np.uint8)}), where)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(memory.iterdir()) == []
