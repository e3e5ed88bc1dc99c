"""Where each tensor of a model lies in one flat run of bytes.

A safetensors file may have no gaps: tensors of a multiple of `ALIGNMENT_BYTES` come first, in the
order given, then the few others, widest elements first, each aligned to its element.
"""

from __future__ import annotations

import builtins
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod
from operator import index
from typing import Any

import xxhash

from rltrace.sync.memory.dtypes import FLOATS, ITEM_BYTES, cast_of, code_of
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.untrusted_files import NONSENSE, parsed

ALIGNMENT_BYTES = 256

_FORMAT = 1
_PAGE_BYTES = 4096
_PLAIN = (dict.items, OrderedDict.items)  # other mappings may make a tensor when it is asked for


@dataclass(frozen=True)
class Shard:
    """The part of a larger tensor that an entry is: it begins at `offset` of `global_shape`."""

    offset: tuple[int, ...]
    global_shape: tuple[int, ...]


@dataclass(frozen=True)
class TensorEntry:
    """`shape` is what is stored (a shard's own), `offset` in bytes, `dtype` a code of `dtypes`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    shard: Shard | None = None

    @cached_property
    def bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Layout:
    """All tensors of one model, sorted by offset, and `aliases`: tied name -> name of the entry."""

    entries: tuple[TensorEntry, ...]
    aliases: tuple[tuple[str, str], ...] = ()

    @cached_property
    def bytes(self) -> int:
        return self.entries[-1].offset + self.entries[-1].bytes if self.entries else 0

    @cached_property
    def id(self) -> str:
        """xxh3-128 of `text`, 32 hexadecimal digits: the same id, the same place of every byte."""
        return xxhash.xxh3_128_hexdigest(self.text.encode())

    @cached_property
    def by_name(self) -> dict[str, TensorEntry]:
        """Entries by name, tied names included."""
        return {name: self.entries[number] for name, number in self.numbers.items()}

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Place in `entries` by name, tied names included."""
        numbers = {entry.name: number for number, entry in enumerate(self.entries)}
        return numbers | {alias: numbers[name] for alias, name in self.aliases}

    @cached_property
    def header(self) -> builtins.bytes:
        """A safetensors file's beginning: length and JSON, filled up with blanks to a page. Tied
        names are in the metadata, name -> stored name, as that library does it."""
        said: dict[str, Any] = {
            "__metadata__": {"format": "pt", "rltrace.layout": self.id, **dict(self.aliases)}
        }
        for e in self.entries:
            ends = [e.offset, e.offset + e.bytes]
            said[e.name] = {"dtype": e.dtype, "shape": list(e.shape), "data_offsets": ends}
        text = json.dumps(said, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % _PAGE_BYTES)
        return len(text).to_bytes(8, "little") + text

    @cached_property
    def text(self) -> str:
        """The canonical JSON: the same layout always gives the same bytes."""
        rows = []
        for e in self.entries:
            shard = [list(e.shard.offset), list(e.shard.global_shape)] if e.shard else None
            rows.append([e.name, e.dtype, list(e.shape), e.offset, shard])
        layout = {"format": _FORMAT, "tensors": rows, "aliases": [list(a) for a in self.aliases]}
        return json.dumps(layout, separators=(",", ":"), sort_keys=True)

    @staticmethod
    def parse(text: str) -> Layout:
        """Errors: `RltraceError` for a text that is no layout, or one whose tensors overlap."""
        try:
            said = parsed(text)
            if said["format"] != _FORMAT:
                raise ValueError(f"format {said['format']}")
            entries = []
            for name, dtype, shape, offset, shard in said["tensors"]:
                part = Shard(tuple(shard[0]), tuple(shard[1])) if shard else None
                entries.append(TensorEntry(name, code_of(dtype), tuple(shape), offset, part))
            layout = Layout(tuple(entries), tuple((a, b) for a, b in said["aliases"]))
            end = 0
            for entry in entries:
                if entry.offset != end or min(entry.shape, default=0) < 0:
                    raise ValueError(f"{entry.name} does not begin where the one before it ends")
                end += entry.bytes
            if len(layout.by_name) != len(entries) + len(layout.aliases):
                raise ValueError("a name stands twice")
        except (*NONSENSE, RltraceError) as error:
            raise RltraceError(f"this is no layout of weights: {error}") from error
        return layout


