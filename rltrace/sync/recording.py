"""What a publication or a pull leaves in this process's trace."""

from __future__ import annotations

from time import monotonic_ns

from rltrace.hooks import recorder as recording
from rltrace.hooks.spans import codes_of
from rltrace.sync.memory.block_digests import block_count
from rltrace.sync.memory.policy_memory import is_on_device
from rltrace.sync.version import NO_ROOT, Manifest
from rltrace.trace.segment import Row

_CHECKSUM_BITS = 63  # that the trace keeps of a root digest, in a signed 64-bit column


def transport_of(where: str) -> str:
    """What carries weights to a place of this host, as the trace calls it."""
    return "cuda-ipc" if is_on_device(where) else "shared-memory"


def moved(
    role: str,
    manifest: Manifest,
    started_ns: int,
    stall_ns: int | None,
    transport: str = "shared-memory",
    **other: int,
) -> Row | None:
    """Notes a version published ("source"), passed on ("relay") or taken on ("sink"). `stall_ns`
    (None: not known yet): of the loop that asked. `other` columns replace a whole version's."""
    recorder = recording.active()
    if recorder is None:
        return None
    recorder.version = manifest.number
    if stall_ns is not None:
        other["stall_ns"] = stall_ns
    return recorder.append(
        "syncs",
        start_ns=started_ns,
        end_ns=monotonic_ns(),
        version=manifest.number,
        role=codes_of("SyncRole")[role],
        **columns_of(manifest, transport) | other,
    )


def columns_of(manifest: Manifest, transport: str = "shared-memory") -> dict[str, int]:
    """A row of `syncs` of a whole version, also for an adapter that writes it itself."""
    columns = {
        "bytes": manifest.bytes,
        "wire_bytes": manifest.bytes,
        "buckets": block_count(manifest.bytes),
        "transport": codes_of("Transport")[transport],
    }
    if manifest.root != NO_ROOT:
        columns["checksum"] = int(manifest.root, 16) & (1 << _CHECKSUM_BITS) - 1
    return columns
