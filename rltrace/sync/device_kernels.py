"""What is worked out on the device, by Triton where it is there, else by torch with the same
answers: digests of blocks, how much has changed between two versions, and copies of many tensors.

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
from functools import cache
from typing import TYPE_CHECKING, Any

from rltrace.sync.blocks import BLOCK_BYTES
from rltrace.trace.outside import from_outside

if TYPE_CHECKING:
    from torch import Tensor

KEY, MIX, MIX_AGAIN = 0x5851F42D4C957F2D, 0x2545F4914F6CDD1D, 0x369DEA0F31A53F85
WORDS = BLOCK_BYTES // 8

CHUNK_WORDS = 8192
"""Words of 8 bytes that one program copies."""

_log = logging.getLogger("rltrace.sync")

_LOW = 0xFFFFFFFF
_LOW_BITS, _ONES = 0x7FFF7FFF7FFF7FFF, 0x0001000100010001  # of four elements in a word
_STEP = 2048
_STRIDE = _STEP * KEY % (1 << 64)
_BLOCKS_AT_ONCE = 64  # by torch: its temporaries take three times their bytes


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


def changes_by_block(old: Tensor, new: Tensor) -> Tensor:
    """How many elements of two bytes differ in each block of 512 KiB of two versions (int64 words,
    the same length): int32. Both are read once."""
    if _has_kernel(_changes_by_triton, _changes_by_torch, new):
        return _changes_by_triton(old, new)
    return _changes_by_torch(old, new)


def copies_many(tensor: Tensor) -> bool:
    """Whether `copy_by_table` runs on a tensor's device."""
    return _has_kernel(_copied_by_table, _copied_by_torch, tensor)


def copy_by_table(table: Tensor) -> None:
    """Copies what the rows of a table say, (address, address to copy to, words of 8 bytes), on the
    current stream. Addresses are multiples of 16, words are even and at most `CHUNK_WORDS`."""
    from rltrace.sync.device_triton import copy_chunks

    if len(table):
        copy_chunks[(len(table),)](table, CHUNK_WORDS, _STEP, num_warps=8)


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


def _changes_by_triton(old: Tensor, new: Tensor) -> Tensor:
    import torch

    from rltrace.sync.device_triton import count_changes

    found = torch.zeros(-(-len(new) // WORDS), dtype=torch.int32, device=new.device)
    if len(new):
        count_changes[(len(found),)](
            *(old, new, found, len(new), _LOW_BITS, _ONES, WORDS, _STEP), num_warps=8
        )
    return found


def _changes_by_torch(old: Tensor, new: Tensor) -> Tensor:
    import torch

    differs = old.view(torch.int16) != new.view(torch.int16)
    padded = torch.nn.functional.pad(differs, (0, -len(differs) % (4 * WORDS)))
    return padded.view(-(-len(new) // WORDS), 4 * WORDS).sum(1, dtype=torch.int32)


def _copied_by_table(words: Tensor) -> Tensor:
    import torch

    to = torch.zeros_like(words)
    rows = [(0, CHUNK_WORDS), (CHUNK_WORDS, 2), (CHUNK_WORDS + 2, CHUNK_WORDS - 2)]
    table = [(words.data_ptr() + 8 * at, to.data_ptr() + 8 * at, size) for at, size in rows]
    copy_by_table(torch.tensor(table, dtype=torch.int64).to(words.device))
    return to[: 2 * CHUNK_WORDS]


def _copied_by_torch(words: Tensor) -> Tensor:
    return words[: 2 * CHUNK_WORDS]


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
    words = (torch.arange(2 * WORDS + 1111, device=device) * KEY)[: 2 * WORDS + 1110]
    try:
        if kernel is _digests_by_triton:
            answers = [torch.zeros(3, dtype=torch.int64, device=device) for _ in range(2)]
            for way, digests in zip((kernel, reference), answers, strict=True):
                way(words, digests)
        elif kernel is _changes_by_triton:
            after = words.clone()
            after[::97] += 1 << 16
            answers = [way(words, after) for way in (kernel, reference)]
        else:
            answers = [way(words) for way in (kernel, reference)]
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