def layout_of(weights: Any, dtype: Any = None, keep: str | Iterable[str] = ()) -> Layout:
    """The layout of a model (its `state_dict()`), a dict name -> tensor, or an iterable of (name,
    tensor) or (name, tensor, `Shard`). Tensors are torch's or NumPy's, also on the `meta` device.
    Those of a model or dict that share their memory whole are tied: stored once, under the first
    name, the others as aliases. Those of an iterable are not: the next may be gathered into the
    same memory. Floats are cast to `dtype` (say "bfloat16") as they are published, except names
    that match `keep`, a pattern or several ("*.router.weight"). Errors: `RltraceError` for what are
    no weights, a name that stands twice or that no safetensors file can hold, a type that cannot
    travel or be cast to, a part that its whole does not hold, and a pattern without a match."""
    cast, patterns = cast_of(dtype), _patterns(keep)
    found: dict[str, TensorEntry] = {}
    aliases: dict[str, str] = {}
    homes: dict[object, str] = {}
    matched: set[str] = set()
    kept: set[str] = set()
    weights = held(weights)
    for name, tensor, shard in named_tensors(weights):
        _check_name(name)
        if name in found or name in aliases:
            said = f"two tensors are called {name}: publish parts of one tensor under names of"
            raise WrongUsage(f"{said} their own, or each rank's in a policy of its own")
        home = name
        if isinstance(weights, dict):
            home = homes.setdefault(memory_of(tensor), name)
        matching = {pattern for pattern in patterns if fnmatchcase(name, pattern)}
        matched |= matching
        if matching:
            kept.add(home)
        if home != name:
            aliases[name] = home
            continue
        shape = tuple(int(n) for n in tensor.shape)
        found[name] = TensorEntry(name, code_of(tensor.dtype, name), shape, 0, shard)
    for pattern in patterns:
        if pattern not in matched:
            said = f"no tensor is called as keep={pattern!r} says: correct the pattern, or drop it"
            raise WrongUsage(said)
    if cast is not None:
        for name, entry in found.items():
            if entry.dtype in FLOATS and name not in kept:
                found[name] = replace(entry, dtype=cast)
    return Layout(_placed(found.values()), tuple(sorted(aliases.items())))


def named_tensors(weights: Any) -> Iterator[tuple[str, Any, Shard | None]]:
    """What `held` gives, with shards. Errors: `RltraceError` for others, sparse, bad shards."""
    for item in weights.items() if isinstance(weights, dict) else weights:
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            said = f"each of the weights is (name, tensor) or (name, tensor, Shard), {_not(item)}"
            raise WrongUsage(said)
        name, tensor, *spec = item
        check_tensor(name, tensor)
        yield name, tensor, _part(name, spec[0] if spec else None, tuple(tensor.shape))


def check_tensor(name: Any, tensor: Any) -> None:
    """Errors: `RltraceError` for a name that is no str, or what is no dense tensor."""
    if not isinstance(name, str):
        raise WrongUsage(f"the name of a tensor is a str, {_not(name)}")
    if not hasattr(tensor, "data_ptr") and not hasattr(tensor, "__array_interface__"):
        said = f"{name} is to be a tensor of torch's or NumPy's, {_not(tensor)}: leave it out"
        raise WrongUsage(said)
    if hasattr(tensor, "data_ptr") and (str(tensor.layout) != "torch.strided" or tensor.is_nested):
        said = f"{name} is a sparse or nested tensor, which cannot travel: make it a dense one"
        raise WrongUsage(said)


