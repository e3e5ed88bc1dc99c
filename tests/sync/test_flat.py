"""Weights survive the flat buffer bit for bit."""

from __future__ import annotations

import itertools

import pytest
import torch

from rltrace.sync.flat import ALIGNMENT_BYTES, layout_of, pack, unpack


def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "float32": torch.randn(5, 7, generator=generator),
        "bfloat16": torch.randn(3, 3, generator=generator).bfloat16(),
        "scalar": torch.tensor(-0.0),
        "strange": torch.tensor([float("nan"), float("inf"), 1e-45]),
        "transposed": torch.randn(4, 6, generator=generator).T,
        "counts": torch.arange(3),
        "empty": torch.empty(0, 4),
    }


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def test_all_types_and_shapes_arrive_bit_for_bit_from_a_read_only_buffer() -> None:
    source = state()
    layout = layout_of(source)
    buffer = pack(source, layout)
    buffer.setflags(write=False)
    target = {name: torch.zeros_like(tensor) for name, tensor in source.items()}
    unpack(buffer, layout, target)
    for name, tensor in source.items():
        assert raw(target[name]) == raw(tensor), name


def test_tensors_start_aligned_and_do_not_overlap() -> None:
    layout = layout_of(state())
    assert all(entry.offset % ALIGNMENT_BYTES == 0 for entry in layout)
    for before, after in itertools.pairwise(layout):
        assert before.offset + before.bytes <= after.offset


@pytest.mark.parametrize(
    ("other", "missing"),
    [
        ({"w": torch.zeros(4)}, 0),
        ({"v": torch.zeros(3)}, 0),
        ({"w": torch.zeros(3).double()}, 0),
        ({"w": torch.zeros(3)}, 1),
    ],
)
def test_a_model_that_differs_and_a_buffer_that_was_cut_are_refused_untouched(
    other: dict[str, torch.Tensor], missing: int
) -> None:
    source = {"w": torch.ones(3)}
    layout = layout_of(source)
    with pytest.raises(ValueError, match="11 bytes .* 12" if missing else "other names, shapes"):
        unpack(pack(source, layout)[: 12 - missing], layout, other)
    assert not any(tensor.any() for tensor in other.values())
