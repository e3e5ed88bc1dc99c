"""Tensors of all ranks, one after another."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed


def all_gather(tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Concatenates the ranks' tensors."""
    parts = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts)
