"""Digests of blocks that are worked out on the device: by Triton where it is there, else by torch
with the same answers.

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
from typing import TYPE_CHECKING

from rltrace.sync.blocks import BLOCK_BYTES
from rltrace.trace.outside import from_outside

if TYPE_CHECKING:
    from torch import Tensor

KEY, MIX, MIX_AGAIN = 0x5851F42D4C957F2D, 0x2545F4914F6CDD1D, 0x369DEA0F31A53F85
WORDS = BLOCK_BYTES // 8

_log = logging.getLogger("rltrace.sync")

_LOW = 0xFFFFFFFF
_STEP = 2048
_STRIDE = _STEP * KEY % (1 << 64)
_BLOCKS_AT_ONCE = 64  # by torch: its temporaries take three times their bytes


def block_digests(data: Tensor, found: Tensor) -> None:
    """Digests of the blocks of `data` (uint8, a multiple of 8 bytes, contiguous, where words can
    lie) into `found` (int64, one for each), on the current stream; allocates nothing with Triton.
    """
    import torch

    words = data.view(torch.int64)
    if kernels_run_on(data):
        _digests_by_triton(words, found)
    else:
        _digests_by_torch(words, found)


def kernels_run_on(tensor: Tensor) -> bool:
    """Whether digests of what lies on its device are taken by Triton."""
    return tensor.is_cuda and _has_kernel(tensor.get_device())


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


def _mixed(words: Tensor, keys: Tensor) -> Tensor:
    mixed = words ^ keys
    for by in (MIX, MIX_AGAIN):
        mixed = (mixed ^ (mixed >> 32 & _LOW)) * by  # the mask makes the shift one of zeros
    return mixed


@cache
def _has_kernel(index: int) -> bool:
    """Whether the kernel can be compiled for a device (which takes Triton, and a C compiler for it)
    and gives there what torch does. Otherwise it is said once, and torch's way is taken."""
    import torch

    device = "cpu" if index < 0 else f"cuda:{index}"
    words = torch.arange(2 * WORDS + 1110, device=device) * KEY
    try:
        answers = [torch.zeros(3, dtype=torch.int64, device=device) for _ in range(2)]
        for way, digests in zip((_digests_by_triton, _digests_by_torch), answers, strict=True):
            way(words, digests)
        well, why = torch.equal(*answers), "its answers are not those of torch"
    except Exception as error:  # of any kind: it is another project's
        if from_outside(error):
            raise
        said = str(error).strip().partition("\n")[0]
        well, why = False, f"{type(error).__name__}: {said:.200}"
    if not well:
        _log.warning("Triton's kernel is not used on %s: %s", device, why)
    return well
