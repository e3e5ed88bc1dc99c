"""Text of a job's as people can read it: what a terminal would obey or reorder is written out.

Names of spans, paths and arguments are whatever the job has. JSON and CSV hold them as they are;
what is printed for people goes through here. Standard library only, nothing imported.
"""

from __future__ import annotations

_MARKERS = "\u2028\u2029"  # spaces to Python, ends of lines to some terminals


def visible(text: str, longest: int | None = None) -> str:
    """The text on one line, escapes (`\\x1b`, `\\n`) in the place of what cannot be printed, and of
    at most `longest` characters, an ellipsis in the middle of a longer one."""
    if not text.isprintable():
        text = "".join(c if _is_harmless(c) else _escaped(c) for c in text)
    if longest is None or len(text) <= longest:
        return text
    head = longest // 3
    return f"{text[:head]}…{text[len(text) - (longest - head - 1) :]}"


def visible_lines(text: str) -> str:
    """As `visible`, of a text of several lines."""
    return "\n".join(visible(line) for line in text.split("\n"))


def _is_harmless(c: str) -> bool:
    """Whether it stands for itself: not a control character, not one that turns the direction."""
    return c.isprintable() or (c.isspace() and c >= "\xa0" and c not in _MARKERS)


def _escaped(c: str) -> str:
    return c.encode("unicode_escape", "backslashreplace").decode()
