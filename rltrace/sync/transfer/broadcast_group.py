"""Hosts that take each version on together, by broadcasts of torch.distributed.

Words go through the group's store, bytes through the collective: `gloo` between hosts, `nccl`
between devices.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.hooks.span_api import span
from rltrace.sync.memory.arena import Arena, Lease, ReplacedError, SlotWrite
from rltrace.sync.memory.block_digests import BLOCK_BYTES, Digests, block_count, digest_at
from rltrace.sync.memory.layout import Layout, TensorEntry
from rltrace.sync.memory.locks import Closing
from rltrace.sync.memory.policy_memory import check_in_memory
from rltrace.sync.memory.tensors import torch_view
from rltrace.sync.recording import moved
from rltrace.sync.transfer.version_follower import checked
from rltrace.sync.transfer.wire import Address, LinkError, is_loopback
from rltrace.sync.verifying import DamagedError
from rltrace.sync.version import NO_ROOT, Manifest, Version
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage, first_line

BUCKET_BYTES = 64 * BLOCK_BYTES  # of one broadcast; the next is under way while it is checked
BACKENDS = ("gloo", "nccl")
_SLOT_PATIENCE_S = 0.5
_POLL_S = 0.0005
_TAKES, _HAS = "takes", "has"


class Group(Closing):
    """One member, a process a host. All members call `move` in turn; an error that leaves bytes on
    their way ends the group: close it and join anew. Not for several threads at once."""

    _LEAST = 2  # members

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        where: str = "shm://policy",
        backend: str = "gloo",
        timeout_s: float = 60.0,
    ) -> None:
        """`store` is one of torch.distributed's that all members share, and nobody else. Waits for
        the others. See `join`."""
        if backend not in BACKENDS or not 0 <= rank < size or size < self._LEAST:
            said = f"rank {rank} of {size} by {backend}: it takes two or more, by gloo or nccl"
            raise WrongUsage(said)
        check_in_memory(where)
        self.where, self.rank, self.size = where, rank, size
        self.backend, self.timeout_s = backend, timeout_s
        self._talk = Talk(store, timeout_s)
        self._arena: Arena | None = None
        self._lost: str | None = None
        self._taken: SlotWrite | None = None
        try:
            self._group = group_of(backend, store, rank, size, timeout_s)
        except RuntimeError as error:
            said = f"not all of {size} members came within {timeout_s:g} s: {first_line(error)}"
            raise RltraceError(said, CANNOT_TELL) from error

    @staticmethod
    def join(
        address: str,
        rank: int,
        size: int,
        where: str = "shm://policy",
        backend: str = "gloo",
        timeout_s: float = 60.0,
    ) -> Group:
        """Meets the other members at `address` (`tcp://host:port/policy`), where rank 0 listens: on
        all its networks, unless that is an address of this host only, and without a token.
        `where` is the publisher's place on rank 0's host, and the place of slots that are made for
        the first version on the others'. A member that does not answer for `timeout_s` is lost.

        Errors: `RltraceError` where not all come in time.
        """
        at = Address.parse(address)
        store = store_at(at, rank, size, timeout_s)
        with gloo_near(at):
            return Group(store, rank, size, where, backend, timeout_s)

    def move(self) -> Version:
        """Brings the publisher's latest version to every host; returns it once it is the latest of
        this one. All members have to call it.

        Errors: `RltraceError` where nothing is published or a host cannot take it: no host has
        changed, and `move` can be tried again. `RltraceError`, too, where a member is lost or
        `abort` was called: this host keeps what it had, or has the whole version; the group has
        ended. `DamagedError` where blocks arrived damaged: they were not taken on here.
        """
        if self._lost is not None:
            raise RltraceError(f"this group has ended: {self._lost}", CANNOT_TELL)
        self._talk.round += 1
        try:
            return self._lead() if self.rank == 0 else self._follow()
        except LostError as error:
            self._lost = str(error)
            said = f"{self._lost}; {self.where} keeps what it had: join a group anew"
            raise RltraceError(said, CANNOT_TELL) from error

    def abort(self) -> None:
        """Has `move` end at once, with an error; from any thread."""
        self._talk.aborted.set()

    def close(self) -> None:
        self._lost = self._lost or "it was closed"
        self._group = None
        if self._taken is not None:  # nothing is on its way to it any more
            self._taken.abort()
        if self._arena is not None:
            self._arena.close()
        self._talk.close()

    def _lead(self) -> Version:
        try:
            lease, layout = self._latest()
        except RltraceError as error:
            self._talk.say("", {"error": str(error)})
            raise
        with lease:
            manifest, number = lease.manifest, lease.manifest.number
            table = base64.b64encode(lease.digests.astype("<u8").tobytes()).decode()
            about = {"manifest": manifest.to_json(), "layout": layout.text, "table": table}
            self._talk.say("", about)
            if self._all_can(manifest):
                size = manifest.bytes * (self.size - 1)
                with span("sync", "send", "transfer", version=number, bytes=size):
                    for _ in self._broadcast(lease.data):
                        pass
        return manifest.version

    def _latest(self) -> tuple[Lease, Layout]:
        try:
            self._arena = self._arena or Arena.attach(self.where)
            lease = self._arena.lease()
        except ReplacedError:
            assert self._arena is not None
            self._arena.close()
            self._arena = Arena.attach(self.where, self.timeout_s)
            lease = self._arena.lease()
        if lease is None:
            raise RltraceError(f"nothing is published yet at {self.where}", CANNOT_TELL)
        if lease.manifest.root == NO_ROOT:
            lease.release()
            raise WrongUsage(f"{self.where} is published without digests, so nobody could check it")
        return lease, self._arena.layout

    def _follow(self) -> Version:
        said = self._talk.hear("")
        if "error" in said:
            raise RltraceError(str(said["error"]), CANNOT_TELL)
        started_ns = monotonic_ns()
        try:
            manifest, layout, digests = checked(said, base64.b64decode(said["table"]), None)
        except LinkError as error:
            raise LostError(str(error)) from error
        try:
            slot = self._slot(layout)
        except RltraceError as error:
            self._talk.say(f"/{self.rank}", {"error": str(error)})
            self._all_can(manifest)
            raise
        try:
            latest = slot.arena.latest()
            has = latest is not None and latest >= manifest.version
            self._talk.say(f"/{self.rank}", {"says": _HAS if has else _TAKES})
            if not self._all_can(manifest):
                return manifest.version
            self._take(slot, manifest, digests, has)
        finally:
            if self._taken is None:
                slot.abort()
        if not has:
            buckets = -(-manifest.bytes // BUCKET_BYTES)
            moved("relay", manifest, started_ns, 0, self.backend, buckets=buckets)
        return manifest.version

    def _take(self, slot: SlotWrite, manifest: Manifest, digests: Digests, has: bool) -> None:
        wrong: list[int] = []
        self._taken = slot  # until the last byte is in, whatever happens
        number, size = manifest.number, manifest.bytes
        with span("sync", "receive", "transfer", version=number, bytes=size) as receiving:
            for blocks in self._broadcast(slot.data):
                wrong += [n for n in blocks if digest_at(slot.data, n) != digests.item(n)]
            receiving.set(items=len(wrong))
        self._taken = None
        if wrong:
            said = f"version {manifest.version} arrived damaged in {len(wrong)} blocks;"
            said += f" {self.where} keeps what it had: have all members move again"
            raise DamagedError(said)
        if not has:
            with span("sync", "flip", "visible", version=number):
                slot.digests[:] = digests
                slot.commit(manifest.step, manifest.version)

    def _slot(self, layout: Layout) -> SlotWrite:
        if self._arena is None or self._arena.layout.id != layout.id:
            if self._arena is not None:
                self._arena.close()
            self._arena = Arena.create(self.where, layout)
        slot = self._arena.write(_SLOT_PATIENCE_S)
        if slot is None:
            raise RltraceError(f"workers hold every slot of {self.where}", CANNOT_TELL)
        return slot

    def _all_can(self, manifest: Manifest) -> bool:
        """Whether to send bytes; all answer alike. Errors: `RltraceError` that names who cannot."""
        said = {rank: self._talk.hear(f"/{rank}") for rank in range(1, self.size)}
        failed = [f"rank {rank}: {told['error']}" for rank, told in said.items() if "error" in told]
        if failed:
            why = f"version {manifest.version} was taken on by no host: {'; '.join(failed)}"
            raise RltraceError(why, CANNOT_TELL)
        return any(told["says"] == _TAKES for told in said.values())

    def _broadcast(self, data: NDArray[np.uint8]) -> Iterator[range]:
        """Sends rank 0's bytes to all; yields a bucket's blocks while the next is under way."""
        deadline = time.monotonic() + self.timeout_s
        before: tuple[Any, range] | None = None
        for start in (*range(0, len(data), BUCKET_BYTES), None):
            under_way = None
            if start is not None:
                part = data[start : start + BUCKET_BYTES]
                first = start // BLOCK_BYTES
                under_way = self._begin(part), range(first, first + block_count(len(part)))
            if before is not None:
                self._finish(before[0], deadline)
                yield before[1]
                deadline = time.monotonic() + self.timeout_s
            before = under_way

    def _begin(self, part: NDArray[np.uint8]) -> tuple[Any, Any, Any]:
        import torch

        here = torch_view(part, TensorEntry("", "U8", (len(part),), 0))
        there = here
        if self.backend == "nccl":
            there = here.cuda() if self.rank == 0 else torch.empty_like(here, device="cuda")
        try:
            return self._group.broadcast(there, 0), here, there
        except RuntimeError as error:
            raise LostError(f"a member is lost: {first_line(error)}") from error

    def _finish(self, under_way: tuple[Any, Any, Any], deadline: float) -> None:
        work, here, there = under_way
        try:
            while not work.is_completed():
                self._talk.still(deadline, "a member")
            work.wait()
        except RuntimeError as error:
            raise LostError(f"a member is lost: {first_line(error)}") from error
        if there is not here and self.rank:
            here.copy_(there)


class LostError(Exception):
    """A member, or all of them."""


class Talk:
    def __init__(self, store: Any, timeout_s: float) -> None:
        self._store, self._timeout_s = store, timeout_s
        self.round = 0
        self.aborted = threading.Event()  # set, it ends every wait, from any thread

    def say(self, what: str, said: dict[str, Any]) -> None:
        """Tells the others; what was said two rounds ago has been heard. Errors: `LostError`."""
        try:
            self._store.set(f"{self.round}{what}", json.dumps(said))
            self._store.delete_key(f"{self.round - 2}{what}")
        except RuntimeError as error:
            raise LostError(f"rank 0 is lost: {first_line(error)}") from error

    def hear(self, what: str) -> dict[str, Any]:
        """What rank 0 ("") or another one ("/2") says in this round. Errors: `LostError`."""
        key, who = f"{self.round}{what}", f"rank {what[1:] or 0}"
        deadline = time.monotonic() + self._timeout_s
        try:
            while not self._store.check([key]):
                self.still(deadline, who)
            said: dict[str, Any] = json.loads(self._store.get(key))
        except RuntimeError as error:
            raise LostError(f"rank 0 is lost: {first_line(error)}") from error
        return said

    def still(self, deadline: float, who: str) -> None:
        """A short wait. Errors: `LostError` where there is no more to wait for."""
        if self.aborted.is_set():
            raise LostError("it was aborted")
        if time.monotonic() > deadline:
            raise LostError(f"{who} did not answer for {self._timeout_s:g} s")
        time.sleep(_POLL_S)

    def close(self) -> None:
        self._store = None


def store_at(address: Address, rank: int, size: int, timeout_s: float) -> Any:
    """The store of all members, in rank 0's process, without a token. Errors: `RltraceError`."""
    import torch
    import torch.distributed as dist

    options: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s), "wait_for_workers": False}
    try:
        if rank == 0 and is_loopback(address.host):  # torch's own would listen on all networks
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            server = socket.create_server((address.host, address.port), family=family)
            # Of its two servers the older waits for each client in turn, however slow.
            newer = torch.__version__ >= "2.8"  # from which on both take a listener
            options |= {"master_listen_fd": server.detach(), "use_libuv": newer}
        place = (address.host, address.port, size, rank == 0)
        return dist.TCPStore(*place, **options)  # type: ignore[attr-defined]
    except (RuntimeError, OSError) as error:
        why = first_line(error)
        raise RltraceError(f"no group meets at {address}: {why}", CANNOT_TELL) from error


@contextmanager
def gloo_near(address: Address) -> Iterator[None]:
    """New groups connect a host to itself where it is the address; gloo goes by host names."""
    name = "GLOO_SOCKET_IFNAME"
    ours = is_loopback(address.host) and name not in os.environ
    if ours:
        os.environ[name] = "lo"
    try:
        yield
    finally:
        if ours:
            os.environ.pop(name, None)


def group_of(backend: str, store: Any, rank: int, size: int, timeout_s: float) -> Any:
    """A process group beside any other. Errors: `RuntimeError` where not all come in time."""
    import torch.distributed as dist

    timeout = timedelta(seconds=timeout_s)
    if backend == "gloo":
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)
