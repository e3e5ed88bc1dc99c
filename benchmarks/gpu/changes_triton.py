"""The Triton kernel of changes.py."""

from __future__ import annotations

import triton
import triton.language as tl


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
