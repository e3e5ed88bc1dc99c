"""Weights of the shapes that models have, in any size, and a sum over all of their bits."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

Weights = dict[str, Tensor]

_GIB = 1 << 30
_DENSE = {"layers": 28, "hidden": 3584, "inter": 18944, "kv": 512, "vocab": 152064}
_EXPERT = {"hidden": 2048, "inter": 768}


def dense(gib: float, device: str) -> Weights:
    """About 340 bf16 tensors with the shapes of a 7B model (14.2 GiB), its widths scaled so that
    they come to `gib`."""
    scale = sqrt(gib / 14.19)
    wide = {name: _even(size * scale) for name, size in _DENSE.items()}
    hidden, inter, kv, vocab = (wide[name] for name in ("hidden", "inter", "kv", "vocab"))
    shapes: dict[str, tuple[int, ...]] = {"embed": (vocab, hidden)}
    for layer in range(_DENSE["layers"]):
        for name, shape in {
            "q": (hidden, hidden),
            "q_bias": (hidden,),
            "k": (kv, hidden),
            "k_bias": (kv,),
            "v": (kv, hidden),
            "v_bias": (kv,),
            "o": (hidden, hidden),
            "gate": (inter, hidden),
            "up": (inter, hidden),
            "down": (hidden, inter),
            "norm": (hidden,),
            "norm_after": (hidden,),
        }.items():
            shapes[f"layers.{layer}.{name}"] = shape
    shapes |= {"norm": (hidden,), "lm_head": (vocab, hidden)}
    return _made(shapes, device)


def experts(gib: float, device: str, layers: int = 48, each: int = 128) -> Weights:
    """18,432 bf16 tensors of one size, as the experts of a mixture have them, together `gib`."""
    count = layers * each * 3
    scale = sqrt(gib * _GIB / 2 / count / (_EXPERT["hidden"] * _EXPERT["inter"]))
    hidden, inter = (_even(size * scale) for size in _EXPERT.values())
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        for expert in range(each):
            for name in ("gate", "up", "down"):
                shape = (hidden, inter) if name == "down" else (inter, hidden)
                shapes[f"layers.{layer}.experts.{expert}.{name}"] = shape
    return _made(shapes, device)


def part_of(weights: Weights, gib: float) -> Weights:
    """The first of the tensors, as many as come to `gib`; the first one at least."""
    part, left = Weights(), gib * _GIB
    for name, tensor in weights.items():
        left -= tensor.nbytes
        if part and left < 0:
            break
        part[name] = tensor
    return part


def bytes_of(weights: Weights) -> int:
    return sum(tensor.nbytes for tensor in weights.values())


def redraw(weights: Weights, seed: int) -> None:
    """Other values, the same for the same seed on the same device."""
    device = next(iter(weights.values())).device
    generator = torch.Generator(device).manual_seed(seed)
    for tensor in weights.values():
        tensor.normal_(generator=generator)


def sum_of(weights: Weights) -> int:
    """Of all bits, in their places: two sides that have the same hold the same weights."""
    sums = []
    for tensor in weights.values():
        bits = tensor.view(torch.int16).reshape(-1)
        sums += [bits.sum(dtype=torch.int64), bits[::3].sum(dtype=torch.int64)]
    total = torch.stack(sums)
    places = torch.arange(1, len(sums) + 1, device=total.device)
    return int((total * places).sum())


def _made(shapes: dict[str, tuple[int, ...]], device: str) -> Weights:
    return {
        name: torch.zeros(shape, dtype=torch.bfloat16, device=device)
        for name, shape in shapes.items()
    }


def _even(size: float) -> int:
    return max(8, round(size / 8) * 8)
