"""Rows without padding, and back."""

from __future__ import annotations

import torch
from einops import rearrange

__all__ = ["index_first_axis", "pad_input", "rearrange", "unpad_input"]


def index_first_axis(rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The rows that are named."""
    return rows[indices]


def unpad_input(
    rows: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Tokens, their places, cumulative lengths, the longest, and the lengths."""
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    places = mask.flatten().nonzero().flatten()
    cumulative = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return rows.flatten(0, 1)[places], places, cumulative, int(lengths.max()), lengths


def pad_input(tokens: torch.Tensor, places: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """The reverse of `unpad_input`."""
    rows = tokens.new_zeros(batch * length, *tokens.shape[1:])
    rows[places] = tokens
    return rows.unflatten(0, (batch, length))
