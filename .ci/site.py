"""For mkdocs: links that lead out of docs/ become paths, and names of code blocks their titles."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)\s]*)?\)")

FILE = re.compile(r"^(```\w+) file=(\S+)$", re.M)


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """The page's text, with the links that lead out of docs/ as text, in mkdocs' Markdown."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def told(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        if path.startswith("docs/"):
            return link[0]
        return f"`{path}`" if link[1].strip("`/") in path else f"{link[1]} (`{path}`)"

    return FILE.sub(r'\1 title="\2"', LINK.sub(told, markdown))
