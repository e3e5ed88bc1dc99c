"""Inputs for a parser: its good ones, with a few things done to them that hostile ones would do."""

from __future__ import annotations

import random
import re

ODD_VALUES = tuple(
    value.encode()
    for value in (
        *("null", "true", "-1", "0", "1", "2147483648", "4611686018427387904", "1e999", "-1e308"),
        *("18446744073709551616", "1" * 400, "1" * 5000, "NaN", "-Infinity", "0.5", "1e18", "nan"),
        *('""', '"x"', '"\\ud800"', '"\\u0000"', '"<script>"', "[]", "{}", "[[]]", '{"a": 1}'),
        *(
            "[" * 2000,
            '{"a":' * 2000,
            '"' + "y" * 3000 + '"',
            "inf",
            "1_000",
            "٣",
            '"٣"',
            "[1, [2]]",
        ),
    )
)
"""What may stand where a value stands, in JSON or TOML."""

_ODD_BYTES = (
    b"\0",
    b"\xff" * 8,
    b"\xff\xff\xff\x7f",
    b"\0" * 8,
    b"\n",
    b"\r",
    b"\xe2\x80\xa8",
    b"}",
)
_VALUE = re.compile(rb'"(?:[^"\\\n]|\\.)*"|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|true|false|null|\[\]|\{\}')


def mutated(seed: bytes, other: bytes, randomness: random.Random) -> bytes:
    """One of very many inputs that are near a good one."""
    data = seed
    for _ in range(randomness.choice((1, 1, 1, 2, 3, 6))):
        data = randomness.choice(_WAYS)(data, other, randomness)
    return data[:20_000]


def _other_value(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    values = list(_VALUE.finditer(data))
    if not values:
        return _bytes(data, other, randomness)
    begin, end = randomness.choice(values).span()
    return data[:begin] + randomness.choice(ODD_VALUES) + data[end:]


def _bytes(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    at = randomness.randrange(len(data) + 1)
    new = randomness.choice((*_ODD_BYTES, randomness.randbytes(randomness.choice((1, 2, 4, 8)))))
    kept = at + randomness.choice((0, len(new)))
    return data[:at] + new + data[kept:]


def _bit(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    if not data:
        return b"\0"
    changed = bytearray(data)
    changed[randomness.randrange(len(data))] ^= 1 << randomness.randrange(8)
    return bytes(changed)


def _cut(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    begin, end = sorted(randomness.randrange(len(data) + 1) for _ in range(2))
    return randomness.choice((data[:begin], data[:begin] + data[end:], data[begin:]))


def _again(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    begin, end = sorted(randomness.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[begin:end] * randomness.choice((1, 2, 30)) + data[end:]


def _spliced(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    at, begin = randomness.randrange(len(data) + 1), randomness.randrange(len(other) + 1)
    return data[:at] + other[begin : begin + randomness.choice((8, 64, 4096))]


_WAYS = (_other_value, _other_value, _other_value, _bytes, _bit, _bit, _cut, _again, _spliced)
