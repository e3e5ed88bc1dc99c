"""A block arrives bit for bit however it travels, and damage is an error, never other bytes."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import zstandard
from xxhash import xxh3_64_intdigest

from rltrace.sync import changes, encodings
from rltrace.sync.changes import Bytes, Finder
from rltrace.sync.encodings import BadBlock, Decoder, Encoder, Encoding
from tests.sync.compiling import the_kernel

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


def test_changes_far_apart_and_at_both_ends_arrive() -> None:
    old = block()
    new = old.copy()
    new[[0, 600, 601, 600 + 510, BLOCK - 1]] += 1
    encoding, size = roundtrip(old, new, 1)
    assert encoding == Encoding.GAPS
    assert size < 1000


@pytest.mark.parametrize("kernel", ["compiled"], indirect=True)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("share", [0, 0.01, 0.5])
def test_the_compiled_kernel_and_numpy_write_the_same_bytes(
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


@pytest.mark.parametrize("encoding", [*Encoding, 77])
def test_noise_is_an_error_or_is_told_by_the_digest(encoding: int) -> None:
    old, out = block(), np.zeros(BLOCK + 64, np.uint8)
    for seed in range(100):
        with suppress(BadBlock):
            Decoder().decode(encoding, block(seed + 1, length=seed * 7), old, out[:BLOCK])
            assert encoding == Encoding.SAME
        assert not out[BLOCK:].any()


def test_a_payload_that_states_an_enormous_length_is_refused() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(50 << 20))
    header = encodings._HEADER.pack(2, 3, 100, len(bomb), 100, len(bomb))
    payload = np.frombuffer(header + bomb + bomb, np.uint8)
    with pytest.raises(BadBlock, match="length"):
        Decoder().decode(Encoding.GAPS, payload, block(), block())
