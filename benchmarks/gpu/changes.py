"""How many elements of two bytes differ between two versions in device memory, by block: what a
delta would begin with there. By Triton, and by torch with the same answers. rltrace.sync finds
changes on the host; this shows what the device would take."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rltrace.testing.inside.sync import BLOCK_BYTES

WORDS = BLOCK_BYTES // 8
_STEP = 2048
_LOW_BITS, _ONES = 0x7FFF7FFF7FFF7FFF, 0x0001000100010001  # of four elements in a word


def changes_by_block(old: Tensor, new: Tensor) -> Tensor:
    """Of words of 8 bytes (int64, the same length), each version read once: int32, a block of
    512 KiB each."""
    return by_triton(old, new) if new.is_cuda else by_torch(old, new)


def by_torch(old: Tensor, new: Tensor) -> Tensor:
    """Plainly."""
    differs = old.view(torch.int16) != new.view(torch.int16)
    padded = torch.nn.functional.pad(differs, (0, -len(differs) % (4 * WORDS)))
    return padded.view(-(-len(new) // WORDS), 4 * WORDS).sum(1, dtype=torch.int32)


def by_triton(old: Tensor, new: Tensor) -> Tensor:
    """One program for each block."""
    from benchmarks.gpu.changes_triton import count_changes

    found = torch.zeros(-(-len(new) // WORDS), dtype=torch.int32, device=new.device)
    if len(new):
        launch: Any = count_changes[(len(found),)]
        launch(old, new, found, len(new), _LOW_BITS, _ONES, WORDS, _STEP, num_warps=8)
    return found
