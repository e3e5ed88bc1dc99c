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
def count_changes(  # type: ignore[no-untyped-def]
    old,
    new,
    found,
    count,
    LOW: tl.constexpr,
    ONES: tl.constexpr,
    WORDS: tl.constexpr,
    STEP: tl.constexpr,
):
    """One program for each block: how many of the four halves of half a word differ, over all its
    words. The top bit of each is set where any of its bits is; then the four are added up."""
    block = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, STEP)
    total = tl.zeros([STEP], tl.int32)
    for at in range(0, WORDS, STEP):
        place = block * WORDS + at + lanes
        live = place < count
        x = tl.load(old + place, mask=live, other=0) ^ tl.load(new + place, mask=live, other=0)
        x = x.to(tl.uint64, bitcast=True)
        x = ((((x & LOW) + LOW) | x) >> 15) & ONES
        total += ((x * ONES) >> 48).to(tl.int32)
    tl.store(found + block, tl.sum(total, 0))


@triton.jit  # type: ignore[untyped-decorator]
def copy_chunks(table, CHUNK: tl.constexpr, STEP: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program for each row of the table, (source, place, words): up to CHUNK words of 8 bytes,
    from and to addresses that are multiples of 16."""
    row = table + tl.program_id(0).to(tl.int64) * 3
    source = tl.load(row).to(tl.pointer_type(tl.int64))
    to = tl.load(row + 1).to(tl.pointer_type(tl.int64))
    words = tl.multiple_of(tl.load(row + 2), 2)
    lanes = tl.arange(0, STEP)
    for at in range(0, CHUNK, STEP):
        live = at + lanes < words
        here = tl.multiple_of(source + at + lanes, 16)
        there = tl.multiple_of(to + at + lanes, 16)
        tl.store(there, tl.load(here, mask=live), mask=live)
