"""Texts in the formats that anybody writes: what would fill the memory is refused."""

from __future__ import annotations

import gzip

import pytest

from rltrace.trace.texts import MOST_UNPACKED_VALUES, unpacked


def test_packed_json_of_more_values_than_there_is_memory_for_is_refused() -> None:
    """A hundred kilobytes that take 6 GB once they are parsed."""
    bomb = gzip.compress(b'{"traceEvents":[' + b"{}," * (MOST_UNPACKED_VALUES // 2) + b"{}]}")
    assert len(bomb) < 1 << 18
    with pytest.raises(ValueError, match="too many values: unpack it first"):
        unpacked(bomb)


def test_what_is_long_and_of_few_values_is_unpacked() -> None:
    text = b'["' + b"a" * (32 << 20) + b'"]'
    assert unpacked(gzip.compress(text)) == text
