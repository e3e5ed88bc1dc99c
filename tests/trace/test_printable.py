"""What a terminal would obey is written out, everything else is left as it is."""

from __future__ import annotations

import pytest

from rltrace.trace.printable import visible, visible_lines


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
