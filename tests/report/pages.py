"""A page of the report, taken apart: what elements there are, and what its tables say."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import numpy as np

VOID = {"meta", "input", "br", "hr", "img", "link"}


@dataclass
class Element:
    """An element with its attributes and what stands in it."""

    name: str
    attributes: dict[str, str | None]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text within, as it is read."""
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def all(self, name: str, **attributes: str) -> list[Element]:
        """All elements of that name and attributes within, in order."""
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        found = []
        for child in self.children:
            if isinstance(child, str):
                continue
            if child.name == name and wanted.items() <= child.attributes.items():
                found.append(child)
            found += child.all(name, **attributes)
        return found

    def one(self, name: str, **attributes: str) -> Element:
        """The only one."""
        (found,) = self.all(name, **attributes)
        return found

    @property
    def rows(self) -> list[list[str]]:
        """The cells of a table by row, its head first."""
        return [
            [cell.text for cell in row.children if isinstance(cell, Element)]
            for row in self.all("tr")
        ]


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({key for key, _ in attrs}) == len(attrs), f"<{tag}> has an attribute twice"
        made = Element(tag, dict(attrs))
        self.open[-1].children.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> ends <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(page: str) -> Element:
    """The page's elements. Fails where tags are not balanced."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    assert parser.open == [parser.root], "an element is left open"
    return parser.root


def data_of(page: Element) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """`(what the page is told of its data, the columns)`, unpacked as its script does it."""
    about = json.loads(page.one("script", id="about").text)
    packed = gzip.decompress(base64.b64decode(page.one("script", id="data").text))
    columns, at = {}, 0
    for name, width, length in about["columns"]:
        planes = np.frombuffer(packed, np.uint8, width * length, at).reshape(width, length)
        shifts = 8 * np.arange(width, dtype=np.uint64)[:, None]
        columns[name] = (planes.astype(np.uint64) << shifts).sum(axis=0)
        at += width * length
    assert at == len(packed)
    return about, columns
