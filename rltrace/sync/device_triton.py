"""The Triton kernels of device_kernels.py, which says what they work out."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def digest_blocks(  # type: ignore[no-untyped-def]
    words,
    found,
    count,
    KEY: tl.constexpr,
    MIX: tl.constexpr,
    MIX_AGAIN: tl.constexpr,
    WORDS: tl.constexpr,
    STEP: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """One program for each block: the sum of its mixed words."""
    block = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, STEP)
    key = (lanes + 1).to(tl.uint64) * KEY
    total = tl.zeros([STEP], tl.uint64)
    for at in range(0, WORDS, STEP):
        place = block * WORDS + at + lanes
        live = place < count
        z = tl.load(words + place, mask=live, other=0).to(tl.uint64, bitcast=True) ^ key
        z = (z ^ (z >> 32)) * MIX
        z = (z ^ (z >> 32)) * MIX_AGAIN
        total += tl.where(live, z, 0)
        key += STRIDE
    tl.store(found + block, tl.sum(total, 0).to(tl.int64, bitcast=True))


@triton.jit  # type: ignore[untyped-decorator]
def compare_tiles(  # type: ignore[no-untyped-def]
    old,
    new,
    counts,
    firsts,
    index,
    value,
    total,
    count,
    room,
    TILE: tl.constexpr,
    ITEMS: tl.constexpr,
):
    """One program for each tile: it takes as much room as it has changes, and writes them there."""
    tile = tl.program_id(0).to(tl.int64)
    place = tile * TILE + tl.arange(0, TILE)
    live = place < count
    before = tl.load(old + place, mask=live, other=0)
    after = tl.load(new + place, mask=live, other=0)
    changed = (before != after).to(tl.int32)
    found = tl.sum(changed, 0)
    if found > 0:
        first = tl.atomic_add(total, found.to(tl.int64))
        tl.store(counts + tile, found)
        tl.store(firsts + tile, first)
        at = first + tl.cumsum(changed, 0) - 1
        kept = (changed > 0) & (at < room)
        tl.store(index + at, (place % ITEMS).to(tl.int32), mask=kept)
        tl.store(value + at, after, mask=kept)
