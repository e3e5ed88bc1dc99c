"""A size in bytes as people write it: `--max-bytes 20GB`."""

from __future__ import annotations

import re

from rltrace.trace.errors import WRONG_USAGE, RltraceError
from rltrace.trace.segment import SEGMENT_BYTES

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_LEAST_BYTES = 10**6
_PARTS = 100  # of the size, for a segment
_LEAST_SEGMENT_BYTES = 128 << 10


def size_of(text: str) -> int:
    """Bytes: "20GB", "1.5 GiB", "500M", "1000000". Errors: `RltraceError` for anything else, and
    below a megabyte."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", text.strip().upper())
    if found is None:
        raise RltraceError(f"--max-bytes {text}: write it as 20GB or 500MB", WRONG_USAGE)
    number, unit, binary = found.groups()
    whole = _UNITS[unit]
    if binary:
        whole = 1024 ** (list(_UNITS).index(unit))
    size = int(float(number) * whole)
    if size < _LEAST_BYTES:
        raise RltraceError(f"--max-bytes {text}: a run takes a megabyte at least", WRONG_USAGE)
    return size


def segment_bytes(max_bytes: int) -> int:
    """The size at which a segment is left for another one, so that the oldest can be dropped: the
    last one of each table of each living process stays."""
    return max(_LEAST_SEGMENT_BYTES, min(SEGMENT_BYTES, max_bytes // _PARTS))
