"""Buckets on the wire: consecutive blocks of one version, each encoded.

    header   magic, kind, count; layout, version, base version; first block, offset, raw length,
             wire length; hash of the result (of its blocks' digests); hash of header and entries
    entries  for each block: encoding, length and xxh3-64 of its payload
    payloads one after the other

Header and entries are checked first, so that no damage can put bytes in the place of others.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from xxhash import xxh3_64_intdigest

from rltrace.sync.memory.block_digests import block_range, digest
from rltrace.sync.memory.encodings import Encoded
from rltrace.sync.transfer.version_store import HeldVersion
from rltrace.sync.transfer.wire import Connection, LinkError
from rltrace.sync.version import Manifest, Version

BUCKET_BLOCKS = 8  # at most: 4 MiB
_HEADER = struct.Struct("<4sBBH16sQQQQQIQIIQ")
_CHECK = struct.Struct("<Q")
_ENTRY = struct.Struct("<BIQ")
_MAGIC = b"RLTb"
_NOWHERE = (0,) * 5


class FrameKind(IntEnum):
    """What a frame is. Codes are on the wire."""

    BLOCKS = 1
    ALIVE = 2  # nothing to send yet
    END = 3  # all that was asked for was sent
    GONE = 4  # the version is no longer held here


@dataclass(frozen=True)
class BlockEntry:
    encoding: int
    length: int
    hash: int  # of the payload


@dataclass(frozen=True)
class Frame:
    """A frame as it was announced: the payloads follow on the connection."""

    kind: int
    first: int
    entries: tuple[BlockEntry, ...]
    has_base: bool


def pack(
    held: HeldVersion, base: Version | None, first: int, encoded: list[Encoded]
) -> list[bytes | memoryview]:
    """The parts of a bucket from block `first` on; dense blocks are sent from where they lie."""
    manifest, digests = held.manifest, held.digests
    start = block_range(first, manifest.bytes)[0]
    end = block_range(first + len(encoded) - 1, manifest.bytes)[1]
    entries, payloads = [], list[bytes | memoryview]()
    for block, each in enumerate(encoded, first):
        if each.is_dense:
            begins, ends = block_range(block, manifest.bytes)
            payloads.append(held.data[begins:ends].data)
            entries.append(_ENTRY.pack(each.encoding, ends - begins, int(digests[block])))
        else:
            payloads.append(each.payload)
            entries.append(_ENTRY.pack(each.encoding, len(each.payload), digest(each.payload)))
    table = b"".join(entries)
    wire_bytes = len(table) + sum(len(payload) for payload in payloads)
    result = digest(digests[first : first + len(encoded)].tobytes())
    place = (first, start, end - start, wire_bytes, result)
    header = _header(FrameKind.BLOCKS, manifest, base, len(encoded), place)
    return [header + _CHECK.pack(xxh3_64_intdigest(header + table)) + table, *payloads]


def pack_sign(kind: FrameKind, manifest: Manifest) -> bytes:
    header = _header(kind, manifest, None, 0, _NOWHERE)
    return header + _CHECK.pack(xxh3_64_intdigest(header))


def receive(connection: Connection, held: HeldVersion, base: Version | None) -> Frame:
    """The next frame. Errors: `LinkError` for a damaged or another one than was asked for."""
    manifest, digests = held.manifest, held.digests
    header = connection.read(_HEADER.size)
    check = _CHECK.unpack(connection.read(_CHECK.size))[0]
    magic, kind, _, count = struct.unpack_from("<4sBBH", header)
    if magic != _MAGIC or count > BUCKET_BLOCKS:
        raise LinkError("what arrived is no bucket of weights")
    table = connection.read(count * _ENTRY.size)
    if xxh3_64_intdigest(header + table) != check:
        raise LinkError("the header of a bucket arrived damaged")
    entries = tuple(BlockEntry(*_ENTRY.unpack_from(table, i * _ENTRY.size)) for i in range(count))
    fields = _HEADER.unpack(header)
    first, _, _, wire_bytes, result = fields[10:]
    has_base = fields[8:10] != (0, 0)
    frame = Frame(kind, first, entries, has_base)
    said = base if has_base else None
    if kind != FrameKind.BLOCKS:
        if header != _header(kind, manifest, said, count, _NOWHERE):
            raise LinkError("an answer to another question")
        return frame
    end = first + count
    if not count or end > len(digests):
        raise LinkError("a bucket beyond the end of the weights")
    begins = block_range(first, manifest.bytes)[0]
    length = block_range(end - 1, manifest.bytes)[1] - begins
    place = (first, begins, length, wire_bytes, result)
    if header != _header(kind, manifest, said, count, place):
        raise LinkError("a bucket of other weights than were asked for")
    if result != digest(digests[first:end].tobytes()):
        raise LinkError("a bucket of the same version with other weights")
    longest = max(e.length for e in entries)
    if longest > length or wire_bytes != len(table) + sum(e.length for e in entries):
        raise LinkError("the lengths in a bucket do not agree")
    return frame


def _header(
    kind: int, manifest: Manifest, base: Version | None, count: int, place: tuple[int, ...]
) -> bytes:
    """`place`: first block, offset, raw length, wire length and hash of the result."""
    version = manifest.version
    return _HEADER.pack(
        *(_MAGIC, kind, 0, count, bytes.fromhex(manifest.layout_id)),
        *(int(version.run, 16), version.epoch, version.counter),
        *((base.epoch, base.counter) if base else (0, 0)),  # of the same run; epochs begin at 1
        *place,
    )
