"""Checks a version, and what says what it is, before it is used."""

from __future__ import annotations

from rltrace.sync.memory.arena import Arena, Lease
from rltrace.sync.memory.block_digests import BLOCK_BYTES, Digests, root_of
from rltrace.sync.version import NO_ROOT
from rltrace.trace.errors import RltraceError, WrongUsage

NEXT = "pull again once the next version is published"


class DamagedError(RltraceError):
    """A version is not what was published."""


def digests_to_check(arena: Arena, lease: Lease, verify: bool | None) -> Digests | None:
    """The checked block table, the header checked as well; None where nothing is checked: `verify`
    None checks what has digests. Errors: `DamagedError`; `RltraceError` without digests."""
    version = lease.manifest.version
    if verify is False or (verify is None and lease.manifest.root == NO_ROOT):
        return None
    if lease.manifest.root == NO_ROOT:
        said = f"version {version} was published without digests, so nobody can verify it"
        raise WrongUsage(said)
    digests = lease.digests
    if root_of(digests) != lease.manifest.root:
        raise DamagedError(f"the digests of version {version} are damaged; {NEXT}")
    if not arena.slots.stands(lease.file, arena.layout):
        raise DamagedError(f"the header of version {version}'s file is damaged; {NEXT}")
    return digests


def damaged(arena: Arena, lease: Lease, wrong: list[int]) -> DamagedError:
    begins, ends = wrong[0] * BLOCK_BYTES, (wrong[0] + 1) * BLOCK_BYTES
    entries = arena.layout.entries
    named = (e.name for e in entries if e.offset < ends and e.offset + e.bytes > begins)
    blocks = f"{len(wrong)} of {len(lease.digests)} blocks, first in {next(named, 'nothing')}"
    return DamagedError(f"version {lease.manifest.version} is damaged in {blocks}; {NEXT}")
