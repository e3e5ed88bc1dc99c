"""How one block travels: unchanged, as its changes, as an xor, or whole, whichever is smallest.

The result is held against its digest: damage, or a wrong base, is an error, and asked for whole.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from rltrace.sync.memory.changed_elements import (
    WIDTHS,
    BadBlock,
    Bytes,
    ChangeFinder,
    ElementChanges,
    apply,
)


class Encoding(IntEnum):
    """What the payload of a block is. Codes are on the wire: they keep their meaning."""

    DENSE = 0  # the new bytes
    SAME = 1  # nothing
    GAPS = 2  # the changed elements, places as gaps
    BITS = 3  # the same, places as one bit an element
    XOR = 4  # old xor new, byte plane by byte plane, compressed


@dataclass(frozen=True)
class Encoded:
    """How one block travels. The payload of a dense one is not kept: it is the block itself."""

    encoding: Encoding
    payload: bytes

    @property
    def is_dense(self) -> bool:
        return self.encoding == Encoding.DENSE


DENSE = Encoded(Encoding.DENSE, b"")
_HEADER = struct.Struct("<BBIIII")
# width, which of places (1) and steps (2) are compressed, raw places, places, raw steps, steps; the
# wide values follow, as they are
_PLACES, _STEPS = 1, 2
_LEAST = 64  # fewer bytes are not worth a compressor's call
_WORTH = 0.9  # of the bytes: what an xor must come to, as it is slow to apply
_PIECES, _PIECE_BYTES = 8, 4 << 10  # of a sample


class Encoder:
    """Encodes blocks; one Encoder serves one thread."""

    def __init__(self) -> None:
        import zstandard

        self._finder = ChangeFinder()
        self._zstd = zstandard.ZstdCompressor(
            level=1, write_content_size=False, write_checksum=False
        )
        # Gaps and steps repeat by chance only: what counts is how often each symbol comes.
        self._symbols = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters(
                strategy=zstandard.STRATEGY_FAST,
                window_log=17,
                hash_log=10,
                chain_log=6,
                search_log=1,
                min_match=7,
                write_content_size=False,
            )
        )

    def encode(self, old: Bytes, new: Bytes, width: int) -> Encoded:
        """How `new` travels to where `old` is, in at most its own bytes. `width` is the bytes of an
        element; a wrong one costs bytes, never bits."""
        if len(old) != len(new):
            return DENSE
        if len(new) % width:
            width = 1
        elements = len(new) // width
        # A gap takes a byte for each change, bits an eighth for each element.
        changes = self._finder.find(old, new, width, most=elements // 8, as_bits=False)
        encoding = Encoding.GAPS
        if changes is None:
            # By a sample: whether nothing is gained from knowing `old`.
            before, after = _sample(old), _sample(new)
            found = self._finder.find(before, after, width, most=len(after), as_bits=True)
            assert found is not None
            if found.bytes >= len(after) and not self._pays(before, after, width):
                return DENSE
            encoding = Encoding.BITS
            changes = self._finder.find(old, new, width, most=elements, as_bits=True)
        assert changes is not None  # there cannot be more than all
        if not len(changes.steps):
            return Encoded(Encoding.SAME, b"")
        best, size = DENSE, len(new)
        if changes.bytes < size:
            packed = self._packed(changes, width)
            if len(packed) < size:
                best, size = Encoded(encoding, packed), len(packed)
        if size > len(new) // 2 and self._pays(_sample(old), _sample(new), width):
            planes = bytes([width]) + self._zstd.compress(_split(old ^ new, width).data)
            if len(planes) < min(size, _WORTH * len(new)):
                return Encoded(Encoding.XOR, planes)
        return best

    def _packed(self, changes: ElementChanges, width: int) -> bytes:
        places, steps = self._shorter(changes.places), self._shorter(changes.steps)
        flags = _PLACES * (len(places) < len(changes.places))
        flags |= _STEPS * (len(steps) < len(changes.steps))
        lengths = (len(changes.places), len(places), len(changes.steps), len(steps))
        return b"".join((_HEADER.pack(width, flags, *lengths), places, steps, changes.wide.data))

    def _shorter(self, data: Bytes) -> bytes | memoryview:
        if len(data) < _LEAST:
            return data.data
        compressed = self._symbols.compress(data.data)
        return compressed if len(compressed) < len(data) else data.data

    def _pays(self, old: Bytes, new: Bytes, width: int) -> bool:
        return len(self._zstd.compress(_split(old ^ new, width).data)) <= _WORTH * len(new)


def _sample(data: Bytes) -> Bytes:
    """Pieces from all over a block, whole elements; a short block itself."""
    if len(data) < 2 * _PIECES * _PIECE_BYTES:
        return data
    stride = len(data) // _PIECES // _PIECE_BYTES * _PIECE_BYTES
    return np.concatenate([data[i * stride :][:_PIECE_BYTES] for i in range(_PIECES)])


def _check_width(width: int, total_bytes: int) -> None:
    if width not in WIDTHS or total_bytes % width:
        raise BadBlock(f"elements of {width} bytes")


def _split(data: Bytes, width: int) -> Bytes:
    return np.ascontiguousarray(data.reshape(-1, width).T).reshape(-1)


class Decoder:
    """Applies payloads; one Decoder serves one thread."""

    def __init__(self) -> None:
        import zstandard

        self._zstd = zstandard.ZstdDecompressor()
        self._failed = zstandard.ZstdError
        self._stated_size = zstandard.frame_content_size

    def decode(self, encoding: int, payload: Bytes, old: Bytes | None, out: Bytes) -> None:
        """Makes `out` what the block became. `old` may be None for a dense block. The caller
        verifies the digest. Errors: `BadBlock`; then `out` holds nothing of use."""
        if encoding == Encoding.DENSE:
            if len(payload) != len(out):
                raise BadBlock(f"{len(payload)} bytes for a block of {len(out)}")
            out[:] = payload
            return
        if old is None or len(old) != len(out):
            raise BadBlock("there is nothing that this block could be a change of")
        if encoding == Encoding.SAME:
            out[:] = old
        elif encoding == Encoding.XOR:
            width = int(payload[0]) if len(payload) else 0
            _check_width(width, len(out))
            planes = self._raw(payload[1:], len(out), is_compressed=1)
            mixed = np.ascontiguousarray(planes.reshape(width, -1).T).reshape(-1)
            np.bitwise_xor(old, mixed, out=out)
        elif encoding in (Encoding.GAPS, Encoding.BITS):
            changes, width = self._unpacked(payload, len(out))
            out[:] = old
            apply(out, changes, width, as_bits=encoding == Encoding.BITS)
        else:
            raise BadBlock(f"unknown encoding {encoding}")

    def _unpacked(self, payload: Bytes, block_bytes: int) -> tuple[ElementChanges, int]:
        if len(payload) < _HEADER.size:
            raise BadBlock("cut short")
        width, flags, raw_places, places, raw_steps, steps = _HEADER.unpack_from(payload.data)
        body = payload[_HEADER.size :]
        # Gaps take a byte more for each 255 elements than there are elements.
        if max(raw_places, raw_steps) > 2 * block_bytes or places + steps > len(body):
            raise BadBlock("lengths that no block can have")
        changes = ElementChanges(
            self._raw(body[:places], raw_places, flags & _PLACES),
            self._raw(body[places : places + steps], raw_steps, flags & _STEPS),
            body[places + steps :],
        )
        _check_width(width, len(changes.wide))
        return changes, width

    def _raw(self, data: Bytes, length: int, is_compressed: int) -> Bytes:
        try:
            if is_compressed:
                if self._stated_size(data.data) != -1:  # it would be allocated, whatever it is
                    raise BadBlock("a length is stated where none is written")
                raw = self._zstd.decompress(data.data, max_output_size=length)
                data = np.frombuffer(raw, np.uint8)
        except self._failed as error:
            raise BadBlock(str(error)) from None
        if len(data) != length:
            raise BadBlock(f"{len(data)} bytes where {length} were to be")
        return data