def held(weights: Any) -> Any:
    """A dict where all tensors exist at the same time; else an iterable, which may gather one after
    the other into the same memory. Errors: `RltraceError` for what are no weights."""
    if hasattr(weights, "state_dict") and not isinstance(weights, type):
        # `keep_vars`: the parameters themselves: tied ones are seen to be the same object.
        weights = weights.state_dict(keep_vars=True)
    if isinstance(weights, Mapping):
        return weights if type(weights).items in _PLAIN else weights.items()
    is_tensor = hasattr(weights, "data_ptr") or hasattr(weights, "__array_interface__")
    if is_tensor or isinstance(weights, str | bytes) or not isinstance(weights, Iterable):
        said = "weights are a model, a mapping name -> tensor or pairs (name, tensor)"
        raise WrongUsage(f"{said}, {_not(weights)}")
    return weights


def _not(given: object) -> str:
    return "not None" if given is None else f"not an object of type {type(given).__name__}"


def _part(name: str, shard: Any, shape: tuple[int, ...]) -> Shard | None:
    """The shard in Python's own integers, so that two sides can be compared. Errors: `RltraceError`
    where a tensor of that shape does not lie there in its whole."""
    if shard is None:
        return None
    try:
        part = Shard(
            tuple(index(n) for n in shard.offset), tuple(index(n) for n in shard.global_shape)
        )
    except (AttributeError, TypeError) as error:
        said = f"the part that {name} is takes a Shard(offset, global_shape) of whole numbers"
        raise WrongUsage(f"{said}, not {shard!r:.80}") from error
    here = f"{name} has shape {list(shape)}"
    if not len(part.offset) == len(part.global_shape) == len(shape):
        said = f"{here}, so the offset and global_shape of its Shard take {len(shape)} numbers each"
        raise WrongUsage(f"{said}: {shard!r:.80}")
    ends = zip(part.offset, shape, part.global_shape, strict=True)
    if any(not 0 <= at <= at + size <= whole for at, size, whole in ends):
        said = f"{here}, which at {list(part.offset)} does not lie in its whole of"
        said += f" {list(part.global_shape)}: correct its Shard(offset, global_shape)"
        raise WrongUsage(said)
    return part


def _patterns(keep: str | Iterable[str]) -> tuple[str, ...]:
    several = isinstance(keep, Iterable) and not isinstance(keep, str)
    patterns: tuple[Any, ...] = tuple(keep) if several else (keep,)
    for pattern in patterns:
        if not isinstance(pattern, str):
            said = f'keep takes patterns of names such as "*.router.weight", {_not(pattern)}'
            raise WrongUsage(said)
    return patterns


def _check_name(name: str) -> None:
    """Errors: `RltraceError` for a name that the header of a safetensors file cannot have."""
    if name == "__metadata__":
        said = "no tensor may be called __metadata__, which safetensors files use: rename it"
        raise WrongUsage(said)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        said = f"the name {name!r} cannot be written in UTF-8: rename that tensor"
        raise WrongUsage(said) from error


def _placed(entries: Iterable[TensorEntry]) -> tuple[TensorEntry, ...]:
    def order(entry: TensorEntry) -> int:
        return -ITEM_BYTES[entry.dtype] if entry.bytes % ALIGNMENT_BYTES else -ALIGNMENT_BYTES

    placed, offset = [], 0
    for e in sorted(entries, key=order):
        placed.append(replace(e, offset=offset))
        offset += e.bytes
    return tuple(placed)


def memory_of(tensor: Any) -> object:
    """The same for two tensors that are one: same place, type, shape and strides."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype)
    if hasattr(tensor, "data_ptr"):
        if tensor.device.type == "meta":
            return id(tensor)
        address, strides = tensor.data_ptr(), tuple(tensor.stride())
    else:
        address, strides = tensor.__array_interface__["data"][0], tensor.strides
    if not address or prod(shape) == 0:
        return id(tensor)
    return address, dtype, shape, strides, str(getattr(tensor, "device", "cpu"))
