"""Where each tensor of a model lies in one flat run of bytes: made once, the same on every side.

Offsets leave no gaps, because a safetensors file may have none: tensors whose size is a multiple of
`ALIGNMENT_BYTES` come first, in the order given, each on such a boundary; the few others follow,
widest elements first, each aligned to its element.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod
from typing import Any

import xxhash

from rltrace.sync.dtypes import FLOATS, ITEM_BYTES, code_of
from rltrace.trace.errors import WRONG_USAGE, RltraceError

ALIGNMENT_BYTES = 256

_FORMAT = 1


@dataclass(frozen=True)
class Shard:
    """The part of a larger tensor that an entry is: it begins at `offset` of `global_shape`."""

    offset: tuple[int, ...]
    global_shape: tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """One tensor: `shape` is what is stored (of a shard: the shard's), `offset` bytes from the
    start of the data. `dtype` is a code of `rltrace.sync.dtypes`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    shard: Shard | None = None

    @property
    def bytes(self) -> int:
        """Length in the data."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Layout:
    """All tensors of one model, sorted by offset, and `aliases`: tied name -> name of the entry."""

    entries: tuple[Entry, ...]
    aliases: tuple[tuple[str, str], ...] = ()

    @cached_property
    def bytes(self) -> int:
        """Length of the data."""
        return self.entries[-1].offset + self.entries[-1].bytes if self.entries else 0

    @cached_property
    def id(self) -> str:
        """xxh3-128 of `to_json()`, 32 hexadecimal digits: two sides with the same id agree on the
        place of every byte."""
        return xxhash.xxh3_128_hexdigest(self.to_json().encode())

    @cached_property
    def by_name(self) -> dict[str, Entry]:
        """Entries by name, tied names included."""
        named = {entry.name: entry for entry in self.entries}
        return named | {alias: named[name] for alias, name in self.aliases}

    def to_json(self) -> str:
        """The canonical text: the same layout always gives the same bytes."""
        rows = []
        for e in self.entries:
            shard = [list(e.shard.offset), list(e.shard.global_shape)] if e.shard else None
            rows.append([e.name, e.dtype, list(e.shape), e.offset, shard])
        layout = {"format": _FORMAT, "tensors": rows, "aliases": [list(a) for a in self.aliases]}
        return json.dumps(layout, separators=(",", ":"), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Layout:
        """Errors: `RltraceError` for a text that is no layout, or one whose tensors overlap."""
        try:
            said = json.loads(text)
            if said["format"] != _FORMAT:
                raise ValueError(f"format {said['format']}")
            entries = []
            for name, dtype, shape, offset, shard in said["tensors"]:
                part = Shard(tuple(shard[0]), tuple(shard[1])) if shard else None
                entries.append(Entry(name, code_of(dtype), tuple(shape), offset, part))
            layout = Layout(tuple(entries), tuple((a, b) for a, b in said["aliases"]))
            end = 0
            for entry in entries:
                if entry.offset != end or min(entry.shape, default=0) < 0:
                    raise ValueError(f"{entry.name} does not begin where the one before it ends")
                end += entry.bytes
            if len(layout.by_name) != len(entries) + len(layout.aliases):
                raise ValueError("a name stands twice")
        except (ValueError, TypeError, LookupError, AttributeError, RltraceError) as error:
            raise RltraceError(f"this is no layout of weights: {error}") from error
        return layout


def layout_of(weights: Any, dtype: Any = None, keep: Iterable[str] = ()) -> Layout:
    """The layout of a model (its `state_dict()`), of a mapping name -> tensor, or of an iterable of
    (name, tensor) or (name, tensor, `Shard`). Tensors are torch's or NumPy's; only their type,
    shape and address are looked at, so tensors on the `meta` device will do.

    Tensors that share their memory whole are stored once: the first name holds them, the others
    are aliases. `dtype` is what floating-point tensors are cast to as they are published (say
    "bfloat16"), except those whose name matches a pattern of `keep` ("*.router.weight").

    Errors: `RltraceError` for a name that stands twice or a type that cannot travel.
    """
    cast = None if dtype is None else code_of(dtype)
    kept = tuple(keep)
    found: dict[str, tuple[str, tuple[int, ...], Shard | None]] = {}
    aliases: dict[str, str] = {}
    homes: dict[object, str] = {}
    for name, tensor, shard in named_tensors(weights):
        if name in found or name in aliases:
            raise RltraceError(f"two tensors are called {name}", WRONG_USAGE)
        home = homes.setdefault((memory_of(tensor), shard), name)
        if home != name:
            aliases[name] = home
            continue
        code = code_of(tensor.dtype)
        if cast in FLOATS and code in FLOATS and not any(fnmatchcase(name, p) for p in kept):
            code = cast
        found[name] = (code, tuple(int(n) for n in tensor.shape), shard)
    return Layout(_placed(found), tuple(sorted(aliases.items())))


def named_tensors(weights: Any) -> Iterator[tuple[str, Any, Shard | None]]:
    """What `layout_of` takes, as (name, tensor, shard)."""
    if hasattr(weights, "state_dict"):
        # `keep_vars`: the parameters themselves, so that tied ones are seen to be the same object.
        weights = weights.state_dict(keep_vars=True)
    for item in weights.items() if isinstance(weights, Mapping) else weights:
        name, tensor, *spec = item
        yield name, tensor, spec[0] if spec else None


def _placed(found: Mapping[str, tuple[str, tuple[int, ...], Shard | None]]) -> tuple[Entry, ...]:
    entries = [Entry(name, code, shape, 0, shard) for name, (code, shape, shard) in found.items()]
    even = [e for e in entries if e.bytes % ALIGNMENT_BYTES == 0]
    odd = [e for e in entries if e.bytes % ALIGNMENT_BYTES]
    odd.sort(key=lambda e: -ITEM_BYTES[e.dtype])
    placed, offset = [], 0
    for e in even + odd:
        placed.append(Entry(e.name, e.dtype, e.shape, offset, e.shard))
        offset += e.bytes
    return tuple(placed)


def memory_of(tensor: Any) -> object:
    """The same for two tensors that are one: same address, type, shape and strides."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype)
    if hasattr(tensor, "data_ptr"):
        if tensor.device.type == "meta":
            return id(tensor)
        address, strides = tensor.data_ptr(), tuple(tensor.stride())
    else:
        address, strides = tensor.__array_interface__["data"][0], tensor.strides
    if not address or prod(shape) == 0:
        return id(tensor)
    return address, dtype, shape, strides
