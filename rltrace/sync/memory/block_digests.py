"""Digests of the data, block by block, and one over all of them.

512 KiB is a quarter to a half of a core's second-level cache: a block that was just copied is
hashed from there, at about a seventh of the cost of the copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

BLOCK_BYTES = 512 << 10
Digests = NDArray[np.uint64]  # xxh3-64 (seed 0) of each block of `BLOCK_BYTES`


def block_count(total_bytes: int) -> int:
    """Blocks of data of that length; the last one may be short."""
    return -(-total_bytes // BLOCK_BYTES)


def block_range(block: int, total_bytes: int) -> tuple[int, int]:
    start = block * BLOCK_BYTES
    return start, min(start + BLOCK_BYTES, total_bytes)


def digest(block: Any) -> int:
    """xxh3-64 of one block (anything that has a buffer): 0 <= digest < 2**64."""
    return xxhash.xxh3_64_intdigest(block)


def digest_at(data: NDArray[np.uint8], block: int) -> int:
    start, end = block_range(block, len(data))
    return digest(data.data[start:end])


def digests_of(data: NDArray[np.uint8]) -> Digests:
    blocks = range(block_count(len(data)))
    return np.array([digest_at(data, block) for block in blocks], dtype=np.uint64)


def root_of(digests: Digests) -> str:
    """The digest of a whole version: xxh3-128 of its block table as little-endian bytes."""
    return xxhash.xxh3_128_hexdigest(digests.astype("<u8").tobytes())
