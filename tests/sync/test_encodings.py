"""A block, and a version, arrive bit for bit however they travel; damage is an error, never other
bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zstandard
from xxhash import xxh3_64_intdigest

from rltrace.sync.memory import encodings
from rltrace.sync.memory.encodings import Decoder, Encoder, Encoding
from rltrace.testing.inside.sync import BLOCK_BYTES, BadBlock, Bytes, layout_of, widths_of
from rltrace.testing.inside.sync import ChangeFinder as Finder
from rltrace.testing.inside.sync import changed_elements as changes
from tests.sync.pairs import the_kernel

BLOCK = 64 << 10


@pytest.fixture(params=["compiled", "numpy"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(changes, "compiled", lambda: None)
    else:
        the_kernel()
    return str(request.param)


def block(seed: int = 0, length: int = BLOCK) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, length, np.uint8)


def stepped(old: Bytes, width: int, share: float, furthest: int = 1) -> Bytes:
    """`old` with a share of its elements moved by up to `furthest` steps, either way."""
    draws = np.random.default_rng(1)
    new = old.copy()
    elements = new.view(f"u{width}")
    places = np.flatnonzero(draws.random(len(elements)) < share)
    steps = draws.integers(1, furthest + 1, len(places)) * draws.choice([-1, 1], len(places))
    elements[places] += steps.astype(f"i{width}").view(f"u{width}")
    return new


def encoded(old: Bytes, new: Bytes, width: int) -> tuple[Encoding, Bytes]:
    """A block's form and all that travels of it."""
    found = Encoder().encode(old, new, width)
    payload = new if found.is_dense else np.frombuffer(found.payload, np.uint8)
    return found.encoding, payload


def roundtrip(old: Bytes, new: Bytes, width: int) -> tuple[Encoding, int]:
    encoding, payload = encoded(old, new, width)
    out = np.full(len(new), 0xAB, np.uint8)
    before = old.copy()
    Decoder().decode(encoding, payload, old, out)
    assert (out == new).all()
    assert (old == before).all()
    assert len(payload) <= len(new)
    return encoding, len(payload)


WIDTHS_AND_STEPS = [(w, n) for w in (1, 2, 4, 8) for n in (1, 100, 30_000) if n < 1 << 8 * w - 1]
"""Bytes of an element, and the furthest that it moves."""


@pytest.mark.parametrize(("width", "furthest"), WIDTHS_AND_STEPS)
@pytest.mark.parametrize("share", [0, 0.0003, 0.01, 0.2, 0.9, 1])
def test_any_share_of_changes_arrives_bit_for_bit(width: int, share: float, furthest: int) -> None:
    old = block()
    roundtrip(old, stepped(old, width, share, furthest), width)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 62, 64, 66, 4098])
@pytest.mark.parametrize("width", [1, 2, 8])
def test_a_block_of_any_length_arrives_bit_for_bit(length: int, width: int) -> None:
    old = block(length=length)
    roundtrip(old, old, width)
    roundtrip(old, ~old, width)
    last = old.copy()
    last[-1:] += 1
    roundtrip(old, last, width)


def test_the_smallest_form_is_chosen() -> None:
    old = block()
    grown, payload = encoded(block(length=100), block(length=200), 2)
    assert (grown, len(payload)) == (Encoding.DENSE, 200)
    assert roundtrip(old, old.copy(), 2) == (Encoding.SAME, 0)
    assert roundtrip(old, block(seed=9), 2) == (Encoding.DENSE, BLOCK)
    for encoding, width, share, furthest, most in (
        (Encoding.GAPS, 2, 0.0135, 1, 0.01),
        (Encoding.BITS, 2, 0.25, 1, 0.08),
        (Encoding.XOR, 4, 1, 60_000, 0.75),
    ):
        found, size = roundtrip(old, stepped(old, width, share, furthest), width)
        assert (found, size < most * BLOCK) == (encoding, True)


def test_a_block_that_is_new_in_part_only_is_not_taken_for_noise() -> None:
    old = block(length=8 * BLOCK)
    new = old.copy()
    new[: 3 * BLOCK] = block(seed=9, length=3 * BLOCK)
    encoding, size = roundtrip(old, new, 2)
    assert encoding != Encoding.DENSE
    assert size < 4.5 * BLOCK


@pytest.mark.parametrize("kernel", ["compiled"], indirect=True)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("share", [0, 0.01, 0.5])
def test_the_kernel_and_numpy_write_the_same(
    width: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = block()
    new = stepped(old, width, share, furthest=300 if width > 1 else 100)
    fast = Finder()
    monkeypatch.setattr(changes, "compiled", lambda: None)
    slow = Finder()
    for most in (BLOCK, 3):
        for as_bits in (False, True):
            one = fast.find(old, new, width, most, as_bits)
            other = slow.find(old, new, width, most, as_bits)
            assert (one is None) == (other is None)
            if one is not None:
                for part in ("places", "steps", "wide"):
                    assert bytes(getattr(one, part)) == bytes(getattr(other, part)), (as_bits, part)


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.25, 1])
@pytest.mark.parametrize("width", [2, 4])
def test_damage_is_an_error_or_is_told_by_the_digest(share: float, width: int) -> None:
    old = block()
    new = stepped(old, width, share, furthest=1 if share < 1 else 60_000)
    encoding, whole = encoded(old, new, width)
    digest = xxh3_64_intdigest(new)
    draws = np.random.default_rng(2)
    decoder = Decoder()
    out = np.zeros(BLOCK + 64, np.uint8)
    errors = 0
    for nth in range(300):
        damaged = whole.copy()
        if nth % 3 == 0:
            damaged = damaged[: draws.integers(0, len(damaged))]
        else:  # the header too: it is the first bytes
            where = draws.integers(0, 20 if nth % 3 == 1 else len(damaged))
            damaged[where] ^= np.uint8(1 << draws.integers(0, 8))
        try:
            decoder.decode(encoding, damaged, old, out[:BLOCK])
        except BadBlock:
            errors += 1
        else:
            same = bytes(out[:BLOCK]) == bytes(new)
            assert (xxh3_64_intdigest(out[:BLOCK]) == digest) == same
        assert not out[BLOCK:].any()  # nothing is written beyond the block
    assert errors > 50


def test_a_payload_that_states_an_enormous_length_or_no_encoding_is_refused() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(50 << 20))
    header = encodings._HEADER.pack(2, 3, 100, len(bomb), 100, len(bomb))
    payload = np.frombuffer(header + bomb + bomb, np.uint8)
    with pytest.raises(BadBlock, match="length"):
        Decoder().decode(Encoding.GAPS, payload, block(), block())
    with pytest.raises(BadBlock, match="unknown encoding 77"):
        Decoder().decode(77, payload, block(), block())


def test_a_block_is_read_in_elements_of_most_of_it() -> None:
    weights = {
        "a": torch.zeros(BLOCK_BYTES // 2 + 128, dtype=torch.bfloat16),
        "b": torch.zeros(BLOCK_BYTES // 4, dtype=torch.float32),
        "c": torch.zeros(300, dtype=torch.uint8),
    }
    assert widths_of(layout_of(weights)) == [2, 4, 1]
