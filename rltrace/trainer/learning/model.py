"""The policy: a small decoder-only transformer with a KV cache.

Position `i` of a sequence lives in slot `i` of the cache, so rows of different lengths share a
batch without padding on the left.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a policy. `context` is the longest sequence, prompt and response together."""

    vocabulary: int
    context: int
    width: int = 64
    layers: int = 2
    heads: int = 4


class KVCache:
    """Keys and values of every position so far, per layer `[rows, heads, context, head width]`."""

    def __init__(self, shape: ModelShape, rows: int) -> None:
        size = (rows, shape.heads, shape.context, shape.width // shape.heads)
        self.keys = [torch.zeros(size) for _ in range(shape.layers)]
        self.values = [torch.zeros(size) for _ in range(shape.layers)]

    def join(self, other: KVCache) -> None:
        self.keys = [torch.cat(pair) for pair in zip(self.keys, other.keys, strict=True)]
        self.values = [torch.cat(pair) for pair in zip(self.values, other.values, strict=True)]

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but the given ones: finished sequences stop costing decode time."""
        self.keys = [k[rows] for k in self.keys]
        self.values = [v[rows] for v in self.values]


class Attention(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, length, width = x.shape
        qkv = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return q, k, v

    def _join(self, x: Tensor) -> Tensor:
        rows, heads, length, width = x.shape
        joined: Tensor = self.out(x.transpose(1, 2).reshape(rows, length, heads * width))
        return joined

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`x` is `[rows, length, width]`. Returns the output, and keys and values for a cache."""
        q, k, v = self._split(x)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self._join(y), k, v

    def decode(self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:
        """One new token a row, `x` `[rows, 1, width]` at `position` `[rows]`; fills the cache."""
        q, k, v = self._split(x)
        row = torch.arange(len(x))
        keys[row, :, position] = k[:, :, 0]
        values[row, :, position] = v[:, :, 0]
        longest = int(position.max()) + 1
        seen = torch.arange(longest) <= position[:, None]
        y = functional.scaled_dot_product_attention(
            q, keys[:, :, :longest], values[:, :, :longest], attn_mask=seen[:, None, None]
        )
        return self._join(y)


class Block(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.mlp_norm = nn.LayerNorm(shape.width)
        wide = 4 * shape.width
        steps = (nn.Linear(shape.width, wide), nn.GELU(), nn.Linear(wide, shape.width))
        self.mlp = nn.Sequential(*steps)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, k, v = self.attention(self.attention_norm(x))
        x = x + y
        return x + self.mlp(self.mlp_norm(x)), k, v

    def decode(self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:
        x = x + self.attention.decode(self.attention_norm(x), keys, values, position)
        result: Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class Transformer(nn.Module):
    """A decoder-only language model; `forward` scores, `prefill` and `decode` generate."""

    def __init__(self, shape: ModelShape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self._initialise(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Same seed, same weights; a small head makes the first policy nearly uniform."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 2:  # the norms' scales stay at 1
                embedding = name in ("tokens.weight", "positions.weight")
                scale = 1.0 if embedding else parameter.shape[1] ** -0.5
                scale *= 0.1 if name == "head.weight" else 1.0
                parameter.normal_(0.0, scale, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[rows, length, vocabulary]` for `tokens` `[rows, length]`."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x, _, _ = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def prefill(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, KVCache]:
        """Reads prompts `[rows, longest]`, padded on the right: next-token logits, and a cache."""
        cache = KVCache(self.shape, len(tokens))
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer, block in enumerate(self.blocks):
            x, k, v = block(x)
            cache.keys[layer][:, :, : tokens.shape[1]] = k
            cache.values[layer][:, :, : tokens.shape[1]] = v
        return self.head(self.norm(x[torch.arange(len(tokens)), lengths - 1])), cache

    def decode(self, token: Tensor, position: Tensor, cache: KVCache) -> Tensor:
        """Feeds one `token` `[rows]` at `position` `[rows]`; returns the next tokens' logits."""
        x = (self.tokens(token) + self.positions(position))[:, None]
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x = block.decode(x, cache.keys[layer], cache.values[layer], position)
        logits: Tensor = self.head(self.norm(x[:, 0]))
        return logits


def next_token_log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities of `tokens[:, 1:]`, each given those before it: `[rows, length - 1]`."""
    scores = functional.log_softmax(logits[:, :-1].float(), dim=-1)
    return scores.gather(-1, tokens[:, 1:, None])[..., 0]
