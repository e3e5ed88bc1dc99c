"""The settings of a job, as far as a console shows them: its command line, or its configuration."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from rltrace.adapters.table.stated import flat

_OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_]\w*(?:\.\w+)+=\S*")
_FLAG = re.compile(r"--[A-Za-z][\w.-]*(?:=\S*)?")
_MOST_CHARACTERS = 1 << 18  # Python takes a thousand times the bytes to read a dict
_MOST_WORDS = 1 << 14


class PrintedSettings:
    """Takes lines; `words` are those of command lines, `values` option -> value of a dict."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.values: dict[str, Any] = {}
        self._text, self._depth = "", 0

    def take(self, line: str) -> None:
        """Takes a line that has no figures in it."""
        if self._depth or (line.startswith("{") and not self.values):
            self._text += f"{line}\n"
            self._depth += line.count("{") - line.count("}")
            if len(self._text) > _MOST_CHARACTERS:
                self._text, self._depth = "", 0
            elif self._depth <= 0:
                found = flat(_read(self._text))
                self.values = {k: v for k, v in found if isinstance(v, bool | int | float | str)}
                self._text, self._depth = "", 0
        elif ("=" in line or "--" in line) and len(self.words) < _MOST_WORDS:
            words = line.removesuffix("\\").split()
            if any(_OVERRIDE.fullmatch(word) or _FLAG.fullmatch(word) for word in words):
                self.words += words


def _read(text: str) -> Any:
    """A dict as Python or JSON writes it; {} for what is none."""
    for read in (ast.literal_eval, json.loads):
        try:
            return read(text)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue  # all that these raise of texts
    return {}
