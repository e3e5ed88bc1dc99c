"""The elements in which two buffers differ: where, and by how much.

A *step* is the difference of two bit patterns: an optimizer step moves nearly every changed bf16
weight to one of its two neighbours. The compiled kernel and numpy give the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.memory.block_digests import BLOCK_BYTES
from rltrace.sync.memory.kernel import compiled

Bytes = NDArray[np.uint8]
WIDTHS = (1, 2, 4, 8)  # bytes of an element
_MORE = 255  # as a gap: 255 unchanged elements and no changed one; as a step: see `wide`


class BadBlock(ValueError):
    """What cannot be what a block became: damaged, cut short, or of another base."""


@dataclass(frozen=True)
class ElementChanges:
    """`places` are gaps or bits; `steps` has one byte an element: the zigzagged step less one, or
    255 where it is larger and the new value itself stands in `wide`."""

    places: Bytes
    steps: Bytes
    wide: Bytes  # the new values, `width` bytes each

    @property
    def bytes(self) -> int:
        return len(self.places) + len(self.steps) + len(self.wide)


class ChangeFinder:
    """Finds changes in blocks, for one thread. Its next call overwrites what it has returned."""

    def __init__(self) -> None:
        self._library = compiled()
        if self._library is not None:
            self._places = np.empty(BLOCK_BYTES * 256 // 255 + 64, np.uint8)
            self._steps = np.empty(BLOCK_BYTES + 64, np.uint8)
            self._wide = np.empty(BLOCK_BYTES + 64, np.uint8)
            self._counts = np.zeros(3, np.int64)
            self._addresses = [
                a.ctypes.data for a in (self._places, self._steps, self._wide, self._counts)
            ]

    def find(
        self, old: Bytes, new: Bytes, width: int, most: int, as_bits: bool
    ) -> ElementChanges | None:
        """The changes; None where they are more than `most`. Places are gaps or, `as_bits`, one bit
        an element, the first one the highest of its byte."""
        _check(old, new, width)
        if self._library is None:
            return _find(old, new, width, most, as_bits)
        places, steps, wide, counts = self._addresses
        bit_bytes = _bit_bytes(len(old) // width) if as_bits else 0
        self._places[:bit_bytes] = 0
        found = self._library.rltrace_find(
            *(old.ctypes.data, new.ctypes.data, len(old), width),
            *((places, None) if as_bits else (None, places)),
            *(steps, wide, most, counts),
        )
        if found or self._counts[1] > most:
            return None
        gap_bytes, step_bytes, wides = self._counts.tolist()
        return ElementChanges(
            self._places[: bit_bytes if as_bits else gap_bytes],
            self._steps[:step_bytes],
            self._wide[: wides * width],
        )


def apply(out: Bytes, changes: ElementChanges, width: int, as_bits: bool) -> None:
    """Turns the old buffer into the new one, in place. Errors: `BadBlock`."""
    _check(out, out, width)
    library, places, count = compiled(), changes.places, len(out) // width
    if library is not None:
        whole = library.rltrace_apply_bits if as_bits else library.rltrace_apply_gaps
        parts = (places, changes.steps, changes.wide)
        lengths = (number for part in parts for number in (part.ctypes.data, len(part)))
        code = whole(out.ctypes.data, count, width, *lengths)
        if code:
            raise BadBlock("a place beyond the end" if code == -2 else "lengths do not agree")
    elif not as_bits:
        ends = np.cumsum(np.where(places == _MORE, _MORE, places.astype(np.int64) + 1))
        _apply(out, ends[places != _MORE] - 1, changes, width)
    elif len(places) == _bit_bytes(count):
        _apply(out, np.flatnonzero(np.unpackbits(places)), changes, width)
    else:
        raise BadBlock(f"{len(places)} bytes of bits for {count} elements")


def _find(old: Bytes, new: Bytes, width: int, most: int, as_bits: bool) -> ElementChanges | None:
    before, after = old.view(f"u{width}"), new.view(f"u{width}")
    # Eight bytes at a time: few of them hold a change.
    whole = len(old) // 8 * 8
    words = np.flatnonzero(old[:whole].view(np.uint64) != new[:whole].view(np.uint64))
    near = (words[:, None] * (8 // width) + np.arange(8 // width)).ravel()
    near = np.concatenate([near, np.arange(whole // width, len(before))])
    positions = near[before[near] != after[near]]
    if len(positions) > most:
        return None
    values = after[positions]
    difference = (values - before[positions]).view(f"i{width}")
    zigzagged = (difference << 1) ^ (difference >> (8 * width - 1))
    symbols = zigzagged.view(f"u{width}") - before.dtype.type(1)
    steps = np.minimum(symbols, _MORE).astype(np.uint8)
    wide = values[symbols >= _MORE].view(np.uint8)
    return ElementChanges(
        _bits(positions, len(before)) if as_bits else _gaps(positions), steps, wide
    )


def _bits(positions: NDArray[np.int64], count: int) -> Bytes:
    mask = np.zeros(count, np.bool_)
    mask[positions] = True
    return np.packbits(mask)


def _gaps(positions: NDArray[np.int64]) -> Bytes:
    gaps = np.diff(positions, prepend=-1) - 1
    more = gaps // _MORE
    out = np.full(len(gaps) + int(more.sum()), _MORE, np.uint8)
    out[np.cumsum(more + 1) - 1] = gaps % _MORE
    return out


def _apply(out: Bytes, positions: NDArray[np.int64], changes: ElementChanges, width: int) -> None:
    target = out.view(f"u{width}")
    steps = changes.steps
    is_wide = steps == _MORE
    if len(positions) != len(steps) or np.count_nonzero(is_wide) * width != len(changes.wide):
        raise BadBlock("places, steps and values do not go together")
    if len(positions) and positions[-1] >= len(target):
        raise BadBlock(f"element {positions[-1]} of {len(target)}")
    zigzagged = steps.astype(np.uint64) + np.uint64(1)
    difference = (zigzagged >> np.uint64(1)) ^ (np.uint64(0) - (zigzagged & np.uint64(1)))
    values = target[positions] + difference.astype(target.dtype)
    values[is_wide] = changes.wide.view(target.dtype)
    target[positions] = values


def _check(old: Bytes, new: Bytes, width: int) -> None:
    if width not in WIDTHS or len(old) != len(new) or len(old) % width:
        raise BadBlock(f"{len(old)} and {len(new)} bytes of elements of {width}")


def _bit_bytes(elements: int) -> int:
    return -(-elements // 8)
