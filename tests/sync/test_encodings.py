"""A block, and a version, arrive bit for bit however they travel; damage is an error, never other
bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import zstandard
from xxhash import xxh3_64_intdigest

from rltrace.sync import encodings
from rltrace.sync.encodings import BadBlock, Decoder, Encoder, Encoding
from rltrace.testing.inside.sync import (
    BLOCK_BYTES,
    BadBlocks,
    Bytes,
    Finder,
    apply,
    changes,
    digests_of,
    encode,
    widths_of,
)
from rltrace.testing.inside.sync import layout_layout_of as layout_of
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


def roundtrip(old: Bytes, new: Bytes, width: int) -> tuple[Encoding, int]:
    encoding, payload = Encoder(max(len(new), 1)).encode(old, new, width)
    payload = np.frombuffer(bytes(payload), np.uint8)
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
    grown, payload = Encoder(BLOCK).encode(block(length=100), block(length=200), 2)
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
    fast = Finder(BLOCK)
    monkeypatch.setattr(changes, "compiled", lambda: None)
    slow = Finder(BLOCK)
    for most in (BLOCK, 3):
        for find in ("gaps", "bits"):
            one = getattr(fast, find)(old, new, width, most)
            other = getattr(slow, find)(old, new, width, most)
            assert (one is None) == (other is None)
            if one is not None:
                for part in ("places", "steps", "wide"):
                    assert bytes(getattr(one, part)) == bytes(getattr(other, part)), (find, part)


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.25, 1])
@pytest.mark.parametrize("width", [2, 4])
def test_damage_is_an_error_or_is_told_by_the_digest(share: float, width: int) -> None:
    old = block()
    new = stepped(old, width, share, furthest=1 if share < 1 else 60_000)
    encoding, payload = Encoder(BLOCK).encode(old, new, width)
    whole = np.frombuffer(bytes(payload), np.uint8)
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
