"""The elements in which two buffers differ: where they are, and by how much.

A changed element is its place and its *step*, the difference of the two bit patterns: after an
optimizer step nearly every changed bf16 weight has moved to one of its two neighbours, so that its
step is one of two symbols where its value is one of thousands. Places are *gaps* from one to the
next, or one *bit* for every element. Each function runs in the compiled kernel where there is one,
and in numpy otherwise, with the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.kernel import compiled

Bytes = NDArray[np.uint8]

WIDTHS = (1, 2, 4, 8)
"""Bytes of an element."""
_MORE = 255  # as a gap: 255 unchanged elements and no changed one; as a step: see `wide`
_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Misfit(ValueError):
    """Changes that do not fit the buffer that they are applied to, or each other."""


@dataclass(frozen=True)
class Changes:
    """What changed. `places` are gaps or bits; `steps` has one byte an element: the zigzagged step
    less one, or 255 where it is larger and the new value itself stands in `wide`."""

    places: Bytes
    steps: Bytes
    wide: Bytes  # the new values, `width` bytes each

    @property
    def bytes(self) -> int:
        """Bytes of all three."""
        return len(self.places) + len(self.steps) + len(self.wide)


class Finder:
    """Finds changes in buffers of up to `largest` bytes. What it returns is overwritten by its next
    call, so that nothing is allocated; one Finder serves one thread."""

    def __init__(self, largest: int) -> None:
        self._library = compiled()
        if self._library is not None:
            self._places = np.empty(largest * 256 // 255 + 64, np.uint8)
            self._steps = np.empty(largest + 64, np.uint8)
            self._wide = np.empty(largest + 64, np.uint8)
            self._counts = np.zeros(3, np.int64)
            self._addresses = [
                a.ctypes.data for a in (self._places, self._steps, self._wide, self._counts)
            ]

    def gaps(self, old: Bytes, new: Bytes, width: int, most: int) -> Changes | None:
        """The changes with their places as gaps; None where there are more than `most`."""
        _check(old, new, width)
        if self._library is None:
            return _find(old, new, width, most, as_bits=False)
        return self._compiled(old, new, width, most, 0)

    def bits(self, old: Bytes, new: Bytes, width: int, most: int) -> Changes | None:
        """The changes with their places as one bit an element, the first one the highest of its
        byte; None where there are more than `most`."""
        _check(old, new, width)
        if self._library is None:
            return _find(old, new, width, most, as_bits=True)
        bit_bytes = -(-len(old) // width // 8)
        self._places[:bit_bytes] = 0
        return self._compiled(old, new, width, most, bit_bytes)

    def _compiled(
        self, old: Bytes, new: Bytes, width: int, most: int, bit_bytes: int
    ) -> Changes | None:
        places, steps, wide, counts = self._addresses
        bits, gaps = (places, None) if bit_bytes else (None, places)
        found = self._library.rltrace_find(  # type: ignore[union-attr]
            *(old.ctypes.data, new.ctypes.data, len(old), width),
            *(bits, gaps, steps, wide, most, counts),
        )
        if found or self._counts[1] > most:
            return None
        gap_bytes, step_bytes, wides = self._counts.tolist()
        return Changes(
            self._places[: bit_bytes or gap_bytes],
            self._steps[:step_bytes],
            self._wide[: wides * width],
        )


def apply_gaps(out: Bytes, changes: Changes, width: int) -> None:
    """Makes the new buffer of the old one, in place. Errors: `Misfit`; then `out` holds neither."""
    _check(out, out, width)
    library = compiled()
    if library is not None:
        _raise(
            library.rltrace_apply_gaps(
                *(out.ctypes.data, len(out) // width, width),
                *_with_lengths(changes.places, changes.steps, changes.wide),
            )
        )
        return
    gaps = changes.places
    ends = np.cumsum(np.where(gaps == _MORE, _MORE, gaps.astype(np.int64) + 1))
    _apply(out, ends[gaps != _MORE] - 1, changes, width)


def apply_bits(out: Bytes, changes: Changes, width: int) -> None:
    """As `apply_gaps`, of places as bits."""
    _check(out, out, width)
    count = len(out) // width
    if len(changes.places) != -(-count // 8):
        raise Misfit(f"{len(changes.places)} bytes of bits for {count} elements")
    library = compiled()
    if library is not None:
        _raise(
            library.rltrace_apply_bits(
                *(out.ctypes.data, count, width, changes.places.ctypes.data),
                *_with_lengths(changes.steps, changes.wide),
            )
        )
        return
    _apply(out, np.flatnonzero(np.unpackbits(changes.places)), changes, width)


def _find(old: Bytes, new: Bytes, width: int, most: int, as_bits: bool) -> Changes | None:
    before, after = old.view(_UNSIGNED[width]), new.view(_UNSIGNED[width])
    # Eight bytes at a time: few of them hold a change.
    whole = len(old) // 8 * 8
    words = np.flatnonzero(old[:whole].view(np.uint64) != new[:whole].view(np.uint64))
    near = (words[:, None] * (8 // width) + np.arange(8 // width)).ravel()
    near = np.concatenate([near, np.arange(whole // width, len(before))])
    positions = near[before[near] != after[near]]
    if len(positions) > most:
        return None
    values = after[positions]
    difference = (values - before[positions]).view(_SIGNED[width])
    zigzagged = (difference << 1) ^ (difference >> (8 * width - 1))
    symbols = zigzagged.view(_UNSIGNED[width]) - _UNSIGNED[width](1)
    steps = np.minimum(symbols, _MORE).astype(np.uint8)
    wide = values[symbols >= _MORE].view(np.uint8)
    return Changes(_bits(positions, len(before)) if as_bits else _gaps(positions), steps, wide)


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


def _apply(out: Bytes, positions: NDArray[np.int64], changes: Changes, width: int) -> None:
    target = out.view(_UNSIGNED[width])
    steps = changes.steps
    is_wide = steps == _MORE
    if len(positions) != len(steps) or np.count_nonzero(is_wide) * width != len(changes.wide):
        raise Misfit("places, steps and values do not go together")
    if len(positions) and positions[-1] >= len(target):
        raise Misfit(f"element {positions[-1]} of {len(target)}")
    zigzagged = steps.astype(np.uint64) + np.uint64(1)
    difference = (zigzagged >> np.uint64(1)) ^ (np.uint64(0) - (zigzagged & np.uint64(1)))
    values = target[positions] + difference.astype(_UNSIGNED[width])
    values[is_wide] = changes.wide.view(_UNSIGNED[width])
    target[positions] = values


def _check(old: Bytes, new: Bytes, width: int) -> None:
    if width not in WIDTHS or len(old) != len(new) or len(old) % width:
        raise Misfit(f"{len(old)} and {len(new)} bytes of elements of {width}")


def _with_lengths(*arrays: Bytes) -> list[int]:
    return [number for array in arrays for number in (array.ctypes.data, len(array))]


def _raise(code: int) -> None:
    if code:
        raise Misfit("a place beyond the end" if code == -2 else "lengths do not agree")
