"""HTML and SVG without a way to forget escaping: only `Html`, made here, is markup."""

from __future__ import annotations

import html
import re
from typing import Any


class Html(str):
    """Markup that is finished. Joining it with anything else gives a plain string again."""

    __slots__ = ()


NOTHING = Html("")
Child = str | int | float | None

# What no page may hold (HTML 13.2.3.5), and signs that turn the reading direction of what follows.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)
_VOID = frozenset({"meta", "link", "input", "br", "hr", "img"})
_CODE = re.compile("`([^`]+)`")
_LONG = re.compile(r"[^\s\u200b]{23}[^\s\u200b/=.,:_-]?[/=.,:_-]?(?=\S)")
_UNIT = re.compile("(?<=[0-9]) (?=[%$µA-Za-z])")
_SYMBOL = re.compile("τ_(old|ref|step|[A-Z])")


def text(value: Child) -> Html:
    """Escaped text, in attributes too. None is nothing."""
    if value is None:
        return NOTHING
    if isinstance(value, Html):
        return value
    return Html(html.escape(_CONTROLS.sub("\N{REPLACEMENT CHARACTER}", str(value))))


def prose(value: str) -> Html:
    """Text of a report: `τ_R` with its index, code between backticks, and no word so long that it
    has to be wider than a phone."""
    if isinstance(value, Html):
        return value
    coded = _CODE.sub(r"<code>\1</code>", text(_LONG.sub("\\g<0>\u200b", value)))
    return Html(_SYMBOL.sub(r"τ<sub>\1</sub>", coded).replace("\u200b", "<wbr>"))


def sentence(value: str) -> Html:
    """A sentence of a report, in which a number and its unit stay on one line."""
    return value if isinstance(value, Html) else prose(_UNIT.sub("\N{NO-BREAK SPACE}", value))


def join(*children: Child) -> Html:
    return Html("".join(map(text, children)))


def tag(name: str, *children: Child, **attributes: Any) -> Html:
    """An element. `class_` is `class`, `data_row` is `data-row`, `viewBox` stays; an attribute of
    None or False is left out, and one of True has no value."""
    shown = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        said = text(short(value) if isinstance(value, float) else value)
        shown.append(f" {attribute}" if value is True else f' {attribute}="{said}"')
    head = f"<{name}{''.join(shown)}>"
    return Html(head if name in _VOID else f"{head}{join(*children)}</{name}>")


def short(value: float) -> str:
    """A coordinate with two decimals at most: a page has a great many of them."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
