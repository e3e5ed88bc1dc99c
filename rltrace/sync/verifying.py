"""Checks a whole version before anything of it is used, once on a host."""

from __future__ import annotations

from rltrace.sync.arena import Arena, Lease
from rltrace.sync.blocks import BLOCK_BYTES, root_of
from rltrace.sync.copying import Workers, wrong_blocks
from rltrace.sync.leftovers import VERIFIER
from rltrace.sync.locks import Lock
from rltrace.sync.version import NO_ROOT
from rltrace.trace.errors import WRONG_USAGE, RltraceError

_NEXT = "nothing of it was applied: pull again once the next version is published"


class DamagedError(RltraceError):
    """A version is not what was published."""


def verify(arena: Arena, lease: Lease, workers: Workers) -> None:
    """Reads every block and compares its digest. The first process of the host that asks does it;
    others wait for it and need not do it again.

    Errors: `DamagedError` that names what is damaged; `RltraceError` for a version without digests.
    """
    if lease.manifest.root == NO_ROOT:
        said = f"version {lease.manifest.version} was published without digests"
        raise RltraceError(said, WRONG_USAGE)
    control = lease.control
    if control.is_verified(lease.slot):
        return
    lock = Lock.take(arena.folder / VERIFIER, wait=True)
    try:
        if control.is_verified(lease.slot):
            return
        if root_of(lease.digests) != lease.manifest.root:
            raise DamagedError(
                f"the digests of version {lease.manifest.version} are damaged; {_NEXT}"
            )
        wrong = wrong_blocks(lease.data, lease.digests, workers)
        if wrong:
            raise DamagedError(
                f"version {lease.manifest.version} is damaged in {len(wrong)} of"
                f" {len(lease.digests)} blocks, first in {_tensor_at(arena, wrong[0])};"
                f" {_NEXT}"
            )
        control.set_verified(lease.slot)
    finally:
        if lock is not None:
            lock.release()


def _tensor_at(arena: Arena, block: int) -> str:
    begins, ends = block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES
    named = (
        e.name for e in arena.layout.entries if e.offset < ends and e.offset + e.bytes > begins
    )
    return next(named, "nothing")
