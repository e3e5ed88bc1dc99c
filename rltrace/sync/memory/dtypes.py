"""The element types that weights may have, by safetensors' names."""

from __future__ import annotations

from typing import Any

import numpy as np

from rltrace.trace.errors import WrongUsage
from rltrace.trace.untrusted_files import packaged_toml

_TYPES = packaged_toml("sync/dtypes.toml")
ITEM_BYTES: dict[str, int] = {kind["code"]: kind["bytes"] for kind in _TYPES.values()}
"""Bytes of one element, by code."""

FLOATS = frozenset(kind["code"] for kind in _TYPES.values() if "casts" in kind)
"""The types that may be cast into one another on the way; all others travel as they are."""

_CODES: dict[str, str] = {name: kind["code"] for name, kind in _TYPES.items()}
_NAMES = {code: name for name, code in _CODES.items()}
_CASTS = ", ".join(name for name, code in _CODES.items() if code in FLOATS)


def code_of(dtype: Any, what: str = "weights") -> str:
    """The code of a torch or NumPy dtype, its name, or a code. Errors: `RltraceError` for a type
    that cannot travel (quantised, sub-byte, object types), which says `what` is of it."""
    name = str(dtype).removeprefix("torch.")
    code = _CODES.get(name, name)
    if code not in ITEM_BYTES:
        said = f"{what} of type {name} cannot be published: make it one of {', '.join(_CODES)}"
        raise WrongUsage(said)
    return code


def cast_of(dtype: Any) -> str | None:
    """The code of a type that floats are cast to; None for None. Errors: `RltraceError` for
    another: 8-bit floats and integers take scales, which a cast has not."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    code = _CODES.get(name, name)
    if code not in FLOATS:
        said = f"weights are cast to one of {_CASTS} as they are published, not to {name}"
        raise WrongUsage(f"{said}: give tensors that are of that type already")
    return code


def torch_name(code: str) -> str:
    """What torch calls the type: `BF16` -> `bfloat16`."""
    return _NAMES[code]


def numpy_dtype(code: str) -> np.dtype[Any]:
    """The type itself where NumPy has it, else unsigned integers of the same width."""
    name: str = _TYPES[_NAMES[code]].get("seen_as", _NAMES[code])
    return np.dtype(name)
