"""Texts that anybody writes: what a terminal would obey is written out, everything else is left as
it is, and what would fill the memory is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from rltrace.testing.inside.trace import (
    MOST_UNPACKED_VALUES,
    OK,
    UNREADABLE,
    WRONG_USAGE,
    RltraceError,
    visible,
    visible_lines,
)
from rltrace.trace.untrusted_files import (
    toml_given,
    unpacked,
    write_given,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, größer, 日本語, 🎉", "plain, größer, 日本語, 🎉"),
        ("a\xa0b\u3000c", "a\xa0b\u3000c"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("bell\x07 C1\x9b line\n tab\t return\r", "bell\\x07 C1\\x9b line\\n tab\\t return\\r"),
        ("\u202eturned", "\\u202eturned"),
        ("two\u2028lines", "two\\u2028lines"),
        ("half \ud800", "half \\ud800"),
    ],
)
def test_what_cannot_be_printed_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_long_text_keeps_its_ends() -> None:
    assert visible("begin" + "x" * 5000 + "end", 12) == "begi…xxxxend"
    assert visible("x" * 12, 12) == "x" * 12
    assert len(visible("\x1b" * 5000, 12)) == 12


def test_lines_stay_lines() -> None:
    assert visible_lines("a\x1b\nb") == "a\\x1b\nb"


def test_packed_json_of_more_values_than_there_is_memory_for_is_refused() -> None:
    """A hundred kilobytes that take 6 GB once they are parsed."""
    bomb = gzip.compress(b'{"traceEvents":[' + b"{}," * (MOST_UNPACKED_VALUES // 2) + b"{}]}")
    assert len(bomb) < 1 << 18
    with pytest.raises(ValueError, match="too many values: unpack it first"):
        unpacked(bomb)


def test_what_is_long_and_of_few_values_is_unpacked() -> None:
    text = b'["' + b"a" * (32 << 20) + b'"]'
    assert unpacked(gzip.compress(text)) == text


@pytest.mark.parametrize(
    ("held", "code"),
    [(None, UNREADABLE), (b"\xff", WRONG_USAGE), (b"x =", WRONG_USAGE), (b"x = 1", OK)],
)
def test_a_toml_file_of_a_user_is_read_or_one_sentence(
    tmp_path: Path, held: bytes | None, code: int
) -> None:
    path = tmp_path / "settings.toml"
    if held is not None:
        path.write_bytes(held)
    if code == OK:
        assert toml_given(path) == {"x": 1}
        return
    with pytest.raises(RltraceError) as raised:
        toml_given(path)
    assert raised.value.exit_code == code
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("before")
    write_given(tmp_path / "page", b"after")
    assert (tmp_path / "page").read_text() == "after"
    with pytest.raises(RltraceError, match=str(tmp_path)):
        write_given(tmp_path, b"after")
    assert [file.name for file in tmp_path.iterdir()] == ["page"]
