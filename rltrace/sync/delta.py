"""What changed between two versions, block by block, and how a receiver becomes the newer one.

A delta is never applied in place: it reads the base that the receiver holds and writes another
buffer, each block of which is held against the digest of what it must have become. So a block that
fails can be asked for again as it is, dense, and nothing has to be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rltrace.sync.blocks import BLOCK_BYTES, Digests, block_count, block_range, digest
from rltrace.sync.changes import Bytes
from rltrace.sync.dtypes import ITEM_BYTES
from rltrace.sync.encodings import BadBlock, Decoder, Encoder, Encoding
from rltrace.sync.layout import Layout


class BadBlocks(ValueError):
    """Blocks that did not become what they were to become; all others did."""

    def __init__(self, blocks: Sequence[int]) -> None:
        self.blocks = tuple(blocks)
        super().__init__(f"{len(self.blocks)} blocks failed, the first one is {self.blocks[0]}")


@dataclass(frozen=True)
class Encoded:
    """How one block travels. The payload of a dense one is not kept: it is the block itself."""

    encoding: Encoding
    payload: bytes

    @property
    def is_dense(self) -> bool:
        """Whether the block travels as it is."""
        return self.encoding == Encoding.DENSE


DENSE = Encoded(Encoding.DENSE, b"")


@dataclass(frozen=True)
class Delta:
    """A whole version as changes of another one of the same length."""

    blocks: tuple[Encoded, ...]
    bytes: int  # of the version

    @property
    def wire_bytes(self) -> int:
        """Bytes of all payloads, the dense ones included."""
        return sum(wire_bytes(e, block, self.bytes) for block, e in enumerate(self.blocks))


def wire_bytes(encoded: Encoded, block: int, total_bytes: int) -> int:
    """Bytes of the payload of one block of a version of `total_bytes`."""
    if not encoded.is_dense:
        return len(encoded.payload)
    start, end = block_range(block, total_bytes)
    return end - start


def widths_of(layout: Layout) -> list[int]:
    """The element width of each block, in bytes: that of most of its bytes."""
    shares = np.zeros((block_count(layout.bytes), 9), np.int64)
    for entry in layout.entries:
        width = ITEM_BYTES[entry.dtype]
        end = entry.offset + entry.bytes
        for block in range(entry.offset // BLOCK_BYTES, block_count(end)):
            start, stop = block_range(block, end)
            shares[block, width] += stop - max(start, entry.offset)
    return [int(width) for width in shares.argmax(axis=1)]


class BlockEncoder:
    """Encodes blocks of whole versions; one serves one thread."""

    def __init__(self) -> None:
        self._encoder = Encoder(BLOCK_BYTES)

    def encode(self, old: Bytes, new: Bytes, block: int, width: int) -> Encoded:
        """How a block of `new` travels to where `old` is held whole."""
        start, end = block_range(block, len(new))
        encoding, payload = self._encoder.encode(old[start:end], new[start:end], width)
        return DENSE if encoding == Encoding.DENSE else Encoded(encoding, bytes(payload))


def encode(old: Bytes, new: Bytes, widths: Sequence[int]) -> Delta:
    """The changes from `old` to `new`, which are equally long; `widths` as from `widths_of`."""
    encoder = BlockEncoder()
    return Delta(
        tuple(encoder.encode(old, new, block, width) for block, width in enumerate(widths)),
        len(new),
    )


def apply(delta: Delta, old: Bytes, out: Bytes, digests: Digests, dense: Bytes) -> None:
    """Makes `out` the newer version. `digests` is its block table, `dense` where the dense blocks
    are to be had. Errors: `BadBlocks`; the others of `out` are right."""
    decoder = Decoder()
    bad = []
    for block, encoded in enumerate(delta.blocks):
        start, end = block_range(block, len(out))
        payload = dense[start:end] if encoded.is_dense else np.frombuffer(encoded.payload, np.uint8)
        try:
            decoder.decode(encoded.encoding, payload, old[start:end], out[start:end])
        except BadBlock:
            bad.append(block)
        else:
            if digest(out[start:end]) != digests[block]:
                bad.append(block)
    if bad:
        raise BadBlocks(bad)
