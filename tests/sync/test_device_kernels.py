"""Digests and differences that are worked out on a device: what they find, and that Triton's and
torch's answers are one."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from benchmarks.gpu.changes import changes_by_block
from rltrace.testing.inside.sync import BLOCK_BYTES
from rltrace.testing.inside.sync import device_memory as device_kernels
from rltrace.testing.inside.sync import device_memory_block_digests as block_digests
from tests.hooks.conftest import untraced

WORDS = device_kernels.WORDS

BY_TRITON = """
import torch
from rltrace.testing.inside.sync import device_memory as kernels
print(kernels._has_kernel(-1))
"""


def drawn(words: int) -> torch.Tensor:
    bits = np.random.default_rng(1).integers(0, 1 << 63, words, dtype=np.int64)
    return torch.from_numpy(bits).view(torch.uint8)


def digests(data: torch.Tensor) -> list[int]:
    found = torch.zeros(-(-len(data) // BLOCK_BYTES), dtype=torch.int64)
    block_digests(data, found)
    return found.tolist()


def test_digests_are_what_the_docstring_says() -> None:
    data = drawn(2 * WORDS + 1234)
    keys = device_kernels.KEY, device_kernels.MIX, device_kernels.MIX_AGAIN
    key, mix, mix_again = (np.uint64(number) for number in keys)
    wanted = []
    for block in np.split(data.numpy().view(np.uint64), [WORDS, 2 * WORDS]):
        z = block ^ np.arange(1, len(block) + 1, dtype=np.uint64) * key
        z = (z ^ z >> np.uint64(32)) * mix
        z = (z ^ z >> np.uint64(32)) * mix_again
        wanted.append(z.sum(dtype=np.uint64))
    assert [np.uint64(found % (1 << 64)) for found in digests(data)] == wanted
    assert digests(data[:0]) == []


def test_every_bit_of_a_word_counts() -> None:
    data = drawn(64)
    before = digests(data)
    for bit in [*range(64), *range(5 * 64, 6 * 64), *range(63 * 64, 64 * 64)]:
        changed = data.clone()
        changed[bit // 8] ^= 1 << bit % 8
        assert digests(changed) != before


def test_what_is_likely_to_go_wrong_together_is_seen() -> None:
    data = drawn(2000).view(torch.int16)
    rand, found = np.random.default_rng(2), {tuple(digests(data.view(torch.uint8)))}
    for _ in range(1000):  # two signs that turn
        one, other = rand.choice(len(data), 2, replace=False)
        changed = data.clone()
        changed[[one, other]] ^= -32768
        found.add(tuple(digests(changed.view(torch.uint8))))
    words = data.view(torch.int64)
    for place in range(250):  # words in each other's places, or moved
        changed = words.clone()
        changed[[place, place + 7]] = words[[place + 7, place]]
        found.add(tuple(digests(changed.view(torch.uint8))))
        found.add(tuple(digests(words.roll(place + 1).view(torch.uint8))))
    assert len(found) > 1490  # signs may have been drawn twice


@pytest.mark.parametrize("count", [1, 4096, WORDS + 5000])
def test_changes_are_counted_where_elements_differ(count: int) -> None:
    rand = np.random.default_rng(3)
    old = torch.from_numpy(rand.integers(-9, 9, 4 * count, dtype=np.int16))
    new = old.clone()
    new[torch.from_numpy(rand.random(4 * count) < 0.01)] += 1
    found = changes_by_block(old.view(torch.int64), new.view(torch.int64))
    where = (old != new).nonzero().view(-1)
    blocks = -(-count // WORDS)
    assert found.tolist() == torch.bincount(where // (4 * WORDS), minlength=blocks).tolist()


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernels_give_what_torch_gives() -> None:
    done = untraced(sys.executable, "-c", BY_TRITON, TRITON_INTERPRET="1")
    assert done.stdout.split() == ["True"], done.stderr
