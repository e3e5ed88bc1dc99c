"""A model's weights as one flat buffer of bytes, bit for bit, whatever their types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT_BYTES = 256
"""Every tensor starts at a multiple of this, so that any element type can be read in place."""


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies in the buffer; `dtype` is torch's name for it, such as "bfloat16"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


def layout_of(state: Mapping[str, Tensor]) -> tuple[Entry, ...]:
    """Lays the tensors out one after the other, in the order of the mapping."""
    entries: list[Entry] = []
    offset = 0
    for name, tensor in state.items():
        size = tensor.numel() * tensor.element_size()
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append(Entry(name, dtype, tuple(tensor.shape), offset, size))
        offset += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return tuple(entries)


def buffer_bytes(layout: tuple[Entry, ...]) -> int:
    """Length of the buffer that a layout needs."""
    return layout[-1].offset + layout[-1].bytes if layout else 0


def pack(state: Mapping[str, Tensor], layout: tuple[Entry, ...]) -> NDArray[np.uint8]:
    """Copies the tensors into a fresh buffer."""
    buffer = np.zeros(buffer_bytes(layout), dtype=np.uint8)
    for entry in layout:
        source = state[entry.name].detach().cpu().contiguous().reshape(-1)
        buffer[entry.offset : entry.offset + entry.bytes] = source.view(torch.uint8).numpy()
    return buffer


def unpack(
    buffer: NDArray[np.uint8], layout: tuple[Entry, ...], state: Mapping[str, Tensor]
) -> None:
    """Copies a buffer into tensors of the same layout. The buffer may be read-only.

    Errors: `ValueError` where layout or length differ; then no tensor was touched.
    """
    if layout_of(state) != layout:
        raise ValueError("the published weights have other names, shapes or types than this model")
    if len(buffer) != buffer_bytes(layout):
        raise ValueError(f"{len(buffer)} bytes of weights, but {buffer_bytes(layout)} are needed")
    for entry in layout:
        data = buffer[entry.offset : entry.offset + entry.bytes]
        target = state[entry.name].detach()
        if target.is_contiguous() and target.device.type == "cpu":
            target.reshape(-1).view(torch.uint8).numpy()[:] = data
        else:
            values = torch.from_numpy(data.copy()).view(target.dtype).reshape(entry.shape)
            target.copy_(values)
