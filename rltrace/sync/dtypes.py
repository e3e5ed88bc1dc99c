"""The element types that weights may have, under the names that safetensors files use."""

from __future__ import annotations

from typing import Any

import numpy as np

from rltrace.trace.errors import WrongUsage

_TYPES = {
    "float64": ("F64", 8),
    "int64": ("I64", 8),
    "uint64": ("U64", 8),
    "complex64": ("C64", 8),
    "float32": ("F32", 4),
    "int32": ("I32", 4),
    "uint32": ("U32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int16": ("I16", 2),
    "uint16": ("U16", 2),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "float8_e8m0fnu": ("F8_E8M0", 1),
}
"""By torch's and NumPy's names, which are the same: code and bytes of an element."""

ITEM_BYTES = dict(_TYPES.values())
"""Bytes of one element, by code."""

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""The types that may be cast into one another on the way; all others travel as they are."""

_CODES = {name: code for name, (code, _) in _TYPES.items()}
_NAMES = {code: name for name, code in _CODES.items()}

_CASTS = ", ".join(name for name, code in _CODES.items() if code in FLOATS)

# NumPy itself has no such types: their elements are seen as unsigned integers of the same width.
_BITS = {"BF16": "uint16", "F8_E4M3": "uint8", "F8_E5M2": "uint8", "F8_E8M0": "uint8"}


def code_of(dtype: Any, what: str = "weights") -> str:
    """The code of a torch or NumPy dtype, of its name, or of a code itself.

    Errors: `RltraceError` for a type that cannot travel (quantised, sub-byte, object types), which
    says `what` is of it.
    """
    name = str(dtype).removeprefix("torch.")
    code = _CODES.get(name, name)
    if code not in ITEM_BYTES:
        said = f"{what} of type {name} cannot be published: make it one of {', '.join(_CODES)}"
        raise WrongUsage(said)
    return code


def cast_of(dtype: Any) -> str | None:
    """The code of a type that floats are to be cast to; None for None, which casts nothing.

    Errors: `RltraceError` for a type that they are not cast to on the way: 8-bit floats and
    integers take scales, which a cast has not.
    """
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
    return np.dtype(_BITS.get(code, _NAMES[code]))
