"""The Triton kernel of `device_memory`, which says what it works out."""

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
