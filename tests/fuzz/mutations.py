"""Inputs for a parser: its good ones, with a few things done to them that hostile ones would do."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

ODD_VALUES = tuple(
    value.encode()
    for value in (
        *("null", "true", "-1", "0", "1", "2147483648", "4611686018427387904", "1e999", "-1e308"),
        *("18446744073709551616", "NaN", "-Infinity", "0.5", "1e18", "nan", "inf", "1_000", "٣"),
        *("[]", "{}", "[[]]", '{"a": 1}', "[1, [2]]", '""', '"x"', '"<script>"', '"٣"'),
        *('"\\ud800"', '"\\u0000"', '"' + "y" * 3000 + '"'),
        *("1" * 400, "1" * 5000, "[" * 2000, '{"a":' * 2000),
    )
)
"""What may stand where a value stands, in JSON or TOML."""

_MOST_BYTES = 20_000

_ODD_BYTES = (
    *(b"\0", b"\xff" * 8, b"\xff\xff\xff\x7f", b"\0" * 8, b"\n", b"\r", b"\xe2\x80\xa8", b"}"),
)
_VALUE = re.compile(rb'"(?:[^"\\\n]|\\.)*"|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|true|false|null|\[\]|\{\}')


def mutated(seed: bytes, other: bytes, randomness: random.Random) -> bytes:
    """One of very many inputs that are near a good one."""
    data = seed
    for _ in range(randomness.choice((1, 1, 1, 2, 3, 6))):
        # Each time: what is repeated thirty times again and again would soon fill the memory.
        data = randomness.choice(_WAYS)(data, other, randomness)[:_MOST_BYTES]
    return data


def _other_value(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    values = list(_VALUE.finditer(data))
    if not values:
        return _bytes(data, other, randomness)
    begin, end = randomness.choice(values).span()
    return data[:begin] + randomness.choice(ODD_VALUES) + data[end:]


def _other_node(data: bytes, other: bytes, randomness: random.Random) -> bytes:
    """What stands in a line of JSON is something else, or is gone, tables and lists included."""
    lines = data.split(b"\n")
    number = randomness.randrange(len(lines))
    try:
        value = json.loads(lines[number])
        places = list(_places(value))
        holder, key = randomness.choice(places)
        if randomness.random() < _GONE:
            del holder[key]
        elif randomness.random() < _MOVED:
            from_holder, from_key = randomness.choice(places)
            holder[key] = from_holder[from_key]
        else:
            holder[key] = randomness.choice(_ODD_NODES)
        lines[number] = json.dumps(value).encode()
    except (ValueError, RecursionError, IndexError):  # no JSON, or one value
        return _other_value(data, other, randomness)
    return b"\n".join(lines)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every table or list in a value, with each key or place in it."""
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield value, key
        yield from _places(value[key])


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


_GONE, _MOVED = 0.2, 0.3
_ODD_NODES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 7, 2**31, 2**62, 2**64, 10**400, 0.5, 1e308),
    *(float("inf"), float("nan"), "", "x", "0", "a/b", "\ud800", "\0"),
    *([], {}, [[]], [None], [1, 2], {"a": 1}, {"": {}}),
)

_WAYS = (
    *(_other_value, _other_value, _other_node, _other_node, _other_node),
    *(_bytes, _bit, _bit, _cut, _again, _spliced),
)
