"""Texts in the formats that anybody writes, read so that nothing in them is more than an error."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from rltrace.trace.own_files import read_own

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NONSENSE = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""What it may raise to take what comes from elsewhere for what it should be."""

MOST_UNPACKED_BYTES = 1 << 30
"""Of a packed file: a thousandth of it on disk can unpack to all of a machine's memory."""

MOST_UNPACKED_VALUES = 1 << 25
"""Of a packed file: each value of a JSON text takes some 60 bytes, and three of the text."""

_MOST_BITS = 1024
_GZIP = b"\x1f\x8b"


def parsed(text: str | bytes) -> Any:
    """The value of a JSON text. Errors: ValueError, also for one that is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def told_in(path: Path) -> dict[str, Any]:
    """What a file of a run tells of a node, a process or itself; nothing where it cannot be read,
    or holds something else."""
    try:
        told = parsed(read_own(path))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def parsed_toml(text: str) -> dict[str, Any]:
    """The tables of a text. Errors: ValueError, also where it is nested too deep."""
    try:
        tables = tomllib.loads(text)
        _check_whole(tables)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return tables


@cache
def packaged_toml(path: str) -> dict[str, Any]:
    """The tables of a file that is part of this package, by its path in it."""
    return tomllib.loads(resources.files("rltrace").joinpath(path).read_text("utf-8"))


def packaged_tables(folder: str) -> Iterator[dict[str, Any]]:
    """The tables of each file of a folder of this package, by the files' names."""
    files = resources.files("rltrace").joinpath(folder).iterdir()
    for name in sorted(file.name for file in files if file.name.endswith(".toml")):
        yield packaged_toml(f"{folder}/{name}")


def _check_whole(value: object) -> None:
    """Errors: ValueError for a whole number that no float is as large as, and that Python may not
    even print: a hexadecimal one has no limit of digits."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError("a number has too many digits")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_whole(inner)


def unpacked(data: bytes) -> bytes:
    """What gzip packed, or the data themselves where it did not. Errors: ValueError where they are
    damaged, end too early or are too large."""
    if not data.startswith(_GZIP):
        return data
    parts: list[bytes] = []
    left = MOST_UNPACKED_BYTES
    try:
        while data:  # members, one after the other
            member = zlib.decompressobj(wbits=31)
            parts.append(member.decompress(data, left))
            left -= len(parts[-1])
            if not member.eof:
                why = "ends too early" if left else "is too large: unpack it first"
                raise ValueError(f"its compressed data {why}")
            data = member.unused_data.lstrip(b"\0")
    except zlib.error:
        raise ValueError("its compressed data is damaged") from None
    whole = b"".join(parts)
    if sum(map(whole.count, (b"{", b"[", b","))) > MOST_UNPACKED_VALUES:
        raise ValueError("its compressed data has too many values: unpack it first")
    return whole
