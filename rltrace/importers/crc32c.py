"""CRC-32C: Castagnoli's polynomial, which zlib has not."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_ROW = 512
_LONG = 128 * _ROW  # from there on NumPy is faster, a row of bytes each at a time

_States = NDArray[np.uint32]


def crc32c(data: bytes) -> int:
    """The checksum of some bytes."""
    state = 0xFFFFFFFF
    rows = len(data) // _ROW if len(data) >= _LONG else 0
    if rows:
        state = _after_rows(state, np.frombuffer(data, np.uint8, rows * _ROW).reshape(rows, _ROW))
    table = _TABLE
    for byte in data[rows * _ROW :]:
        state = state >> 8 ^ table[(state ^ byte) & 0xFF]
    return state ^ 0xFFFFFFFF


def _after_rows(state: int, rows: NDArray[np.uint8]) -> int:
    """The state after rows of bytes. The state is linear in what came before: that after a row is
    what a row of zeros makes of the one before it, plus what the row makes of zero."""
    own: _States = np.zeros(len(rows), np.uint32)
    for column in range(_ROW):
        own = _step(own ^ rows[:, column])
    first, second, third, fourth = _over_zeros()
    for added in own.tolist():
        state = (
            first[state & 0xFF]
            ^ second[state >> 8 & 0xFF]
            ^ third[state >> 16 & 0xFF]
            ^ fourth[state >> 24]
            ^ added
        )
    return state


@cache
def _over_zeros() -> list[list[int]]:
    """What a row of zeros makes of a state, for each value of each of its four bytes."""
    states: _States = np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], np.uint32)
    for _ in range(_ROW):
        states = _step(states)
    found: list[list[int]] = states.tolist()
    return found


def _step(states: _States) -> _States:
    after: _States = states >> np.uint32(8) ^ _ARRAY[states & np.uint32(0xFF)]
    return after


def _of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_of_byte, range(256)))
_ARRAY: _States = np.array(_TABLE, np.uint32)
