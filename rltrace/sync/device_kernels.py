"""What is worked out on the device, by Triton where it is there, else by torch with the same
answers: digests of blocks, and what has changed between two versions.

A version that lies in device memory is not read by the host, so its blocks have digests of another
kind than xxh3. Block digest, with all arithmetic modulo 2**64: word i (8 bytes, little-endian, the
last one filled up with zeros) of a block is mixed with its place, and the sum over the block is its
digest:

    z = word ^ (i + 1) * KEY;  z = (z ^ z >> 32) * MIX;  z = (z ^ z >> 32) * MIX_AGAIN

Each step can be undone, so a block in which one word differs always has another digest; words in
each other's places differ by their keys; and a sum takes any order, so that no thread waits for
another. It is for damage and torn copies, not against somebody who looks for two equal ones. The
constants are odd: the multipliers of Knuth's MMIX generator, of xorshift64* (Vigna) and one of
L'Ecuyer's table for 2**64.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from rltrace.sync.blocks import BLOCK_BYTES
from rltrace.trace.outside import from_outside

if TYPE_CHECKING:
    from torch import Tensor

KEY, MIX, MIX_AGAIN = 0x5851F42D4C957F2D, 0x2545F4914F6CDD1D, 0x369DEA0F31A53F85
WORDS = BLOCK_BYTES // 8
ITEMS = BLOCK_BYTES // 2
TILE_ITEMS = 4096
"""Elements of two bytes that are compared, and whose changes are kept, together."""

_log = logging.getLogger("rltrace.sync")

_LOW = 0xFFFFFFFF
_STEP = 2048
_STRIDE = _STEP * KEY % (1 << 64)
_BLOCKS_AT_ONCE = 64  # by torch: its temporaries take three times their bytes


@dataclass(frozen=True)
class Differences:
    """Elements of two bytes that differ. Those of a tile lie together and in order, `first[tile]`
    is where; tiles lie in any order. `count` is by tile, `total` over all: where it is more than
    there was room for, `index` and `value` lack what is beyond."""

    count: Tensor
    first: Tensor
    index: Tensor  # within the block of 512 KiB, int32
    value: Tensor  # the new bits, int16
    total: Tensor

    def by_block(self) -> Tensor:
        """How many have changed in each block of 512 KiB: int64."""
        import torch

        each = ITEMS // TILE_ITEMS
        padded = torch.nn.functional.pad(self.count.long(), (0, -len(self.count) % each))
        return padded.view(-1, each).sum(1)


def block_digests(data: Tensor, found: Tensor) -> None:
    """Digests of the blocks of `data` (uint8, a multiple of 8 bytes, contiguous, where words can
    lie) into `found` (int64, one for each), on the current stream; allocates nothing with Triton.
    """
    import torch

    words = data.view(torch.int64)
    if _has_kernel(_digests_by_triton, _digests_by_torch, data):
        _digests_by_triton(words, found)
    else:
        _digests_by_torch(words, found)


def find_changes(old: Tensor, new: Tensor, room: int) -> Differences:
    """What differs between two versions of elements of two bytes (int16, the same length), up to
    `room` of them. Both are read once."""
    if _has_kernel(_changes_by_triton, _changes_by_torch, new):
        return _changes_by_triton(old, new, room)
    return _changes_by_torch(old, new, room)


def kernels_run_on(tensor: Tensor) -> bool:
    """Whether digests of what lies on its device are taken by Triton."""
    return _has_kernel(_digests_by_triton, _digests_by_torch, tensor)


def _digests_by_triton(words: Tensor, found: Tensor) -> None:
    from rltrace.sync.device_triton import digest_blocks

    if len(words):
        digest_blocks[(len(found),)](
            *(words, found, len(words), KEY, MIX, MIX_AGAIN, WORDS, _STEP, _STRIDE), num_warps=8
        )


def _digests_by_torch(words: Tensor, found: Tensor) -> None:
    import torch

    keys = torch.arange(1, WORDS + 1, dtype=torch.int64, device=words.device) * KEY
    whole = len(words) // WORDS
    for first in range(0, whole, _BLOCKS_AT_ONCE):
        last = min(first + _BLOCKS_AT_ONCE, whole)
        part = words[first * WORDS : last * WORDS].view(-1, WORDS)
        found[first:last] = _mixed(part, keys).sum(1)
    rest = words[whole * WORDS :]
    if len(rest):
        found[whole] = _mixed(rest, keys[: len(rest)]).sum()


def _changes_by_triton(old: Tensor, new: Tensor, room: int) -> Differences:
    import torch

    from rltrace.sync.device_triton import compare_tiles

    tiles, device = -(-len(new) // TILE_ITEMS), new.device
    count = torch.zeros(tiles, dtype=torch.int32, device=device)
    first, total = (torch.zeros(n, dtype=torch.int64, device=device) for n in (tiles, 1))
    index = torch.empty(room, dtype=torch.int32, device=device)
    value = torch.empty(room, dtype=torch.int16, device=device)
    if tiles:
        compare_tiles[(tiles,)](
            *(old, new, count, first, index, value, total),
            *(len(new), room, TILE_ITEMS, ITEMS),
            num_warps=4,
        )
    return Differences(count, first, index, value, total)


def _changes_by_torch(old: Tensor, new: Tensor, room: int) -> Differences:
    import torch

    where = (old != new).nonzero().view(-1)
    count = torch.bincount(where // TILE_ITEMS, minlength=-(-len(new) // TILE_ITEMS)).int()
    first = count.long().cumsum(0) - count
    index, total = (where % ITEMS).int(), torch.tensor([len(where)], device=new.device)
    return Differences(count, first, index[:room], new[where][:room], total)


def _mixed(words: Tensor, keys: Tensor) -> Tensor:
    mixed = words ^ keys
    for by in (MIX, MIX_AGAIN):
        mixed = (mixed ^ (mixed >> 32 & _LOW)) * by  # the mask makes the shift one of zeros
    return mixed


def _has_kernel(kernel: Any, reference: Any, tensor: Tensor) -> bool:
    return tensor.is_cuda and _agree(kernel, reference, tensor.get_device())


@cache
def _agree(kernel: Any, reference: Any, index: int) -> bool:
    """Whether a kernel can be compiled for a device (which takes Triton, and a C compiler for it)
    and gives there what torch does. Otherwise it is said once, and torch's way is taken."""
    import torch

    device = "cpu" if index < 0 else f"cuda:{index}"
    drawn = (torch.arange(2 * ITEMS + 4444, device=device) * 311).short()
    try:
        if kernel is _digests_by_triton:
            answers = [torch.zeros(3, dtype=torch.int64, device=device) for _ in range(2)]
            for way, digests in zip((kernel, reference), answers, strict=True):
                way(drawn.view(torch.int64), digests)
        else:
            after = drawn.clone()
            after[::97] += 1
            told = [way(drawn, after, len(drawn)) for way in (kernel, reference)]
            answers = [torch.cat([each.by_block(), each.count]) for each in told]
        well, why = torch.equal(*answers), "its answers are not those of torch"
    except Exception as error:  # of any kind: it is another project's
        if from_outside(error):
            raise
        well, why = (
            False,
            f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}",
        )
    if not well:
        _log.warning("Triton's kernels are not used on %s: %s", device, why)
    return well
