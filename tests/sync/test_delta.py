"""A delta makes the newer version out of the older one, bit for bit, or names the bad blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from rltrace.sync.blocks import BLOCK_BYTES, digests_of
from rltrace.sync.changes import Bytes
from rltrace.sync.delta import BadBlocks, BlockEncoder, Delta, apply, encode, widths_of
from rltrace.sync.encodings import Encoding
from rltrace.sync.layout import layout_of

BYTES = 3 * BLOCK_BYTES + 1000


def version(seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, BYTES, np.uint8)


def later(old: Bytes) -> Bytes:
    """One block as it was, one with few changes, one all new, and the short last one changed."""
    new = old.copy()
    values = new[BLOCK_BYTES : 2 * BLOCK_BYTES].view(np.uint16)
    values[np.random.default_rng(1).random(len(values)) < 0.01] += 1
    new[2 * BLOCK_BYTES : 3 * BLOCK_BYTES] = version(2)[:BLOCK_BYTES]
    new[-2:] += 1
    return new


def test_each_block_travels_in_its_own_form_and_the_base_is_left_alone() -> None:
    old = version(0)
    new = later(old)
    delta = encode(old, new, [2] * 4)
    forms = "SAME", "GAPS", "DENSE", "GAPS"
    assert [e.encoding for e in delta.blocks] == [Encoding[form] for form in forms]
    assert BLOCK_BYTES < delta.wire_bytes < 1.02 * BLOCK_BYTES
    out = np.zeros(BYTES, np.uint8)
    for _ in range(2):  # again: nothing depends on what `out` held
        apply(delta, old, out, digests_of(new), dense=new)
        assert (out == new).all()
    assert (old == version(0)).all()


def test_damaged_blocks_and_those_of_another_base_are_named_and_the_others_are_right() -> None:
    old = version(0)
    new = later(old)
    delta = encode(old, new, [2] * 4)
    blocks = list(delta.blocks)
    damaged = bytearray(blocks[1].payload)
    damaged[len(damaged) // 2] ^= 4
    blocks[1] = replace(blocks[1], payload=bytes(damaged))
    blocks[3] = replace(blocks[3], payload=blocks[3].payload[:-1])
    bad, out = replace(delta, blocks=tuple(blocks)), np.zeros(BYTES, np.uint8)
    for given, base, found in (bad, old, (1, 3)), (delta, version(9), (0, 1, 3)):
        with pytest.raises(BadBlocks) as caught:
            apply(given, base, out, digests_of(new), dense=new)
        assert caught.value.blocks == found
        for block in {0, 1, 2, 3} - set(found):
            part = slice(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)
            assert (out[part] == new[part]).all()


def test_a_block_is_read_in_elements_of_most_of_it() -> None:
    weights = {
        "a": torch.zeros(BLOCK_BYTES // 2 + 128, dtype=torch.bfloat16),
        "b": torch.zeros(BLOCK_BYTES // 4, dtype=torch.float32),
        "c": torch.zeros(300, dtype=torch.uint8),
    }
    assert widths_of(layout_of(weights)) == [2, 4, 1]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that share busy cores wait for each other in each of many small steps."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_thousand_steps_of_adamw_arrive_bit_for_bit() -> None:
    draws = torch.Generator().manual_seed(0)
    master = torch.nn.Parameter(0.02 * torch.randn(12_000, generator=draws))
    optimizer = torch.optim.AdamW([master], lr=3e-6, fused=True)

    def cast() -> Bytes:
        return master.detach().to(torch.bfloat16).view(torch.uint8).numpy()

    encoder, held = BlockEncoder(), cast()
    wire_bytes = changed = 0
    for _ in range(1000):
        master.grad = torch.randn(12_000, generator=draws)
        optimizer.step()
        new, out = cast(), np.empty_like(held)
        delta = Delta((encoder.encode(held, new, 0, 2),), len(new))
        apply(delta, held, out, digests_of(new), dense=new)
        assert (out == new).all()
        changed += not (out == held).all()
        held = out
        wire_bytes += delta.wire_bytes
    assert changed == 1000
    assert wire_bytes < 0.05 * 1000 * len(held)
