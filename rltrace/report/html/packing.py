"""Columns of numbers as text that a page unpacks itself: gzip, then base64."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]
"""Columns of a page by name, each of unsigned integers."""


def pack(columns: Mapping[str, NDArray[Any]]) -> tuple[list[list[Any]], str]:
    """`(what is in it, the text)`: for each column its name, its width in bytes (1, 2 or 4,
    unsigned, little-endian) and its length. The bytes of wide numbers are put together by
    significance, the lowest first: the high ones hardly differ, which makes the text a third
    smaller. Errors: ValueError for a column of another type."""
    contents: list[list[Any]] = []
    planes = []
    for name, column in columns.items():
        if column.dtype.kind != "u" or column.dtype.itemsize > 4:
            raise ValueError(f"column {name} is of {column.dtype}, not of small unsigned integers")
        width = column.dtype.itemsize
        flat = np.ascontiguousarray(column.ravel().astype(f"<u{width}"))
        contents.append([name, width, len(flat)])
        planes.append(flat.view(np.uint8).reshape(-1, width).T.tobytes())
    packed = gzip.compress(b"".join(planes), 6, mtime=0)
    return contents, base64.b64encode(packed).decode()


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """The values (not negative; above 2^32 - 1 they are cut) in the narrowest type that holds
    them."""
    largest = int(values.max()) if len(values) else 0
    kind = np.uint8 if largest < 1 << 8 else np.uint16 if largest < 1 << 16 else np.uint32
    return values.clip(0, (1 << 32) - 1).astype(kind)
